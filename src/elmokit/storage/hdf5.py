"""Embeddings in HDF5, written from a complete store: in AllenNLP's layout, or by the names of
sentences.

AllenNLP's layout has a float32 dataset for each line, named by its number from "0": (L+1, T, 2D)
for all layers, (T, 2D) for one layer or a mix; and a dataset `sentence_to_index`: one JSON string
that maps each sentence, its words separated by spaces, to the number of its last line, as a string.
To write it, all distinct sentences are held in memory. The layout by names has a dataset for each
name and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import h5py

from elmokit.fs import atomic_path
from elmokit.storage.store import EmbeddingStore


def write_allennlp_hdf5(store: EmbeddingStore, path: Path) -> None:
    """Write the layout of `allennlp elmo`, atomically."""
    with atomic_path(path) as partial, h5py.File(partial, "w") as file:
        line_of = {}
        for line, (words, vectors) in enumerate(store):
            file[str(line)] = vectors.swapaxes(0, -2).astype("float32")
            line_of[" ".join(words)] = str(line)
        text = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype("utf-8"))
        text[0] = json.dumps(line_of)


def write_named_hdf5(
    store: EmbeddingStore, path: Path, lines: Mapping[str, int], pooled: bool = False
) -> None:
    """Write a dataset for each name, atomically, in the number type of the store; "/" in a name
    makes a group.

    Args:
        store: A complete store.
        path: The file.
        lines: The number of the line in the store for each name.
        pooled: Each line of the store has one vector: write it as (2D,), not (1, 2D).
    """
    with atomic_path(path) as partial, h5py.File(partial, "w") as file:
        for name, line in lines.items():
            vectors = store.vectors(line)
            file[name] = vectors[0] if pooled else vectors.swapaxes(0, -2)
