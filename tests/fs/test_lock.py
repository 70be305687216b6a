"""The lock that lets one process at a time write in a directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from elmokit.fs.atomic import directory_lock

pytest.importorskip("fcntl")


def test_directory_is_locked_by_one_process_at_a_time(tmp_path: Path) -> None:
    with directory_lock(tmp_path / "run") as is_locked:
        code = (
            "from elmokit.fs.atomic import directory_lock\nwith "
            f"directory_lock({str(tmp_path / 'run')!r}): pass"
        )
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert is_locked
        assert "another process is writing in" in other.stderr
    with directory_lock(tmp_path / "run") as is_locked:
        assert is_locked  # free again
