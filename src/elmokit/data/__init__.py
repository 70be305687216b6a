"""Corpora, token streams, text preparation, and readers of annotated data."""
