"""Embeddings on disk: a directory of shards, and the HDF5, Parquet and NumPy files that are written
from it.
"""

from elmokit.storage.batches import collate
from elmokit.storage.hdf5 import write_allennlp_hdf5, write_named_hdf5
from elmokit.storage.npy import write_npy, write_npz
from elmokit.storage.parquet import embedding_columns, vector_column, write_parquet
from elmokit.storage.shard import nothing_overflows
from elmokit.storage.store import (
    INDEX_NAME,
    OWN_FILES,
    EmbeddingStore,
    StoreIndex,
    begin_store,
    finish_store,
    read_index,
    write_shard,
)

__all__ = [
    "INDEX_NAME",
    "OWN_FILES",
    "EmbeddingStore",
    "StoreIndex",
    "begin_store",
    "collate",
    "embedding_columns",
    "finish_store",
    "nothing_overflows",
    "read_index",
    "vector_column",
    "write_allennlp_hdf5",
    "write_named_hdf5",
    "write_npy",
    "write_npz",
    "write_parquet",
    "write_shard",
]
