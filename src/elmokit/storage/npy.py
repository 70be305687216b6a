"""One vector per line in a NumPy file, followed by the index of the store it was written from, which NumPy ignores."""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError

import numpy as np

from elmokit.fs.atomic import atomic_path
from elmokit.fs.reading import open_regular
from elmokit.storage.store import EmbeddingStore, StoreIndex

MAX_INDEX_BYTES = 1 << 16


def write_npy(store: EmbeddingStore, path: str | Path) -> None:
    """Write (lines, 2D) float32, atomically."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (len(store), *store.index.vector_shape)}
    with atomic_path(path) as partial, partial.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for line in range(len(store)):
            stream.write(store.vectors(line).astype("<f4").tobytes())
        stream.write(store.index.to_json().encode() + b"\n")


def read_npy_index(path: Path) -> StoreIndex | None:
    """The index after the array of a file that `write_npy` wrote; None for any other file."""
    try:
        with open_regular(path) as stream:
            np.lib.format.read_magic(stream)
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            stream.seek(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, 1)
            return StoreIndex.from_json(stream.read(MAX_INDEX_BYTES))
    except (OSError, ValueError, OverflowError, RecursionError, TokenError):  # NumPy tokenizes a damaged header
        return None
