"""Snapshots of a run on disk."""

import os
from pathlib import Path

import pytest
import torch

from elmokit.train import snapshots
from elmokit.train.snapshots import Snapshot, latest_snapshot, read_snapshot, remove_latest_snapshot, write_snapshot

pytestmark = pytest.mark.any_backend


def write(directory: Path, *steps: int, keep: int = 2) -> Path:
    for step in steps:
        path = write_snapshot(directory, step, Snapshot({"a.x": torch.full((9,), step)}, {"step": step}), keep)
    return path


def test_write_snapshot_keeps_only_the_latest_and_none_of_a_way_that_was_given_up(tmp_path: Path) -> None:
    write(tmp_path, 5, 10, 15, 100)
    assert sorted(os.listdir(tmp_path)) == ["step-00000015", "step-00000100"]
    last = latest_snapshot(tmp_path)
    assert last is not None and read_snapshot(last).with_prefix("a")["x"][0] == 100
    write(tmp_path, 50)
    assert sorted(os.listdir(tmp_path)) == ["step-00000015", "step-00000050"]
    for _ in range(2):
        remove_latest_snapshot(tmp_path)  # but never the only one
        assert os.listdir(tmp_path) == ["step-00000015"]


@pytest.mark.parametrize("name", [snapshots.TENSORS, snapshots.PROGRESS, snapshots.CHECKSUMS])
def test_read_snapshot_finds_any_change_of_its_files(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 1)
    whole = (path / name).read_bytes()
    flipped = (
        [*whole[:place], whole[place] ^ 1 << place % 8, *whole[place + 1 :]] for place in range(0, len(whole), 3)
    )
    for damaged in (*map(bytes, flipped), whole[:-3], b"", b'{"a":' * 9):
        (path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            read_snapshot(path)
    (path / name).write_bytes(whole)
    assert read_snapshot(path).progress == {"step": 1}
    (path / name).unlink()
    with pytest.raises(ValueError, match="damaged"):
        read_snapshot(path)


def test_other_names_are_no_snapshots(tmp_path: Path) -> None:
    for name in ("step-backup", "step-0000001x", "step-00000002.old"):
        (tmp_path / name).mkdir()
    assert latest_snapshot(tmp_path) is None
