"""Uses of a word in tokenized sentences and in text files, their vectors, and those of annotated sentences."""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from elmokit.data.text_files import file_tokenizers
from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import layer_weights
from elmokit.fs.reading import read_lines
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy
from elmokit.text.characters import TruncationWarning, truncation_in
from elmokit.text.tokenizer import INVISIBLE, Tokenizer

WORDS_AROUND = 200  # a sentence may be a whole document, which each use in it would repeat in JSON


class Use(NamedTuple):
    """An occurrence of a word: a tokenized sentence and the word's position in it, from 0."""

    sentence: tuple[str, ...]
    position: int

    @property
    def word(self) -> str:
        """The word as it is written there."""
        return self.sentence[self.position]

    def __str__(self) -> str:
        words = list(self.sentence)
        words[self.position] = f"[{self.word}]"
        return " ".join(words)

    def window(self, around: int) -> "Use":
        """The use with its sentence shortened to at most `around` words on each side."""
        start = max(0, self.position - around)
        return Use(self.sentence[start : self.position + around + 1], self.position - start)

    def to_json(self) -> dict[str, Any]:
        """Up to `WORDS_AROUND` words on either side of the use, and its position among them."""
        words, position = self.window(WORDS_AROUND)
        return {"words": list(words), "position": position}


def uses_of(word: str, sentence: Sequence[str]) -> list[Use]:
    """The uses of a word in a tokenized sentence: exact matches, or if there are none, matches regardless of case."""
    exact = [position for position, token in enumerate(sentence) if token == word]
    lowered = word.lower()
    positions = exact or [position for position, token in enumerate(sentence) if token.lower() == lowered]
    words = tuple(sentence)
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
    for file, tokenizer in zip(files, tokenizers, strict=True):
        for line in ProgressBar(read_lines(file), "search", unit=" sentences", unit_scale=True, disable=not progress):
            if on_line is not None:
                on_line()
            # The tokenizer takes most of the time. It may remove invisible characters from words, as soft hyphens.
            if lowered is None or any(map(INVISIBLE.sub("", line.lower()).__contains__, lowered)):
                yield tuple(tokenizer.tokenize(line))


def uses_in_files(
    word: str | None, files: Sequence[Path], embedder: Embedder, tokenize: bool = True, **options: Any
) -> Iterator[list[Use]]:
    """Stream the uses of a word in each sentence of text files that has any; arguments as in `sentences_with`.

    The word is matched as in `uses_of`; None: every word.
    """
    for sentence in sentences_with(None if word is None else [word], files, embedder, tokenize, **options):
        every = range(len(sentence)) if word is None else ()
        if uses := [Use(sentence, position) for position in every] if word is None else uses_of(word, sentence):
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
    for number, use in enumerate(uses):
        numbers_in.setdefault(use.sentence, []).append(number)
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
    on how often one is repeated; memory holds twice the sample at most.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.count = 0
        self._kept: dict[bytes, Use] = {}  # by hash, at most twice as many as the sample

    def add(self, use: Use) -> None:
        """Add a use. A repeated one is counted, but kept once."""
        self.count += 1
        self._kept.setdefault(blake2b(repr((self.seed, *use)).encode(), digest_size=16).digest(), use)
        if len(self._kept) > 2 * self.size:
            self._kept = self._smallest()

    def _smallest(self) -> dict[bytes, Use]:
        largest = sorted(self._kept)[: self.size][-1:]
        return {key: use for key, use in self._kept.items() if [key] <= largest}

    @property
    def uses(self) -> list[Use]:
        """The sample, in the order in which its uses were first added."""
        return list(self._smallest().values())


def sample_uses(uses: Iterable[Use], size: int, seed: int) -> tuple[list[Use], int]:
    """A `UseSample` of up to `size` uses, in corpus order, and the total number of uses."""
    sample = UseSample(size, seed)
    for use in uses:
        sample.add(use)
    return sample.uses, sample.count


# --- All layers of annotated sentences -------------------------------------------------------------------------------

Item = TypeVar("Item")


def all_layers(
    items: Iterable[Item],
    words_of: Callable[[Item], Sequence[str]],
    embedder: Embedder,
    state: StatePolicy | None = None,
) -> Iterator[tuple[Item, np.ndarray]]:
    """Pair each annotated sentence with all layers of its words; memory holds one batch of sentences at a time.

    Args:
        items: Annotated sentences of any type.
        words_of: Returns the T tokens of an item.
        embedder: The model.
        state: Initial state of a sentence: "zeros", "warm", or "carry" (the final state of the sentence before);
            the model's policy by default.

    Yields:
        The items in order, each with its layers, (L+1, T, 2D) float32. Words longer than the model reads are counted in
        a TruncationWarning at the end.
    """
    pending: deque[Item] = deque()
    truncated = 0

    def sentences() -> Iterator[Sequence[str]]:
        for item in items:
            pending.append(item)
            yield words_of(item)

    for batch in embedder.embed_stream(sentences(), "all", state):
        truncated += batch.truncated_words
        for layers in batch:
            yield pending.popleft(), layers
    if truncated:
        warnings.warn(f"{truncated} words are too long and are cut", TruncationWarning, stacklevel=2)
