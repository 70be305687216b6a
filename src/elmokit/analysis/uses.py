"""A word where it is used: its place in sentences, and how alike its vectors are."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from elmokit.config import StatePolicy
from elmokit.embed.embedder import Embedder
from elmokit.fs.reading import read_lines


class Use(NamedTuple):
    """One word of one sentence."""

    sentence: tuple[str, ...]
    position: int

    def __str__(self) -> str:
        words = list(self.sentence)
        words[self.position] = f"[{words[self.position]}]"
        return " ".join(words)


def uses_of(word: str, sentence: Sequence[str]) -> list[Use]:
    """Every use of the word in a tokenized sentence: as it is spelled, or else whatever its case."""
    exact = [position for position, token in enumerate(sentence) if token == word]
    lowered = word.lower()
    alike = exact or [position for position, token in enumerate(sentence) if token.lower() == lowered]
    return [Use(tuple(sentence), position) for position in alike]


def uses_in_every(word: str, sentences: Sequence[Sequence[str]]) -> list[Use]:
    """The uses of the word in all sentences. ValueError naming the first sentence that lacks it."""
    uses = []
    for number, sentence in enumerate(sentences, start=1):
        found = uses_of(word, sentence)
        if not found:
            raise ValueError(f"sentence {number} has no word {word!r}; its words are: {' | '.join(sentence)}")
        uses += found
    return uses


def uses_in_files(word: str | None, files: Iterable[Path], embedder: Embedder) -> Iterator[list[Use]]:
    """The uses of the word (of every word where it is None) in each sentence of text files that has some, streamed.

    A sentence is a line, which the embedder's tokenizer splits.
    """
    lines = chain.from_iterable(map(read_lines, files))
    for line in tqdm(lines, desc="search", unit=" sentences", unit_scale=True, disable=None):
        if word is not None and word.lower() not in line.lower():
            continue  # before the work of splitting it
        sentence = tuple(embedder.tokenize(line))
        uses = uses_of(word, sentence) if word else [Use(sentence, position) for position in range(len(sentence))]
        if uses:
            yield uses


def of_length_one(vectors: np.ndarray) -> np.ndarray:
    """(..., 2D) -> (..., 2D), so that a dot product is a cosine."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def state_of_single_sentences(embedder: Embedder) -> StatePolicy:
    """The model's own policy, except that no sentence may depend on the one before."""
    policy = embedder.model.state_policy
    return "zeros" if policy == "carry" else policy
