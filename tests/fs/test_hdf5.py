"""HDF5 files are complete or absent."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.fs.hdf5 import atomic_hdf5


@pytest.mark.parametrize("fails", [False, True])
def test_atomic_hdf5_holds_what_was_written(tmp_path: Path, fails: bool) -> None:
    try:
        with atomic_hdf5(tmp_path / "a.hdf5") as file:
            file["a"] = np.arange(5)
            assert os.listdir(tmp_path) != ["a.hdf5"]
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert os.listdir(tmp_path) == []
        return
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert file["a"][()].tolist() == list(range(5))
    assert os.listdir(tmp_path) == ["a.hdf5"]
