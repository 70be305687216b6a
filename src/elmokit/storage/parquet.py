"""Embeddings as rows of a table, a row for each line, and Parquet files of them (elmokit's extra
parquet).

tokens     list of strings
vectors    for each word a list of 2D numbers, or for all layers L+1 such lists; float32 or float16

Memory holds whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.fs import atomic_path, require_pyarrow
from elmokit.storage.store import EmbeddingStore

GROUP_BYTES = 1 << 26  # of a row group, which memory holds; a larger line is a row group of its own
ROW_BYTES = 64  # of a row besides its words and vectors


def vector_column(vectors: np.ndarray) -> Any:
    """An Arrow array with a list of fixed size, of one or more levels, for each of the vectors (N,
    ...).
    """
    arrow = require_pyarrow()
    column: Any = arrow.array(vectors.reshape(-1))
    for width in reversed(vectors.shape[1:]):
        column = arrow.FixedSizeListArray.from_arrays(column, width)
    return column


def embedding_columns(
    tokens: Sequence[Sequence[str]], vectors: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Arrow arrays of the words of lines and of their vectors.

    Args:
        tokens: The words of each line.
        vectors: For each line (T, 2D), or (T, L+1, 2D) for all layers; at least one.

    Returns:
        The columns `tokens` and `vectors`, with a row for each line.
    """
    arrow = require_pyarrow()
    offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
    words = arrow.array(list(chain.from_iterable(tokens)), arrow.string())
    columns = {"tokens": words, "vectors": vector_column(np.concatenate(vectors))}
    return {name: arrow.ListArray.from_arrays(offsets, values) for name, values in columns.items()}


def _groups(store: EmbeddingStore) -> Iterator[list[tuple[list[str], np.ndarray]]]:
    """The lines of a store, in row groups."""
    group, size = [], 0
    for tokens, vectors in store:
        row_bytes = ROW_BYTES + sum(map(len, tokens)) + vectors.nbytes
        if group and size + row_bytes > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append((tokens, vectors))
        size += row_bytes
    yield group


def write_parquet(store: EmbeddingStore, path: str | Path) -> None:
    """Write the rows of a complete store, atomically."""
    arrow = require_pyarrow()
    empty = np.zeros((0, *store.index.vector_shape), store.index.dtype)
    schema = arrow.table(embedding_columns([[]], [empty])).schema
    with (
        atomic_path(path) as partial,
        arrow.parquet.ParquetWriter(partial, schema, use_dictionary=False) as writer,
    ):
        for group in _groups(store):
            columns = embedding_columns(*zip(*group, strict=True))
            writer.write_table(arrow.table(columns, schema=schema))
