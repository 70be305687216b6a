"""The files of a run: its snapshots, and its log, repaired after a run was killed while writing."""

import json
import os
from contextlib import closing
from pathlib import Path

import pytest
import torch

from elmokit.train.loop import Tracker, read_events, training_records
from elmokit.train.trainer import (
    Snapshot,
    latest_snapshot,
    read_snapshot,
    remove_latest_snapshot,
    write_snapshot,
)

pytestmark = pytest.mark.any_backend


def write_steps(directory: Path, *steps: int, keep: int = 2) -> Path:
    for step in steps:
        path = write_snapshot(
            directory, step, Snapshot({"a.x": torch.full((9,), step)}, {"step": step}), keep
        )
    return path


def test_write_snapshot_keeps_only_the_latest_and_none_of_a_way_that_was_given_up(
    tmp_path: Path,
) -> None:
    assert latest_snapshot(tmp_path) is None
    write_steps(tmp_path, 5, 10, 15, 100)
    assert sorted(os.listdir(tmp_path)) == ["step-00000015", "step-00000100"]
    last = latest_snapshot(tmp_path)
    assert last is not None and read_snapshot(last).with_prefix("a")["x"][0] == 100
    write_steps(tmp_path, 50)
    assert sorted(os.listdir(tmp_path)) == ["step-00000015", "step-00000050"]
    for _ in range(2):
        remove_latest_snapshot(tmp_path)  # but never the only one
        assert os.listdir(tmp_path) == ["step-00000015"]


@pytest.mark.parametrize("name", ["tensors.safetensors", "progress.json", "checksums.json"])
def test_read_snapshot_finds_any_change_of_its_files(tmp_path: Path, name: str) -> None:
    path = write_steps(tmp_path, 1)
    whole = (path / name).read_bytes()
    flipped = (
        [*whole[:place], whole[place] ^ 1 << place % 8, *whole[place + 1 :]]
        for place in range(0, len(whole), 3)
    )
    for damaged in (*map(bytes, flipped), whole[:-3], b"", None):
        (path / name).unlink() if damaged is None else (path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            read_snapshot(path)
    (path / name).write_bytes(whole)
    assert read_snapshot(path).progress == {"step": 1}


def write(directory: Path, *events: tuple[str, int]) -> bytes:
    with closing(Tracker(directory)) as tracker:
        for kind, step in events:
            tracker.event(
                kind, step, loss=step / 3 if step else float("nan"), note="naïve"
            )  # which JSON lacks
    return (directory / "log.jsonl").read_bytes()


def test_tracker_keeps_complete_lines_of_a_log_cut_anywhere(tmp_path: Path) -> None:
    whole = write(tmp_path, ("start", 0), ("train", 1), ("train", 2))
    for cut in range(len(whole) + 1):
        (tmp_path / "log.jsonl").write_bytes(whole[:cut])
        complete = whole[: whole[:cut].rfind(b"\n") + 1]
        assert len(read_events(tmp_path)) == complete.count(b"\n")
        log = write(tmp_path, ("resume", 2))
        assert log.startswith(complete)
        assert json.loads(log.splitlines()[-1])["event"] == "resume" and b"NaN" not in log
        assert log.count(b"\n") == complete.count(b"\n") + 1


def test_reading_keeps_the_last_event_of_a_repeated_step(tmp_path: Path) -> None:
    # Killed after step 30, resumed from 20: step 30 then took half as long.
    with closing(Tracker(tmp_path)) as tracker:
        for kind, step, seconds in (
            ("start", 0, 0.0),
            ("train", 10, 2.0),
            ("train", 20, 1.0),
            ("train", 30, 4.0),
            ("resume", 20, 0.0),
            ("train", 30, 2.0),
            ("train", 40, 1.0),
        ):
            tracker.event(kind, step, processor_seconds=seconds)

    def seconds(**limits: int) -> dict[int, float]:
        return {
            each["step"]: each["processor_seconds"] for each in training_records(tmp_path, **limits)
        }

    assert seconds() == {10: 2.0, 20: 1.0, 30: 2.0, 40: 1.0}
    assert seconds(after=20) == {30: 2.0, 40: 1.0}
    assert seconds(until=20) == {10: 2.0, 20: 1.0}
