"""Warnings about behavior that the original libraries did not report."""

import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np

from elmokit.text.characters import count_truncated, encode_sentences


@cache
def warn_once(message: str) -> None:
    """Issue a UserWarning; each message is issued once per process."""
    warnings.warn(message, UserWarning, stacklevel=3)


def encode_with_notices(sentences: Sequence[Sequence[str]], max_characters: int, library: str) -> np.ndarray:
    """Tokenized sentences -> character ids (B, T, `max_characters`) int64, with the two warnings below."""
    warn_of_strings(sentences)
    warn_of_truncated(chain.from_iterable(sentences), max_characters, library)
    return encode_sentences(sentences, max_characters).astype(np.int64)


def warn_of_strings(sentences: Iterable[Any]) -> None:
    """Warn if a sentence is a string instead of a list of tokens: the libraries read its characters as tokens."""
    if any(isinstance(sentence, str) for sentence in sentences):
        warn_once("a sentence is a string instead of a list of tokens: each of its characters is read as a token")


def warn_of_truncated(words: Iterable[str], max_characters: int, library: str) -> None:
    """Warn if words are longer than a model reads, whose `max_characters` include the two marks around a word."""
    if count_truncated(list(words), max_characters):
        limit = max_characters - 2
        warn_once(f"some words have more than {limit} bytes: as in {library}, only the first {limit} are read")
