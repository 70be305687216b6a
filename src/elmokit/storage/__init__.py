"""Vectors on disk.

EmbeddingStore: a directory of vectors, read on demand
StoreIndex: its settings and counts
StoreWriter: writes one, shard by shard; resumes one that is incomplete
EXPORTS: writers of a store as one file, by suffix: .hdf5, .h5, .parquet, .npy
collate: stored sentences as a padded batch
embedding_columns: words and vectors as columns of Arrow
"""

from elmokit.storage.exports import EXPORTS, embedding_columns
from elmokit.storage.store import EmbeddingStore, StoreIndex, StoreWriter, collate

__all__ = [
    "EXPORTS",
    "EmbeddingStore",
    "StoreIndex",
    "StoreWriter",
    "collate",
    "embedding_columns",
]
