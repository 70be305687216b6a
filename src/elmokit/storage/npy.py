"""Vectors in NumPy's files, written from a complete store: one a line (.npy), or arrays by name
(.npz).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import numpy as np

from elmokit.fs import atomic_path
from elmokit.storage.store import EmbeddingStore


def write_npy(store: EmbeddingStore, path: Path) -> None:
    """Write (lines, 2D) float32, atomically."""
    header = {
        "descr": "<f4",
        "fortran_order": False,
        "shape": (len(store), *store.index.vector_shape),
    }
    with atomic_path(path) as partial, partial.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for line in range(len(store)):
            stream.write(store.vectors(line).astype("<f4").tobytes())


def write_npz(
    store: EmbeddingStore, path: Path, lines: Mapping[str, int], pooled: bool = False
) -> None:
    """Write an array for each name, atomically, in the number type of the store.

    Args:
        store: A complete store.
        path: The file.
        lines: The number of the line in the store for each name, in the order to write.
        pooled: Each line of the store has one vector: write it as (2D,), not (1, 2D).
    """
    with atomic_path(path) as partial, ZipFile(partial, "w") as archive:
        for name, line in lines.items():
            vectors = store.vectors(line)
            # An explicit ZipInfo has a fixed date, so that equal vectors make equal files.
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, vectors[0] if pooled else vectors.swapaxes(0, -2))
