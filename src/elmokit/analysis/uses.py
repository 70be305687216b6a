"""The uses of a word in tokenized sentences, samples of them, and their vectors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from elmokit.checkpoints import Pretrained
from elmokit.embed import Embedder, layer_weights
from elmokit.text import TruncationWarning

FORM_SEPARATOR = re.compile(r"(?<!\d),|,(?!\d)")  # a comma, but not that of 1,000
UNSPACED = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")  # Thai, Lao, kana, Han
TOY_PERPLEXITY = 500  # above it, a model has learned hardly more than how frequent words are
WORDS_AROUND = 200  # a sentence may be a whole document, which each use in it would repeat in JSON


@dataclass(frozen=True, slots=True)
class Use:
    """An occurrence of a word, or of a phrase, in a tokenized sentence.

    Attributes:
        sentence: The words of the sentence.
        position: The index of the first word.
        length: The number of words.
        line: The number of the sentence in its corpus, from 1: of its line or row; 0: unknown. Uses
            are equal wherever they stand.
    """

    sentence: tuple[str, ...]
    position: int
    length: int = 1
    line: int = field(default=0, compare=False)

    @property
    def stop(self) -> int:
        """The index of the word after it."""
        return self.position + self.length

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the occurrence, one or those of a phrase."""
        return self.sentence[self.position : self.stop]

    def __str__(self) -> str:
        before = self.sentence[: self.position]
        after = self.sentence[self.stop :]
        use = " ".join(self.words)
        return " ".join([*before, f"[{use}]", *after])

    def window(self, around: int) -> Use:
        """The use with its sentence shortened to at most `around` words on each side."""
        start = max(0, self.position - around)
        sentence = self.sentence[start : self.stop + around]
        return Use(sentence, self.position - start, self.length, self.line)

    def to_json(self) -> dict[str, Any]:
        """The use with up to `WORDS_AROUND` words on each side."""
        near = self.window(WORDS_AROUND)
        return {"words": list(near.sentence), "position": near.position, "length": near.length}

    def to_row(self) -> dict[str, Any]:
        """The use as a row of a table."""
        sentence, word = " ".join(self.sentence), " ".join(self.words)
        return {"line": self.line, "position": self.position, "word": word, "sentence": sentence}


# --- Forms of a word ------------------------------------------------------------------------------


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
    def of(word: Word, split: Callable[[str], Sequence[str]] = str.split) -> WordForms:
        """The forms that a user gives.

        Args:
            word: A word or phrase, several forms separated by commas, or a list of forms (which may
                have commas).
            split: The tokenizer of the text. A form is looked for as it splits it, and as it is
                between white space.
        """
        if isinstance(word, WordForms):
            return word
        texts = word
        if isinstance(word, str):
            texts = list(filter(None, FORM_SEPARATOR.split(word))) or [word]
        forms = {tuple(way(text)) for text in texts for way in (str.split, split)}
        name = word if isinstance(word, str) else word[0]
        return WordForms(name, frozenset(forms - {()}))


Word = str | Sequence[str] | WordForms


def _find_forms(
    sentence: tuple[str, ...],
    words: Sequence[str],
    forms: Collection[tuple[str, ...]],
    line: int,
) -> list[Use]:
    """The uses of forms among words, from left to right, in each place the longest."""
    first_words = {form[0] for form in forms}
    longest = max(map(len, forms), default=0)
    uses = []
    stop = 0
    for position, word in enumerate(words):
        if word not in first_words or position < stop:
            continue
        for length in range(longest, 0, -1):
            candidate = tuple(words[position : position + length])
            if candidate in forms:
                uses.append(Use(sentence, position, len(candidate), line))
                stop = position + len(candidate)
                break
    return uses


def uses_of(word: Word | None, sentence: Sequence[str], line: int = 0) -> list[Use]:
    """The uses of a word in a tokenized sentence, and the line; of every word if it is None.

    They are exact matches, or if there are none, matches regardless of case.
    """
    words = tuple(sentence)
    if word is None:
        return [Use(words, position, line=line) for position in range(len(words))]
    forms = WordForms.of(word).forms
    if exact := _find_forms(words, words, forms, line):
        return exact
    lowered = {tuple(map(str.lower, form)) for form in forms}
    return _find_forms(words, list(map(str.lower, words)), lowered, line)


def longer_words(word: Word, sentence: Sequence[str]) -> list[str]:
    """Words that contain a form of a word and are none, in scripts without spaces."""
    forms = {form[0] for form in WordForms.of(word).forms if UNSPACED.search(form[0])}
    return [
        longer
        for longer in sentence
        if longer not in forms and any(form in longer for form in forms)
    ]


def uses_in_each(word: Word, sentences: Sequence[Sequence[str]]) -> list[Use]:
    """The uses of a word in all sentences. ValueError names the first sentence that lacks it."""
    uses = []
    for number, sentence in enumerate(sentences, start=1):
        in_sentence = uses_of(word, sentence)
        if not in_sentence:
            name, longer = WordForms.of(word).name, longer_words(word, sentence)
            remedy = f" (give both: {','.join([name, *longer])})" if longer else ""
            raise ValueError(
                f"sentence {number} has no word {name!r}; its words are: {' | '.join(sentence)}"
                f"{remedy}"
            )
        uses += in_sentence
    return uses


