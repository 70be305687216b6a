"""Embeddings on disk."""
