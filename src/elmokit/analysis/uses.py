"""Uses of a word in tokenized sentences and in text files, their vectors, and those of annotated
sentences.
"""

import re
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from elmokit.data import file_tokenizers
from elmokit.embed import Embedder
from elmokit.fs import read_lines
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy
from elmokit.text import INVISIBLE, Tokenizer, TruncationWarning, truncation_in

FORM_SEPARATOR = re.compile(r"(?<!\d),|,(?!\d)")  # a comma, but not that of 1,000
WORDS_AROUND = 200  # a sentence may be a whole document, which each use in it would repeat in JSON


class Use(NamedTuple):
    """An occurrence of a word, or of a phrase of `length` words: a tokenized sentence and its
    position, from 0.
    """

    sentence: tuple[str, ...]
    position: int
    length: int = 1

    @property
    def stop(self) -> int:
        """The position after it."""
        return self.position + self.length

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the occurrence, one or those of a phrase."""
        return self.sentence[self.position : self.stop]

    @property
    def word(self) -> str:
        """The word or phrase as it is written there."""
        return " ".join(self.words)

    def __str__(self) -> str:
        return " ".join(
            [*self.sentence[: self.position], f"[{self.word}]", *self.sentence[self.stop :]]
        )

    def window(self, around: int) -> "Use":
        """The use with its sentence shortened to at most `around` words on each side."""
        start = max(0, self.position - around)
        return Use(self.sentence[start : self.stop + around], self.position - start, self.length)

    def to_json(self) -> dict[str, Any]:
        """Up to `WORDS_AROUND` words on either side of the use, its position among them, and its
        number of words.
        """
        words, position, length = self.window(WORDS_AROUND)
        return {"words": list(words), "position": position, "length": length}


@dataclass(frozen=True)
class WordForms:
    """What counts as a use of a word: any of its forms, each a single word or a phrase of several.

    Attributes:
        name: The name of the word in results.
        forms: The words of each form.
    """

    name: str
    forms: frozenset[tuple[str, ...]]

    @staticmethod
    def of(word: "Word", split: Callable[[str], Sequence[str]] = str.split) -> "WordForms":
        """From what a user gives.

        Args:
            word: A word or phrase, several forms separated by commas, or a list of forms (which may
                have commas).
            split: The tokenizer of the text. A form is looked for as it splits it, and as it is
                between white space.
        """
        if isinstance(word, WordForms):
            return word
        texts = (
            ([text for text in FORM_SEPARATOR.split(word) if text] or [word])
            if isinstance(word, str)
            else word
        )
        forms = {tuple(way(text)) for text in texts for way in (str.split, split)}
        return WordForms(word if isinstance(word, str) else texts[0], frozenset(forms - {()}))


Word = str | Sequence[str] | WordForms


def read_lemmas(table: Path) -> dict[str, list[str]]:
    """The forms of each lemma, and the lemma itself, from lines of a form, a tab and its lemma."""
    forms: dict[str, list[str]] = {}
    for line in read_lines(table):
        if line.strip():
            form, _, lemma = line.strip().partition("\t")
            if not lemma or "\t" in lemma:
                raise ValueError(
                    f"{table} must have a form, a tab and its lemma on each line, not {line[:60]!r}"
                )
            forms.setdefault(lemma, [lemma]).append(form)
    return forms


def _runs(
    sentence: tuple[str, ...], words: Sequence[str], forms: Collection[tuple[str, ...]]
) -> list[Use]:
    """The places of forms among words, from left to right, at each the longest."""
    first, longest = {form[0] for form in forms}, max(map(len, forms), default=0)
    uses, stop = [], 0
    for position, word in enumerate(words):
        if word in first and position >= stop:
            runs = (tuple(words[position : position + length]) for length in range(longest, 0, -1))
            if length := next((len(run) for run in runs if run in forms), 0):
                uses.append(Use(sentence, position, length))
                stop = position + length
    return uses


def uses_of(word: Word | None, sentence: Sequence[str]) -> list[Use]:
    """The uses of a word in a tokenized sentence: exact matches, or if there are none, matches
    regardless of case.

    Those of every word, if `word` is None.
    """
    words = tuple(sentence)
    if word is None:
        return [Use(words, position) for position in range(len(words))]
    forms = WordForms.of(word).forms
    if exact := _runs(words, words, forms):
        return exact
    return _runs(
        words, list(map(str.lower, words)), {tuple(map(str.lower, form)) for form in forms}
    )


def uses_in_each(word: Word, sentences: Sequence[Sequence[str]]) -> list[Use]:
    """The uses of a word in all sentences. ValueError names the first sentence that lacks it."""
    uses = []
    for number, sentence in enumerate(sentences, start=1):
        in_sentence = uses_of(word, sentence)
        if not in_sentence:
            name = WordForms.of(word).name
            raise ValueError(
                f"sentence {number} has no word {name!r}; its words are: {' | '.join(sentence)}"
            )
        uses += in_sentence
    return uses


def sentences_with(
    words: Sequence[WordForms] | None,
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
        words: The words; lines that contain no form of them, in any case, are skipped. None: every
            sentence.
        files: Text files with one sentence per line.
        embedder: The embedder whose tokenizer splits raw lines.
        tokenize: Split raw lines with the tokenizer; else, and lines of `elmokit prepare`, at white
            space.
        tokenizers: The tokenizer of each file, by `file_tokenizers`; None: look for them.
        progress: Show a progress bar.
        on_line: Called for every line, also skipped ones; an exception that it raises ends the
            search.
    """
    if tokenizers is None:
        tokenizers = file_tokenizers(files, embedder.model.tokenizer, tokenize)
    lowered = [
        [INVISIBLE.sub("", part.lower()) for part in form]
        for word in words or ()
        for form in word.forms
    ]
    for file, tokenizer in zip(files, tokenizers, strict=True):
        for line in ProgressBar(
            read_lines(file), "search", unit=" sentences", unit_scale=True, disable=not progress
        ):
            if on_line is not None:
                on_line()
            # The tokenizer takes most of the time. It may remove invisible characters from words,
            # as soft hyphens.
            text = INVISIBLE.sub("", line.lower())
            if words is None or any(all(part in text for part in form) for form in lowered):
                yield tuple(tokenizer.tokenize(line))


