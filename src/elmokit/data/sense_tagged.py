"""Sentences in which words are marked with their senses: the records that every reader of sense-tagged text yields."""

import re
from typing import NamedTuple

JOINED = re.compile(r"[_\s]+")


class SenseInstance(NamedTuple):
    """A word, or several in a row, whose sense is known or asked for."""

    name: str
    """Of the instance, unique in its data set, such as "senseval2.d000.s000.t000"."""
    lemma: str
    """The entry that its senses are listed under: lemma and part of speech, "play%n", or in CoarseWSD the word."""
    start: int
    end: int
    """Its words are words[start:end] of the sentence."""
    senses: tuple[str, ...]
    """Any of them is right."""


class SenseSentence(NamedTuple):
    """A tokenized sentence and the instances in it."""

    words: tuple[str, ...]
    instances: tuple[SenseInstance, ...]


def split_token(token: str) -> list[str]:
    """The words of a token, which joins several with underscores or spaces, as in "primary_election"."""
    return [word for word in JOINED.split(token) if word] or [token]
