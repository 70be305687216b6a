"""Sentences of a text. Needs only the standard library, since two_versions.py runs it with another
elmokit.
"""

from __future__ import annotations

from pathlib import Path


def first_sentences(
    text: Path, sentences: int | None = None, words: int | None = None
) -> list[list[str]]:
    """Sentences from the beginning of a text, without blank lines.

    Args:
        text: Tokenized, one sentence per line.
        sentences: The largest number of sentences.
        words: Stop after the sentence in which this number of words is reached.
    """
    chosen: list[list[str]] = []
    total = 0
    with text.open(encoding="utf-8") as lines:
        for sentence in filter(None, map(str.split, lines)):
            if len(chosen) == sentences or (words is not None and total >= words):
                break
            chosen.append(sentence)
            total += len(sentence)
    return chosen
