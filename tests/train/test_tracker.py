"""The log of a run: one line per event, repaired after a run was killed while writing."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from elmokit.train.tracker import Tracker, read_events, training_records


def write(directory: Path, *events: tuple[str, int]) -> bytes:
    with closing(Tracker(directory)) as tracker:
        for kind, step in events:
            tracker.event(kind, step, loss=step / 3, note="naïve")
    return (directory / "log.jsonl").read_bytes()


def events_of(log: bytes) -> list[tuple[str, int]]:
    assert log.endswith(b"\n")
    result: list[dict[str, Any]] = [json.loads(line) for line in log.splitlines()]
    return [(event["event"], event["step"]) for event in result]


def test_tracker_appends_when_a_run_resumes(tmp_path: Path) -> None:
    first = write(tmp_path, ("start", 0), ("train", 1))
    both = write(tmp_path, ("resume", 1), ("train", 2))
    assert both.startswith(first)
    assert events_of(both) == [("start", 0), ("train", 1), ("resume", 1), ("train", 2)]


def test_tracker_keeps_complete_lines_of_a_log_cut_anywhere(tmp_path: Path) -> None:
    whole = write(tmp_path, ("start", 0), ("train", 1), ("train", 2))
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        (tmp_path / "log.jsonl").write_bytes(whole[:cut])
        log = write(tmp_path, ("resume", 2))
        kept = sum(cut >= end for end in ends)  # a line that lacks only its newline is complete
        assert events_of(log) == [*[("start", 0), ("train", 1), ("train", 2)][:kept], ("resume", 2)]
        assert log.splitlines()[:kept] == whole.splitlines()[:kept]


def test_reading_skips_a_line_that_is_not_complete_and_keeps_the_last_event_of_a_repeated_step(tmp_path: Path) -> None:
    # Killed after step 30, resumed from 20: step 30 then took half as long.
    with closing(Tracker(tmp_path)) as tracker:
        for kind, step, seconds in (
            ("start", 0, 0.0), ("train", 10, 2.0), ("train", 20, 1.0), ("train", 30, 4.0), ("resume", 20, 0.0),
            ("train", 30, 2.0), ("train", 40, 1.0),
        ):  # fmt: skip
            tracker.event(kind, step, processor_seconds=seconds)
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"time": 1.0, "event": "train", "st')
    assert [event["event"] for event in read_events(tmp_path)].count("train") == 5

    def seconds(**limits: int) -> dict[int, float]:
        return {each["step"]: each["processor_seconds"] for each in training_records(tmp_path, **limits)}

    assert seconds() == {10: 2.0, 20: 1.0, 30: 2.0, 40: 1.0}
    assert seconds(after=20) == {30: 2.0, 40: 1.0}
    assert seconds(until=20) == {10: 2.0, 20: 1.0}


class Scalars:
    """A stand-in for TensorBoard's SummaryWriter."""

    def __init__(self) -> None:
        self.added: dict[str, tuple[float, int]] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.added[name] = value, step

    def close(self) -> None:
        """There is nothing to close."""


def test_tracker_names_the_measure_in_tensorboard(tmp_path: Path) -> None:
    scalars = Scalars()
    with closing(Tracker(tmp_path)) as tracker:
        tracker._writer = scalars
        tracker.event("train", 1, loss_masked=2.5)
        tracker.event("heldout", 1, measure="pseudo-perplexity", pseudo_perplexity=7.5)
        tracker.event("heldout", 2, measure="perplexity", mean=float("inf"), forward=9.5)
    assert scalars.added == {
        "train/loss_masked": (2.5, 1),
        "heldout/pseudo-perplexity/pseudo_perplexity": (7.5, 1),
        "heldout/perplexity/forward": (9.5, 2),
    }


def test_tensorboard_reads_what_a_tracker_writes(tmp_path: Path) -> None:
    with closing(Tracker(tmp_path, tensorboard=True)) as tracker:
        tracker.event("train", 3, loss_masked=2.5)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in found.Scalars("train/loss_masked")] == [(3, 2.5)]


def test_tracker_writes_null_for_numbers_that_json_lacks(tmp_path: Path) -> None:
    with closing(Tracker(tmp_path)) as tracker:
        tracker.event("train", 1, loss=float("nan"), perplexity=float("inf"), rate=0.5)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    event = json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=refuse)
    assert (event["loss"], event["perplexity"], event["rate"]) == (None, None, 0.5)
