"""Embeddings in AllenNLP's HDF5 layout, written from a complete store.

It has a float32 dataset for each line, named by its number from "0": (L+1, T, 2D) for all layers, (T, 2D) for one layer
or a mix; and a dataset `sentence_to_index`: one JSON string that maps a sentence, its words
separated by spaces, to the number of its line (a string), the last one if it occurs twice. To write that string, all
distinct sentences are held in memory. The attribute `elmokit` of the file is the index of the store, as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np

from elmokit.fs.hdf5 import atomic_hdf5
from elmokit.fs.json_files import from_json
from elmokit.storage.store import EmbeddingStore, StoreIndex

CHUNK_ROWS = 4096
INDEX_ATTRIBUTE = "elmokit"


def _write_line(file: h5py.File, store: EmbeddingStore, line: int) -> None:
    """Write the dataset of a line, a chunk of words at a time."""
    length, shape = store.length(line), store.index.vector_shape
    dataset = file.create_dataset(str(line), (*shape[:-1], length, shape[-1]), dtype="float32")
    for begin in range(0, length, CHUNK_ROWS):
        rows = slice(begin, min(begin + CHUNK_ROWS, length))
        vectors = store.vectors(line, rows)
        dataset[..., rows, :] = np.moveaxis(vectors, 0, 1) if vectors.ndim == 3 else vectors


def write_allennlp_hdf5(store: EmbeddingStore, path: str | Path) -> None:
    """Write the layout of `allennlp elmo`, atomically."""
    with atomic_hdf5(path) as file:
        line_of = {}
        for line in range(len(store)):
            _write_line(file, store, line)
            line_of[" ".join(store.words(line))] = str(line)
        text = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype("utf-8"))
        text[0] = json.dumps(line_of)
        file.attrs[INDEX_ATTRIBUTE] = json.dumps(asdict(store.index))


def read_hdf5_index(path: Path) -> StoreIndex | None:
    """The index in a file that `write_allennlp_hdf5` wrote; None for any other file."""
    try:
        if not path.is_file():
            return None
        with h5py.File(path) as file:
            return from_json(StoreIndex, json.loads(str(file.attrs[INDEX_ATTRIBUTE])))
    except (OSError, RuntimeError, KeyError, ValueError, RecursionError):
        return None
