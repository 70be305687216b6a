"""The files of a run: its snapshots, and its log, repaired after a run was killed while writing."""

import json
import os
from contextlib import closing
from pathlib import Path

import pytest
import torch

from elmokit.train.loop import EventLog
from elmokit.train.snapshots import (
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
    assert last is not None
    assert read_snapshot(last).with_prefix("a")["x"][0] == 100
    write_steps(tmp_path, 50)
    assert sorted(os.listdir(tmp_path)) == ["step-00000015", "step-00000050"]
    for _ in range(2):
        remove_latest_snapshot(tmp_path)  # but never the only one
        assert os.listdir(tmp_path) == ["step-00000015"]


def write(directory: Path, *events: tuple[str, int]) -> bytes:
    with closing(EventLog(directory)) as log:
        for kind, step in events:
            loss = step / 3 if step else float("nan")  # which JSON lacks
            log.write(kind, step, loss=loss, note="naïve")
    return (directory / "log.jsonl").read_bytes()


def test_log_keeps_complete_lines_of_one_cut_anywhere(tmp_path: Path) -> None:
    whole = write(tmp_path, ("start", 0), ("train", 1), ("train", 2))
    for cut in range(len(whole) + 1):
        (tmp_path / "log.jsonl").write_bytes(whole[:cut])
        complete = whole[: whole[:cut].rfind(b"\n") + 1]
        log = write(tmp_path, ("resume", 2))
        assert log.startswith(complete)
        assert b"NaN" not in log
        *_, last = lines = [json.loads(line) for line in log.splitlines()]
        assert last["event"] == "resume"
        assert len(lines) == complete.count(b"\n") + 1
