"""Snapshots of a run on disk."""

import errno
import os
from pathlib import Path

import pytest
import torch

from elmokit.train import snapshots
from elmokit.train.snapshots import Snapshot, latest_snapshot, read_snapshot, write_snapshot

pytestmark = pytest.mark.any_backend


def test_write_snapshot_keeps_only_the_latest(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100):
        write_snapshot(tmp_path, step, Snapshot({"a.x": torch.tensor(step)}, {"step": step}), keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step-00000015", "step-00000100"]
    last = latest_snapshot(tmp_path)
    assert last is not None and read_snapshot(last).with_prefix("a")["x"].item() == 100


def test_write_snapshot_of_an_earlier_step_removes_those_of_the_way_that_was_given_up(tmp_path: Path) -> None:
    for step in (5, 10, 15, 8):
        write_snapshot(tmp_path, step, Snapshot({"a.x": torch.tensor(step)}, {"step": step}), keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step-00000008"]
    write_snapshot(tmp_path, 9, Snapshot({"a.x": torch.tensor(9)}, {"step": 9}), keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step-00000008", "step-00000009"]


@pytest.mark.parametrize("name", [snapshots.TENSORS, snapshots.PROGRESS])
def test_read_snapshot_names_a_damaged_snapshot(tmp_path: Path, name: str) -> None:
    path = write_snapshot(tmp_path, 1, Snapshot({"a.x": torch.zeros(9)}, {"step": 1}), keep=1)
    (path / name).write_bytes((path / name).read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"step-00000001 cannot be read.*remove it"):
        read_snapshot(path)


@pytest.mark.parametrize("name", [snapshots.TENSORS, snapshots.PROGRESS, snapshots.CHECKSUMS])
def test_read_snapshot_finds_a_flipped_bit(tmp_path: Path, name: str) -> None:
    path = write_snapshot(tmp_path, 1, Snapshot({"a.x": torch.arange(9.0)}, {"step": 1, "rate_factor": 1.0}), keep=1)
    whole = (path / name).read_bytes()
    for bit in range(0, 8 * len(whole), 7):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (path / name).write_bytes(damaged)
        if name != snapshots.CHECKSUMS:
            with pytest.raises(ValueError, match=r"step-00000001 cannot be read.*remove it"):
                read_snapshot(path)
        else:  # its own bits may be those of a name that is of no file
            try:
                assert read_snapshot(path).progress["step"] == 1
            except ValueError as error:
                assert "cannot be read" in str(error)


def test_an_error_of_the_system_is_no_reason_to_remove_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_snapshot(tmp_path, 1, Snapshot({"a.x": torch.zeros(9)}, {"step": 1}), keep=1)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(snapshots, "open_regular", fail)
    with pytest.raises(OSError, match=r"^\[Errno \d+\] Too many open files$"):
        read_snapshot(path)


def test_read_snapshot_refuses_a_pipe_and_deep_json(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, 1, Snapshot({"a.x": torch.zeros(9)}, {"step": 1}), keep=1)
    (path / snapshots.CHECKSUMS).unlink()  # as in older snapshots
    assert read_snapshot(path).progress == {"step": 1}
    (path / snapshots.PROGRESS).write_text('{"a":' * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_snapshot(path)
    (path / snapshots.PROGRESS).write_text("{}")
    (path / snapshots.TENSORS).unlink()
    os.mkfifo(path / snapshots.TENSORS)
    with pytest.raises(ValueError, match="not a regular file"):
        read_snapshot(path)


def test_other_names_are_no_snapshots(tmp_path: Path) -> None:
    for name in ("step-backup", "step-0000001x", "step-00000002.old"):
        (tmp_path / name).mkdir()
    assert latest_snapshot(tmp_path) is None
