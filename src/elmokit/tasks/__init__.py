"""Downstream models on contextual word vectors."""
