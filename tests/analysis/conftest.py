"""A small language model with random weights."""

import pytest
import torch
from oracle import random_weights

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

VOCAB = ["<S>", "</S>", "<UNK>", "the", ".", "river", "money", "bank", "Bank", "lent", "tree", "42"]


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    torch.manual_seed(11)
    bilm = BiLM(BiLMConfig.preset("tiny"))
    random_weights(bilm, seed=3, scale=0.5)
    softmax = FullSoftmax(len(VOCAB), 16)
    model = Pretrained(bilm, softmax=softmax, vocab=Vocab(VOCAB), tokenizer="english-1")
    return Embedder(model, device="cpu")
