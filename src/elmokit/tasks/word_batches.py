"""Sentences as tensors: word indices, characters of the distinct words, and vectors of frozen encoders."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elmokit.config import CharCNNConfig
from elmokit.tasks.layer_cache import LayerCache, Place, Words
from elmokit.tasks.word_vectors import WordVectors
from elmokit.text.characters import PAD_CHARACTER, TruncationWarning, count_truncated, encode_words

PADDING, UNKNOWN = 0, 1  # word indices; those of the table follow


@dataclass(frozen=True)
class WordTable:
    """The words of a training set, the most frequent first; those from `num_frequent` on occurred once.

    `vectors` are pretrained, and may include words that are not among `words`.
    """

    words: tuple[str, ...]
    num_frequent: int
    vectors: WordVectors | None = None

    @classmethod
    def of(cls, sentences: Iterable[Words]) -> WordTable:
        """The table of a training set, without vectors; words of equal count in alphabetical order.

        A sentence that several examples share, such as the passage of many questions, counts once, so that its rare
        words stay rare.
        """
        counts: Counter[str] = Counter()
        for words in dict.fromkeys(map(tuple, sentences)):
            counts.update(words)
        by_count = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(by_count), sum(count > 1 for count in counts.values()))

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=UNKNOWN + 1)}

    @property
    def size(self) -> int:
        """Number of word indices, including padding and the unknown word."""
        return len(self.words) + UNKNOWN + 1


class WordBatch(NamedTuple):
    """A batch of sentences, padded on the right; None for inputs that the network does not read."""

    words: Tensor  # (B, T) int64
    mask: Tensor  # (B, T) bool
    characters: Tensor | None  # (U, C) int64, of the distinct words
    places: Tensor | None  # (M,) int64: the row of `characters` of each of the M real tokens, row by row
    layers: Tensor | None  # (L+1, B, T, 2D) float32, of a frozen biLM
    vectors: Tensor | None  # (B, T) int64: rows of pretrained vectors, 0 for a word without one
    states: Tensor | None  # (M, B, T, D) float32: hidden states of another frozen encoder

    @property
    def lengths(self) -> Tensor:
        """Number of words of each sentence, (B,)."""
        return self.mask.sum(1)


class Sentences:
    """Tokenized sentences, encoded once, from which batches are gathered.

    Args:
        sentences: All sentences of the batches; equal ones are stored once.
        table: The words of the training set.
        character_cnns: Character CNNs that will read the batches; the first determines where long words are truncated.
        layers: Layers of all sentences, if the network reads those of a frozen biLM.
        states: Hidden states of all sentences, if the network reads those of another frozen encoder.
    """

    def __init__(
        self,
        sentences: Iterable[Words],
        table: WordTable,
        *,
        character_cnns: Sequence[CharCNNConfig] = (),
        layers: LayerCache | None = None,
        states: LayerCache | None = None,
    ) -> None:
        distinct = list(dict.fromkeys(tuple(words) for words in sentences))
        self._number_of = {words: number for number, words in enumerate(distinct)}
        self._lengths = np.array([len(words) for words in distinct], dtype=np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        words = [word for sentence in distinct for word in sentence]
        self._words = torch.tensor([table.numbers.get(word, UNKNOWN) for word in words], dtype=torch.int64)
        self._types: Tensor | None = None
        if character_cnns:
            self._number_types(words, character_cnns)
        self._vectors: Tensor | None = None
        if (vectors := table.vectors) is not None:
            self._vectors = torch.tensor([vectors.number(word) for word in words], dtype=torch.int64)
        self._layers, self._states = layers, states
        self._places, self._state_places = (
            cache.places(distinct) if cache is not None else [] for cache in (layers, states)
        )

    def _number_types(self, words: list[str], character_cnns: Sequence[CharCNNConfig]) -> None:
        max_characters = character_cnns[0].max_characters
        types = {word: number for number, word in enumerate(dict.fromkeys(words))}
        if truncated := [word for word in types if count_truncated([word], max_characters)]:
            message = f"{len(truncated)} of {len(types)} distinct words are truncated after {max_characters - 2} bytes"
            warnings.warn(f"{message}, such as {truncated[0][:60]!r}", TruncationWarning, stacklevel=4)
        self._types = torch.tensor([types[word] for word in words], dtype=torch.int64)
        self._type_characters = torch.from_numpy(encode_words(list(types), max_characters))
        self._widest_filter = max(config.widest_filter for config in character_cnns)
        self._type_widths = (self._type_characters != PAD_CHARACTER).sum(1) + self._widest_filter

    def __len__(self) -> int:
        return len(self._lengths)

    def batch(self, sentences: Sequence[Words]) -> WordBatch:
        """The batch of these sentences, in their order. ValueError for one that is not among the sentences."""
        try:
            chosen = np.array([self._number_of[tuple(words)] for words in sentences], dtype=np.int64)
        except KeyError as error:
            raise ValueError(
                f"a batch has a sentence that was not encoded, {error.args[0]!r:.80}: the `sentences` of a task yield "
                "all that its `collate` asks for"
            ) from None
        lengths, starts = torch.from_numpy(self._lengths[chosen]), torch.from_numpy(self._starts[chosen])
        steps = torch.arange(max(1, int(lengths.max())))  # one step if all sentences are empty
        mask = steps < lengths[:, None]
        positions = (starts[:, None] + steps)[mask]  # of the real tokens, row by row

        def padded(values: Tensor) -> Tensor:
            whole = values.new_zeros(*mask.shape, *values.shape[1:])
            whole[mask] = values
            return whole

        def cached(cache: LayerCache, all_places: list[Place]) -> Tensor:
            values = torch.from_numpy(cache.read([all_places[number] for number in chosen]))
            return padded(values.float()).permute(2, 0, 1, 3)

        characters = places = None
        if self._types is not None:
            distinct, places = self._types[positions].unique(return_inverse=True)
            # Padding beyond the widest filter does not change the output of a character CNN (see `encode_words`).
            width = int(self._type_widths[distinct].max()) if len(distinct) else self._widest_filter
            characters = self._type_characters[distinct, :width].long()
        return WordBatch(
            words=padded(self._words[positions]),
            mask=mask,
            characters=characters,
            places=places,
            layers=None if self._layers is None else cached(self._layers, self._places),
            vectors=None if self._vectors is None else padded(self._vectors[positions]),
            states=None if self._states is None else cached(self._states, self._state_places),
        )
