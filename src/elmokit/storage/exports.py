"""The vectors of a complete store as one file: AllenNLP's HDF5, Parquet, or NumPy's.

All are written atomically, a few lines at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from elmokit.extras import import_extra
from elmokit.fs import atomic_path
from elmokit.storage.store import EmbeddingStore

GROUP_BYTES = 1 << 26  # bytes per row group, held in memory; a larger line is one row group
ROW_BYTES = 64  # bytes per row besides words and vectors


def write_hdf5(store: EmbeddingStore, path: Path) -> None:
    """Write the layout of `allennlp elmo`.

    It has a float32 dataset for each line, named by its number from "0": (L+1, T, 2D) for all
    layers, (T, 2D) for one; and a dataset `sentence_to_index`: one JSON string that maps each
    sentence, its words separated by spaces, to the number of its last line, as a string. Memory
    holds all distinct sentences.
    """
    line_of = {}
    with atomic_path(path) as partial, h5py.File(partial, "w") as file:
        for line, (words, vectors) in enumerate(store):
            file[str(line)] = vectors.swapaxes(0, -2).astype("float32")
            line_of[" ".join(words)] = str(line)
        text = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype("utf-8"))
        text[0] = json.dumps(line_of)


def write_npy(store: EmbeddingStore, path: Path) -> None:
    """Write (lines, 2D) float32, for a store with one vector a line."""
    shape = (len(store), *store.index.vector_shape)
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    with atomic_path(path) as partial, partial.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for line in range(len(store)):
            stream.write(store.vectors(line).astype("<f4").tobytes())


# --- Parquet (elmokit's extra parquet) ------------------------------------------------------------


def embedding_columns(
    tokens: Sequence[Sequence[str]], vectors: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Arrow arrays of the words of lines and of their vectors.

    Args:
        tokens: The words of each line.
        vectors: For each line (T, 2D), or (T, L+1, 2D) for all layers; at least one.

    Returns:
        The columns, with a row for each line: `tokens`, lists of strings; and `vectors`, for each
        word a list of 2D numbers, or for all layers L+1 such lists.
    """
    arrow = import_extra("pyarrow", "parquet")
    all_vectors = np.concatenate(vectors)
    column: Any = arrow.array(all_vectors.reshape(-1))
    for width in reversed(all_vectors.shape[1:]):
        column = arrow.FixedSizeListArray.from_arrays(column, width)
    words = arrow.array(list(chain.from_iterable(tokens)), arrow.string())
    offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
    as_lists = arrow.ListArray.from_arrays
    return {"tokens": as_lists(offsets, words), "vectors": as_lists(offsets, column)}


def write_parquet(store: EmbeddingStore, path: Path) -> None:
    """Write a row for each line, with the columns of `embedding_columns`."""
    arrow = import_extra("pyarrow", "parquet")
    parquet = import_extra("pyarrow.parquet", "parquet")
    shape = 0, *store.index.vector_shape
    empty = np.zeros(shape, store.index.dtype)
    schema = arrow.table(embedding_columns([[]], [empty])).schema
    with (
        atomic_path(path) as partial,
        parquet.ParquetWriter(partial, schema, use_dictionary=False) as writer,
    ):

        def write(group: list[tuple[list[str], np.ndarray]]) -> None:
            tokens, vectors = zip(*group, strict=True)
            writer.write_table(arrow.table(embedding_columns(tokens, vectors), schema=schema))

        group = []
        size = 0
        for tokens, vectors in store:
            row_bytes = ROW_BYTES + sum(map(len, tokens)) + vectors.nbytes
            if group and size + row_bytes > GROUP_BYTES:
                write(group)
                group = []
                size = 0
            group.append((tokens, vectors))
            size += row_bytes
        write(group)


EXPORTS = {
    ".hdf5": write_hdf5,
    ".h5": write_hdf5,
    ".parquet": write_parquet,
    ".npy": write_npy,
}