# --- Samples --------------------------------------------------------------------------------------


class UseSample:
    """A uniform random sample of the distinct ones among uses that are added one by one.

    It holds the uses with the smallest hashes of seed and use. The sample does not depend on the
    order of the uses, nor on how often one is repeated; memory holds twice the sample at most.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        self.count = 0
        self._by_hash: dict[bytes, Use] = {}  # at most twice as many as the sample

    def add(self, use: Use) -> None:
        """Add a use. A repeated one is counted, but held once."""
        self.count += 1
        content = repr((self.seed, use.sentence, use.position, use.length)).encode()
        digest = blake2b(content, digest_size=16).digest()
        self._by_hash.setdefault(digest, use)
        if len(self._by_hash) > 2 * self.size:
            self._drop_largest()

    def _drop_largest(self) -> None:
        smallest = set(sorted(self._by_hash)[: self.size])
        self._by_hash = {key: use for key, use in self._by_hash.items() if key in smallest}

    @property
    def uses(self) -> list[Use]:
        """The sample, in the order in which its uses were first added."""
        self._drop_largest()
        return list(self._by_hash.values())


def sample_uses(
    uses: Iterable[Use],
    size: int,
    seed: int,
) -> tuple[list[Use], int]:
    """A `UseSample` of up to `size` uses, in their order, and the total number of uses."""
    sample = UseSample(size, seed)
    for use in uses:
        sample.add(use)
    return sample.uses, sample.count


# --- Vectors --------------------------------------------------------------------------------------


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors (..., 2D) to unit length, so that dot products are cosines; zeros stay zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(norms, 1e-12)


def warn_of_toy(model: Pretrained) -> None:
    """Warn if the model's card says that it learned hardly anything, or not how much."""
    card = model.card or ""
    found = re.search(r"^- held-out \S*perplexity: ([\d.]+)", card, re.MULTILINE)
    is_trained_here = "- words seen: " in card
    if float(found[1]) > TOY_PERPLEXITY if found else is_trained_here and "perplexity" not in card:
        measured = f"a perplexity of {found[1]}" if found else "no measured perplexity"
        warnings.warn(
            f"this model has {measured} on held-out text: it may be a toy, whose vectors and "
            "clusters mean nothing",
            stacklevel=3,
        )


USE = "use"  # the representation of a use: its word beside its text


@dataclass(frozen=True)
class UseVectors:
    """The vectors of N uses of words, and of the sentences around them.

    Attributes:
        words: The vector of the word at each layer, the mean of the words of a phrase,
            (N, L+1, 2D); of stored vectors of one representation (N, 1, 2D).
        texts: The mean vector of all words of the sentence at the last of these layers, (N, 2D).
    """

    words: np.ndarray
    texts: np.ndarray

    def select(self, model: Pretrained, layers: str | int) -> np.ndarray:
        """One vector of each use.

        Args:
            model: The model of the vectors.
            layers: "use", the vector of the word beside that of its text, each of length 1, which
                tells senses apart better than any layer (docs/how-elmo-works.md); or one
                representation of the word, as `Embedder.embed` names them.

        Returns:
            (N, 4D) for "use", else (N, 2D).
        """
        if layers == USE:
            return np.concatenate([unit_vectors(self.words[:, -1]), unit_vectors(self.texts)], 1)
        if self.words.shape[1] == 1:
            return self.words[:, 0]
        return np.einsum("nld,l->nd", self.words, layer_weights(model, layers).numpy())

    @staticmethod
    def of(uses: Sequence[Use], embedder: Embedder) -> UseVectors:
        """Embed uses; each distinct sentence once.

        Warns:
            TruncationWarning: Words are longer than the model reads.
        """
        numbers_in: dict[tuple[str, ...], list[int]] = {}
        for number, use in enumerate(uses):
            numbers_in.setdefault(use.sentence, []).append(number)
        sentences = list(numbers_in)
        remaining = iter(numbers_in.values())
        words = np.empty((len(uses), embedder.num_layers, embedder.dim), np.float32)
        texts = np.empty((len(uses), embedder.dim), np.float32)
        truncated = 0
        state = embedder.model.single_sentence_state
        for batch in embedder.embed_stream(sentences, "all", state):
            truncated += batch.truncated_words
            for layers, numbers in zip(batch, remaining, strict=False):
                text = layers[-1].mean(axis=0)
                for number in numbers:
                    place = slice(uses[number].position, uses[number].stop)
                    words[number] = layers[:, place].mean(axis=1)
                    texts[number] = text
        if truncated:
            warning = TruncationWarning.in_sentences(
                sentences, embedder.count_truncated, embedder.word_limit
            )
            warnings.warn(warning, stacklevel=3)
        return UseVectors(words, texts)
