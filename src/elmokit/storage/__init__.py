"""Embeddings on disk: a directory of shards, and the HDF5, Parquet and NumPy files that are written
from it.
"""
