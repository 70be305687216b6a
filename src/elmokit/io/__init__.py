"""Bytes to objects and back: weights, foreign formats, embeddings on disk."""
