"""Uses of a word: its occurrences in tokenized sentences and in text files."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from heapq import heappush, heapreplace
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.data.text_files import file_tokenizers
from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import layer_weights
from elmokit.fs.reading import read_lines
from elmokit.progress import ProgressBar
from elmokit.text.characters import TruncationWarning, truncation_in
from elmokit.text.chunks import INVISIBLE
from elmokit.text.tokenizer import Tokenizer


class Use(NamedTuple):
    """An occurrence of a word: a tokenized sentence and the word's position in it, from 0."""

    sentence: tuple[str, ...]
    position: int

    def __str__(self) -> str:
        words = list(self.sentence)
        words[self.position] = f"[{words[self.position]}]"
        return " ".join(words)


def window(use: Use, around: int) -> Use:
    """The use with its sentence shortened to at most `around` words on each side."""
    start = max(0, use.position - around)
    return Use(use.sentence[start : use.position + around + 1], use.position - start)


def uses_of(word: str, sentence: Sequence[str]) -> list[Use]:
    """The uses of a word in a tokenized sentence: exact matches, or if there are none, matches regardless of case."""
    exact = [position for position, token in enumerate(sentence) if token == word]
    lowered = word.lower()
    positions = exact or [position for position, token in enumerate(sentence) if token.lower() == lowered]
    words = tuple(sentence)  # shared by all uses: copies, and their hashes, would grow with the square of the length
    return [Use(words, position) for position in positions]


def uses_in_each(word: str, sentences: Sequence[Sequence[str]]) -> list[Use]:
    """The uses of a word in all sentences. ValueError names the first sentence that lacks it."""
    uses = []
    for number, sentence in enumerate(sentences, start=1):
        in_sentence = uses_of(word, sentence)
        if not in_sentence:
            raise ValueError(f"sentence {number} has no word {word!r}; its words are: {' | '.join(sentence)}")
        uses += in_sentence
    return uses


def sentences_with(
    words: Sequence[str] | None,
    files: Sequence[Path],
    embedder: Embedder,
    tokenize: bool = True,
    *,
    tokenizers: Sequence[Tokenizer] | None = None,
    progress: bool = True,
    on_line: Callable[[], None] | None = None,
) -> Iterator[tuple[str, ...]]:
    """Stream the tokenized sentences of text files in which one of some words may occur.

    Args:
        words: The words; lines that contain none of them, in any case, are skipped. None: every sentence.
        files: Text files with one sentence per line.
        embedder: The embedder whose tokenizer splits raw lines.
        tokenize: Split raw lines with the tokenizer; else, and lines of `elmokit prepare`, at white space.
        tokenizers: The tokenizer of each file, by `file_tokenizers`; None: look for them.
        progress: Show a progress bar.
        on_line: Called for every line, also skipped ones; an exception that it raises ends the search.
    """
    if tokenizers is None:
        tokenizers = file_tokenizers(files, embedder.model.tokenizer, tokenize)
    lowered = None if words is None else [INVISIBLE.sub("", word.lower()) for word in words]
    lines = chain.from_iterable(
        zip(read_lines(file), repeat(each)) for file, each in zip(files, tokenizers, strict=True)
    )
    for line, tokenizer in ProgressBar(lines, "search", unit=" sentences", unit_scale=True, disable=not progress):
        if on_line is not None:
            on_line()
        # The tokenizer takes most of the time. It may remove invisible characters, such as soft hyphens, from words.
        if lowered is None or any(map(INVISIBLE.sub("", line.lower()).__contains__, lowered)):
            yield tuple(tokenizer.tokenize(line))