def uses_in_files(
    word: Word | None,
    files: Sequence[Path],
    embedder: Embedder,
    tokenize: bool = True,
    **options: Any,
) -> Iterator[list[Use]]:
    """Stream the uses of a word in each sentence of text files that has any; arguments as in
    `sentences_with`.

    The word is matched as in `uses_of`; None: every word.
    """
    forms = (
        None if word is None else WordForms.of(word, embedder.tokenize if tokenize else str.split)
    )
    sentences = sentences_with(
        None if forms is None else [forms], files, embedder, tokenize, **options
    )
    return filter(None, (uses_of(forms, sentence) for sentence in sentences))


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors (..., 2D) to unit length, so that dot products are cosines; zero vectors stay
    zero.
    """
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def vectors_of_uses(
    uses: Sequence[Use],
    embedder: Embedder,
    layers: str | int,
    check: Callable[[], None] | None = None,
) -> np.ndarray:
    """Vectors of uses, (N, 2D), or with "all" every layer of each, (N, L+1, 2D); of a phrase the
    mean of its words.

    Each distinct sentence is embedded once. `check` is called after each batch of sentences; an
    exception that it raises ends the computation. Warns with a TruncationWarning if words are
    longer than the model reads.
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
                use = uses[number]
                vectors[number] = embedding[..., use.position : use.stop, :].mean(
                    axis=-2
                )  # a new array
    if truncated:
        message = truncation_in(sentences, embedder.count_truncated, embedder.word_limit)
        warnings.warn(message, TruncationWarning, stacklevel=3)
    return np.stack(vectors)


class UseSample:
    """A uniform random sample of the distinct ones among uses that are added one by one.

    It keeps the uses with the smallest hashes of seed and use. The sample does not depend on the
    order of the uses, nor on how often one is repeated; memory holds twice the sample at most.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.count = 0
        self._kept: dict[bytes, Use] = {}  # by hash, at most twice as many as the sample

    def add(self, use: Use) -> None:
        """Add a use. A repeated one is counted, but kept once."""
        self.count += 1
        self._kept.setdefault(
            blake2b(repr((self.seed, *use)).encode(), digest_size=16).digest(), use
        )
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


# --- All layers of annotated sentences ------------------------------------------------------------

Item = TypeVar("Item")


def all_layers(
    items: Iterable[Item],
    words_of: Callable[[Item], Sequence[str]],
    embedder: Embedder,
    state: StatePolicy | None = None,
) -> Iterator[tuple[Item, np.ndarray]]:
    """Pair each annotated sentence with all layers of its words; memory holds one batch of
    sentences at a time.

    Args:
        items: Annotated sentences of any type.
        words_of: Returns the T tokens of an item.
        embedder: The model.
        state: Initial state of a sentence: "zeros", "warm", or "carry" (the final state of the
            sentence before); the model's policy by default.

    Yields:
        The items in order, each with its layers, (L+1, T, 2D) float32. Words longer than the model
        reads are counted in a TruncationWarning at the end.
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
        warnings.warn(
            f"{truncated} words are too long and are cut", TruncationWarning, stacklevel=2
        )
