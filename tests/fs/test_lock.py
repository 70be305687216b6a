"""The lock that lets one process at a time write in a directory."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elmokit.fs.lock import locked, only_one_in

fcntl = pytest.importorskip("fcntl")


def test_directory_is_locked_by_one_process_at_a_time(tmp_path: Path) -> None:
    with only_one_in(tmp_path / "run"):
        code = f"from elmokit.fs.lock import only_one_in\nwith only_one_in({str(tmp_path / 'run')!r}): pass"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "another process is writing in" in other.stderr
    with only_one_in(tmp_path / "run"):
        pass  # free again
    assert list(tmp_path.iterdir()) == []  # a start that wrote nothing leaves nothing


def test_a_directory_that_is_replaced_while_it_is_locked_is_not_taken_for_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the run that held the lock before cleans up."""
    directory = tmp_path / "run"
    directory.mkdir()
    flock = fcntl.flock

    def lock_and_replace(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        directory.rename(tmp_path / "before")
        directory.mkdir()

    monkeypatch.setattr(fcntl, "flock", lock_and_replace)
    with pytest.raises(FileNotFoundError, match="it was replaced"), locked(directory):
        pytest.fail("the block was entered")


def test_file_system_without_locks_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(number: int) -> None:
        def flock(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("fcntl.flock", flock)

    fails(errno.EBADF)
    with only_one_in(tmp_path / "run"):
        pass
    fails(errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), only_one_in(tmp_path / "run"):
        pass
