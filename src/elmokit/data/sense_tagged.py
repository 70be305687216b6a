"""Sense-annotated sentences: the records that all readers of sense-tagged text yield."""

import re
from typing import NamedTuple

SEPARATOR = re.compile(r"[_\s]+")


class SenseInstance(NamedTuple):
    """A word, or several consecutive words, with a sense.

    Attributes:
        name: Unique name, such as "senseval2.d000.s000.t000"; for JSON lines, file, line and number in the line.
        lemma: The entry that the senses belong to: lemma and part of speech, "play%n", or in CoarseWSD the word.
        start: Index of the first word in the sentence.
        end: Index after the last word.
        senses: The correct senses; any of them counts as a correct answer.
    """

    name: str
    lemma: str
    start: int
    end: int
    senses: tuple[str, ...]


class SenseSentence(NamedTuple):
    """A tokenized sentence and its sense-annotated instances."""

    words: tuple[str, ...]
    instances: tuple[SenseInstance, ...]


def split_token(token: str) -> list[str]:
    """The words of a token that joins several with underscores or spaces, such as "primary_election"."""
    return [word for word in SEPARATOR.split(token) if word] or [token]
