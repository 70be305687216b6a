"""Uses of a word: its occurrences in tokenized sentences and in text files."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.config import StatePolicy
from elmokit.data.text_files import file_tokenizers
from elmokit.embed.embedder import Embedder
from elmokit.fs.reading import read_lines
from elmokit.progress import ProgressBar


class Use(NamedTuple):
    """An occurrence of a word: a tokenized sentence and the word's position in it, from 0."""

    sentence: tuple[str, ...]
    position: int

    def __str__(self) -> str:
        words = list(self.sentence)
        words[self.position] = f"[{words[self.position]}]"
        return " ".join(words)


def uses_of(word: str, sentence: Sequence[str]) -> list[Use]:
    """The uses of a word in a tokenized sentence: exact matches, or if there are none, matches regardless of case."""
    exact = [position for position, token in enumerate(sentence) if token == word]
    lowered = word.lower()
    positions = exact or [position for position, token in enumerate(sentence) if token.lower() == lowered]
    return [Use(tuple(sentence), position) for position in positions]


def uses_in_each(word: str, sentences: Sequence[Sequence[str]]) -> list[Use]:
    """The uses of a word in all sentences. ValueError names the first sentence that lacks it."""
    uses = []
    for number, sentence in enumerate(sentences, start=1):
        in_sentence = uses_of(word, sentence)
        if not in_sentence:
            raise ValueError(f"sentence {number} has no word {word!r}; its words are: {' | '.join(sentence)}")
        uses += in_sentence
    return uses


def uses_in_files(
    word: str | None, files: Sequence[Path], embedder: Embedder, tokenize: bool = True, *, progress: bool = True
) -> Iterator[list[Use]]:
    """Stream the uses of a word in text files.

    Args:
        word: The word, matched as in `uses_of`; None for the uses of every word.
        files: Text files with one sentence per line.
        embedder: Its tokenizer splits raw lines.
        tokenize: Whether text is raw, unless `elmokit prepare` wrote it; else lines are split at white space.
        progress: Show how many sentences were read.

    Yields:
        The uses in each sentence that has any.
    """
    tokenizers = file_tokenizers(files, embedder.model.tokenizer, tokenize, by_line=True)
    lines = chain.from_iterable(
        zip(read_lines(file), repeat(each)) for file, each in zip(files, tokenizers, strict=True)
    )
    for line, tokenizer in ProgressBar(lines, "search", unit=" sentences", unit_scale=True, disable=not progress):
        if word is not None and word.lower() not in line.lower():
            continue  # skip the tokenizer, which takes most of the time
        sentence = tuple(tokenizer.tokenize(line))
        uses = uses_of(word, sentence) if word else [Use(sentence, position) for position in range(len(sentence))]
        if uses:
            yield uses


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors (..., 2D) to unit length, so that dot products are cosines; zero vectors stay zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def single_sentence_state(embedder: Embedder) -> StatePolicy:
    """The model's state policy, or "zeros" if that carries state from one sentence to the next."""
    policy = embedder.model.state_policy
    return "zeros" if policy == "carry" else policy


def use_vectors(uses: Sequence[Use], embedder: Embedder, layers: str | int) -> np.ndarray:
    """Unit vectors of uses, (N, 2D); each distinct sentence is embedded once."""
    sentences = list(dict.fromkeys(use.sentence for use in uses))
    embeddings = embedder.embed(sentences, layers, single_sentence_state(embedder))
    vectors = dict(zip(sentences, embeddings, strict=True))
    return unit_vectors(np.stack([vectors[use.sentence][use.position] for use in uses]))


def sample_uses(uses: Iterable[Use], size: int, seed: int) -> tuple[list[Use], int]:
    """Reservoir sampling (algorithm R): up to `size` distinct uses in corpus order, and the total number of uses."""
    random, count = np.random.default_rng(seed), 0
    reservoir: list[tuple[int, Use]] = []
    for count, use in enumerate(uses, start=1):
        if len(reservoir) < size:
            reservoir.append((count, use))
        elif (slot := random.integers(count)) < size:
            reservoir[slot] = count, use
    in_order = sorted(reservoir, key=lambda numbered: numbered[0])
    return list(dict.fromkeys(use for _, use in in_order)), count