def uses_in_files(
    word: str | None,
    files: Sequence[Path],
    embedder: Embedder,
    tokenize: bool = True,
    *,
    tokenizers: Sequence[Tokenizer] | None = None,
    progress: bool = True,
    on_line: Callable[[], None] | None = None,
) -> Iterator[list[Use]]:
    """Stream the uses of a word in text files.

    Args:
        word: The word, matched as in `uses_of`; None for the uses of every word.
        files: As in `sentences_with`.
        embedder: As in `sentences_with`.
        tokenize: As in `sentences_with`.
        tokenizers: As in `sentences_with`.
        progress: As in `sentences_with`.
        on_line: As in `sentences_with`.

    Yields:
        The uses in each sentence that has any.
    """
    words = None if word is None else [word]
    options = {"tokenizers": tokenizers, "progress": progress, "on_line": on_line}
    for sentence in sentences_with(words, files, embedder, tokenize, **options):
        if word is None:
            uses = [Use(sentence, position) for position in range(len(sentence))]
        else:
            uses = uses_of(word, sentence)
        if uses:
            yield uses


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors (..., 2D) to unit length, so that dot products are cosines; zero vectors stay zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def vectors_of_uses(
    uses: Sequence[Use], embedder: Embedder, layers: str | int, check: Callable[[], None] | None = None
) -> np.ndarray:
    """Vectors of uses, (N, 2D), or with "all" every layer of each, (N, L+1, 2D).

    Each distinct sentence is embedded once. `check` is called after each batch of sentences; an exception that it
    raises ends the computation. Warns with a TruncationWarning if words are longer than the model reads.
    """
    numbers_in: dict[tuple[str, ...], list[int]] = {}
    previous, numbers = None, []
    for number, use in enumerate(uses):
        if use.sentence is not previous:  # hashing a sentence takes time in its length
            previous, numbers = use.sentence, numbers_in.setdefault(use.sentence, [])
        numbers.append(number)
    sentences, remaining = list(numbers_in), iter(numbers_in.values())
    truncated, vectors = 0, [np.empty(0)] * len(uses)
    for batch in embedder.embed_stream(sentences, layers, embedder.model.single_sentence_state):
        if check is not None:
            check()
        truncated += batch.truncated_words
        for embedding, numbers in zip(batch, remaining, strict=False):
            for number in numbers:
                # A copy, so that the vectors of other words are freed.
                vectors[number] = embedding[..., uses[number].position, :].copy()
    if truncated:
        message = truncation_in(sentences, embedder.count_truncated, embedder.word_limit)
        warnings.warn(message, TruncationWarning, stacklevel=3)
    return np.stack(vectors)


def use_vectors(uses: Sequence[Use], embedder: Embedder, layers: str | int) -> np.ndarray:
    """Unit vectors of uses, (N, 2D). ValueError where `layers` is not one representation."""
    layer_weights(embedder.model, layers)
    return unit_vectors(vectors_of_uses(uses, embedder, layers))


class UseSample:
    """A uniform random sample of the distinct ones among uses that are added one by one.

    It keeps the uses with the smallest hashes of seed and use. The sample does not depend on the order of the uses, nor
    on how often one is repeated; memory holds the sample alone.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.count = 0
        self._kept: dict[int, Use] = {}  # by negated hash: hashing the tuple takes time in the length of its sentence
        self._largest_first: list[int] = []  # a heap of negated hashes
        self._sentence: tuple[str, ...] | None = None  # of the last use
        self._hashed = blake2b(digest_size=16)  # the seed and that sentence

    def add(self, use: Use) -> None:
        """Add a use. A repeated one is counted, but kept once."""
        self.count += 1
        entry = -self._hash(use)
        if entry in self._kept:
            return
        if len(self._kept) < self.size:
            heappush(self._largest_first, entry)
        elif entry > self._largest_first[0]:
            del self._kept[heapreplace(self._largest_first, entry)]
        else:
            return
        self._kept[entry] = use

    def _hash(self, use: Use) -> int:
        """Hash of `repr((seed, sentence, position))`; successive uses of a sentence share the hash of its beginning."""
        if use.sentence is not self._sentence:
            self._sentence = use.sentence
            self._hashed = blake2b(f"({self.seed!r}, {use.sentence!r}, ".encode(), digest_size=16)
        hashed = self._hashed.copy()
        hashed.update(f"{use.position!r})".encode())
        return int.from_bytes(hashed.digest(), "big")

    @property
    def uses(self) -> list[Use]:
        """The sample, in the order in which its uses were first added."""
        return list(self._kept.values())


def sample_uses(uses: Iterable[Use], size: int, seed: int) -> tuple[list[Use], int]:
    """A `UseSample` of up to `size` uses, in corpus order, and the total number of uses."""
    sample = UseSample(size, seed)
    for use in uses:
        sample.add(use)
    return sample.uses, sample.count
