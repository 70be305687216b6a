"""Embeddings in HDF5, written from a complete store: in AllenNLP's layout, or by the names of sentences.

AllenNLP's layout has a float32 dataset for each line, named by its number from "0": (L+1, T, 2D) for all layers,
(T, 2D) for one layer or a mix; and a dataset `sentence_to_index`: one JSON string that maps each sentence, its words
separated by spaces, to the number of its last line, as a string. To write it, all distinct sentences are held in
memory. The layout by names has a dataset for each name and nothing else. The attribute `elmokit` of either file is the
index of the store, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import h5py
import numpy as np

from elmokit.fs.hdf5 import atomic_hdf5
from elmokit.storage.store import EmbeddingStore, StoreIndex

CHUNK_ROWS = 4096
INDEX_ATTRIBUTE = "elmokit"


def _write_line(file: h5py.File, name: str, store: EmbeddingStore, line: int, dtype: str = "float32") -> None:
    """Write the dataset of a line, a chunk of words at a time."""
    length, shape = store.length(line), store.index.vector_shape
    dataset = file.create_dataset(name, (*shape[:-1], length, shape[-1]), dtype=dtype)
    for begin in range(0, length, CHUNK_ROWS):
        rows = slice(begin, min(begin + CHUNK_ROWS, length))
        vectors = store.vectors(line, rows)
        dataset[..., rows, :] = np.moveaxis(vectors, 0, 1) if vectors.ndim == 3 else vectors


def write_allennlp_hdf5(store: EmbeddingStore, path: str | Path) -> None:
    """Write the layout of `allennlp elmo`, atomically."""
    with atomic_hdf5(path) as file:
        line_of = {}
        for line in range(len(store)):
            _write_line(file, str(line), store, line)
            line_of[" ".join(store.words(line))] = str(line)
        text = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype("utf-8"))
        text[0] = json.dumps(line_of)
        file.attrs[INDEX_ATTRIBUTE] = store.index.to_json()


def check_hdf5_names(names: Iterable[str]) -> None:
    """ValueError if HDF5, in which "/" separates groups, takes two names for one, or one for a group of another."""
    name_of: dict[tuple[str, ...], str] = {}
    for name in names:
        path = tuple(part for part in name.split("/") if part not in ("", "."))
        if not path or path in name_of:
            raise ValueError(f"{name!r} cannot name a dataset of HDF5, or is the same as another: write .npz")
        name_of[path] = name
    for path, name in name_of.items():
        for end in range(1, len(path)):
            if path[:end] in name_of:
                raise ValueError(
                    f"{name_of[path[:end]]!r} would be both a dataset and a group with {name!r}: write .npz"
                )


def write_named_hdf5(store: EmbeddingStore, path: str | Path, lines: Mapping[str, int], pooled: bool = False) -> None:
    """Write a dataset for each name, atomically, in the number type of the store.

    Args:
        store: A complete store.
        path: The file.
        lines: The number of the line in the store for each name; `check_hdf5_names` has accepted the names.
        pooled: Each line of the store has one vector: write it as (2D,), not (1, 2D).
    """
    with atomic_hdf5(path) as file:
        for name, line in lines.items():
            if pooled:
                file[name] = store.vectors(line)[0]
            else:
                _write_line(file, name, store, line, store.index.dtype)
        file.attrs[INDEX_ATTRIBUTE] = store.index.to_json()


def read_hdf5_index(path: Path) -> StoreIndex | None:
    """The index in a file that a function of this module wrote; None for any other file."""
    try:
        if not path.is_file():
            return None
        with h5py.File(path) as file:
            return StoreIndex.from_json(str(file.attrs[INDEX_ATTRIBUTE]))
    except (OSError, RuntimeError, KeyError, ValueError, RecursionError):
        return None
