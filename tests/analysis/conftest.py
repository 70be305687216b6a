"""A small language model with random weights."""

import pytest
from oracle import random_weights
from tiny_model import tiny_model

from elmokit.embed.embedder import Embedder

WORDS = ["the", ".", "river", "money", "bank", "Bank", "lent", "tree", "42"]


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    model = tiny_model(WORDS, seed=11, tokenizer="english-1")
    random_weights(model.bilm, seed=3, scale=0.5)
    return Embedder(model, device="cpu")
