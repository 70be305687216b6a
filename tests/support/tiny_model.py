"""Models of the preset `tiny`, two layers of 2 x 16 dimensions, with random weights."""

from collections.abc import Iterable
from typing import Any

import torch

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab


def tiny_bilm(seed: int = 0) -> BiLM:
    torch.manual_seed(seed)
    return BiLM(BiLMConfig.preset("tiny"))


def tiny_model(words: Iterable[str] | None = None, seed: int = 0, **parts: Any) -> Pretrained:
    """A biLM; with words, a language model of these."""
    bilm = tiny_bilm(seed)
    if words is None:
        return Pretrained(bilm, **parts)
    vocab = Vocab([*Vocab.SPECIALS, *words])
    return Pretrained(bilm, softmax=FullSoftmax(len(vocab), 16), vocab=vocab, **parts)
