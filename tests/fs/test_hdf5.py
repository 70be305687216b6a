"""HDF5 files on a full disk: an error, nothing left behind, and a process that lives on."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.fs.hdf5 import atomic_hdf5

COUNT = 500
PROGRAM = f"""
import resource, sys
import numpy as np
from elmokit.fs.hdf5 import atomic_hdf5

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with atomic_hdf5(sys.argv[1]) as file:
        for number in range({COUNT}):
            file.create_dataset(str(number), data=np.full((5, 20), number, np.float32))
except OSError as error:
    sys.exit(str(error))
"""


def test_atomic_hdf5_holds_what_was_written(tmp_path: Path) -> None:
    with atomic_hdf5(tmp_path / "a.hdf5") as file:
        for number in range(COUNT):
            file.create_dataset(str(number), data=np.full((5, 20), number, np.float32))
        assert os.listdir(tmp_path) != ["a.hdf5"]
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert len(file) == COUNT
        assert all((file[str(number)][()] == number).all() for number in range(COUNT))
    assert os.listdir(tmp_path) == ["a.hdf5"]


# The first byte, data, and the last metadata, which are written when the file is closed.
@pytest.mark.parametrize("limit", [0, 1000, 100_000, 300_000, -1])
def test_atomic_hdf5_on_a_full_disk_is_an_error_and_no_crash(tmp_path: Path, limit: int) -> None:
    if limit < 0:
        with atomic_hdf5(tmp_path / "whole.hdf5") as file:
            for number in range(COUNT):
                file.create_dataset(str(number), data=np.full((5, 20), number, np.float32))
        limit += (tmp_path / "whole.hdf5").stat().st_size
        (tmp_path / "whole.hdf5").unlink()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "a.hdf5"), str(limit)]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 1 and run.stderr.count("\n") == 1  # no signal, no traceback
    assert "cannot write" in run.stderr and "a.hdf5 (File too large)" in run.stderr
    assert os.listdir(tmp_path) == []


def test_error_inside_the_block_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="accident"), atomic_hdf5(tmp_path / "a.hdf5") as file:
        file.create_dataset("a", data=np.ones(3))
        raise RuntimeError("accident")
    assert os.listdir(tmp_path) == []
