"""Embeddings on disk: a directory of shards, or the HDF5 of older systems."""
