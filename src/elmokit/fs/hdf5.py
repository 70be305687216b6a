"""HDF5 files that are written completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from elmokit.fs.atomic import atomic_path


@contextmanager
def atomic_hdf5(path: str | Path, overwrite: bool = True) -> Iterator[h5py.File]:
    """Write an HDF5 file atomically: yields the open file, empty. Arguments and errors are those of `atomic_path`."""
    with atomic_path(path, overwrite) as partial, h5py.File(partial, "w") as file:
        yield file
