"""The log of a run: one line per event, repaired after a run was killed while writing."""

import json
from contextlib import closing
from pathlib import Path

from elmokit.train.tracker import Tracker, read_events, training_records


def write(directory: Path, *events: tuple[str, int]) -> bytes:
    with closing(Tracker(directory)) as tracker:
        for kind, step in events:
            tracker.event(kind, step, loss=step / 3, note="naïve")
    return (directory / "log.jsonl").read_bytes()


def test_tracker_keeps_complete_lines_of_a_log_cut_anywhere(tmp_path: Path) -> None:
    whole = write(tmp_path, ("start", 0), ("train", 1), ("train", 2))
    for cut in range(len(whole) + 1):
        (tmp_path / "log.jsonl").write_bytes(whole[:cut])
        complete = whole[: whole[:cut].rfind(b"\n") + 1]
        assert len(read_events(tmp_path)) == complete.count(b"\n")
        log = write(tmp_path, ("resume", 2))
        assert log.startswith(complete)
        assert [event["event"] for event in map(json.loads, log.splitlines())][-1] == "resume"
        assert log.count(b"\n") == complete.count(b"\n") + 1


def test_reading_keeps_the_last_event_of_a_repeated_step(tmp_path: Path) -> None:
    # Killed after step 30, resumed from 20: step 30 then took half as long.
    with closing(Tracker(tmp_path)) as tracker:
        for kind, step, seconds in (
            ("start", 0, 0.0), ("train", 10, 2.0), ("train", 20, 1.0), ("train", 30, 4.0), ("resume", 20, 0.0),
            ("train", 30, 2.0), ("train", 40, 1.0),
        ):  # fmt: skip
            tracker.event(kind, step, processor_seconds=seconds)

    def seconds(**limits: int) -> dict[int, float]:
        return {each["step"]: each["processor_seconds"] for each in training_records(tmp_path, **limits)}

    assert seconds() == {10: 2.0, 20: 1.0, 30: 2.0, 40: 1.0}
    assert seconds(after=20) == {30: 2.0, 40: 1.0}
    assert seconds(until=20) == {10: 2.0, 20: 1.0}


def test_tracker_writes_null_for_numbers_that_json_lacks(tmp_path: Path) -> None:
    with closing(Tracker(tmp_path)) as tracker:
        tracker.event("train", 1, loss=float("nan"), perplexity=float("inf"), rate=0.5)
    log = (tmp_path / "log.jsonl").read_text()
    assert '"loss": null, "perplexity": null, "rate": 0.5' in log and "NaN" not in log
