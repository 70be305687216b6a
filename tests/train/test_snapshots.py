"""Snapshots of a run on disk."""

import os
from pathlib import Path

import pytest
import torch

from elmokit.train import snapshots
from elmokit.train.snapshots import Snapshot, latest_snapshot, read_snapshot, write_snapshot


def test_write_snapshot_keeps_only_the_latest(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100):
        write_snapshot(tmp_path, step, Snapshot({"a.x": torch.tensor(step)}, {"step": step}), keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step-00000015", "step-00000100"]
    last = latest_snapshot(tmp_path)
    assert last is not None and read_snapshot(last).with_prefix("a")["x"].item() == 100


@pytest.mark.parametrize("name", [snapshots.TENSORS, snapshots.PROGRESS])
def test_read_snapshot_names_a_damaged_snapshot(tmp_path: Path, name: str) -> None:
    path = write_snapshot(tmp_path, 1, Snapshot({"a.x": torch.zeros(9)}, {"step": 1}), keep=1)
    (path / name).write_bytes((path / name).read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"step-00000001 cannot be read.*remove it"):
        read_snapshot(path)
