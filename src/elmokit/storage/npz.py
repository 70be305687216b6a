"""Vectors by name in NumPy's .npz, written from a complete store, whose index is the comment of the archive.

An .npz file is a zip archive of arrays. They are written one after the other, in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np

from elmokit.fs.atomic import atomic_path
from elmokit.fs.reading import open_regular
from elmokit.storage.store import EmbeddingStore, StoreIndex

CHUNK_ROWS = 4096


def _chunks(store: EmbeddingStore, line: int) -> Iterator[np.ndarray]:
    """The vectors of a line in the order of its array, (T, 2D) or (L+1, T, 2D), in chunks of rows (n, 2D)."""
    shape = store.index.vector_shape
    layers = range(shape[0]) if len(shape) == 2 else [...]
    for layer in layers:
        for begin in range(0, store.length(line), CHUNK_ROWS):
            yield store.vectors(line, slice(begin, begin + CHUNK_ROWS))[:, layer]


def write_npz(store: EmbeddingStore, path: str | Path, lines: Mapping[str, int], pooled: bool = False) -> None:
    """Write an array for each name, atomically, in the number type of the store.

    Args:
        store: A complete store.
        path: The file.
        lines: The number of the line in the store for each name, in the order to write.
        pooled: Each line of the store has one vector: write it as (2D,), not (1, 2D).
    """
    dtype = np.dtype(store.index.dtype).newbyteorder("<")
    *layers, dim = store.index.vector_shape
    with atomic_path(path) as partial, ZipFile(partial, "w") as archive:
        for name, line in lines.items():
            shape = (dim,) if pooled else (*layers, store.length(line), dim)
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            # An explicit ZipInfo has a fixed date, so that equal vectors make equal files.
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                for vectors in _chunks(store, line):
                    stream.write(vectors.astype(dtype, copy=False).tobytes())
        archive.comment = store.index.to_json().encode()


def read_npz_index(path: Path) -> StoreIndex | None:
    """The index in a file that `write_npz` wrote; None for any other file."""
    try:
        with open_regular(path) as stream, ZipFile(stream) as archive:
            return StoreIndex.from_json(archive.comment)
    except (OSError, BadZipFile, NotImplementedError, ValueError, RecursionError):  # an archive of a later version
        return None
