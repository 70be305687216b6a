"""Embeddings in the HDF5 layouts of AllenNLP and bilm-tf, written from a finished directory of embeddings.

Both keep one float32 dataset a line, named by the line's number from "0": (L+1, T, 2D) for all layers. AllenNLP writes
(T, 2D) where one layer or a mix was asked for, and beside the lines a dataset `sentence_to_index`: one JSON string that
maps a sentence, its words joined by single spaces, to its line's number (a string). Where a sentence occurs twice,
AllenNLP keeps the last line only, and so does this; the lines themselves are all there. That one string is the limit
of the layout: all distinct sentences are held in memory to write it.
"""

import json
from pathlib import Path

import h5py
import numpy as np

from elmokit.fs.atomic import atomic_path
from elmokit.storage.store import EmbeddingStore

ROWS_AT_ONCE = 4096


def _write_line(file: h5py.File, store: EmbeddingStore, line: int) -> None:
    """One dataset, of which a stretch of words is in memory."""
    length, shape = store.length(line), store.index.vector_shape
    dataset = file.create_dataset(str(line), (*shape[:-1], length, shape[-1]), dtype="float32")
    for begin in range(0, length, ROWS_AT_ONCE):
        rows = slice(begin, min(begin + ROWS_AT_ONCE, length))
        vectors = store.vectors(line, rows)
        dataset[..., rows, :] = np.moveaxis(vectors, 0, 1) if vectors.ndim == 3 else vectors


def write_allennlp_hdf5(store: EmbeddingStore, path: str | Path) -> None:
    """Write the layout of `allennlp elmo`; the file appears whole or not at all."""
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        line_of = {}
        for line in range(len(store)):
            _write_line(file, store, line)
            line_of[" ".join(store.words(line))] = str(line)
        text = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype("utf-8"))
        text[0] = json.dumps(line_of)


def write_bilm_tf_hdf5(store: EmbeddingStore, path: str | Path) -> None:
    """Write the layout of bilm-tf's `dump_bilm_embeddings`, which has all layers; whole or not at all."""
    if store.index.layers != "all":
        raise ValueError(f"bilm-tf's layout holds all layers, and {store.directory} only {store.index.layers!r}")
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        for line in range(len(store)):
            _write_line(file, store, line)
