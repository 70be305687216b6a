"""Tagged sentences as tensors: numbered words and tags, tokens laid end to end, and batches gathered from them."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elmokit.config import CharCNNConfig
from elmokit.data.readers import TaggedSentence
from elmokit.tasks.metrics import span_scheme
from elmokit.text.characters import PAD_CHARACTER, count_truncated, encode_words

PADDING, UNKNOWN = 0, 1  # word numbers; the words of the lexicon follow
# Batches are cut from pools of this many batches sorted by length: little padding, and still much chance in the order.
POOL = 32
# Padding included, a batch has so many tokens at most (or one sentence): a long sentence does not stretch the others.
PADDED_TOKENS = 16_384


@dataclass(frozen=True)
class Lexicon:
    """The words (most frequent first) and tags of a training set. Words from `num_frequent` on occurred once.

    `scheme` is that of tags which mark spans (see `metrics.span_scheme`), or None.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    num_frequent: int
    scheme: str | None = None

    @classmethod
    def of(cls, sentences: Sequence[TaggedSentence]) -> "Lexicon":
        """The lexicon of a training set; words and tags of equal count in alphabetical order."""
        words: Counter[str] = Counter()
        tags: Counter[str] = Counter()
        for sentence in sentences:
            words.update(sentence.words)
            tags.update(sentence.tags)
        by_count = sorted(words, key=lambda word: (-words[word], word))
        num_frequent = sum(count > 1 for count in words.values())
        scheme = span_scheme(sentence.tags for sentence in sentences)
        return cls(tuple(by_count), tuple(sorted(tags)), num_frequent, scheme)

    @cached_property
    def word_numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=UNKNOWN + 1)}

    @cached_property
    def tag_numbers(self) -> dict[str, int]:
        return {tag: number for number, tag in enumerate(self.tags)}

    @property
    def num_words(self) -> int:
        """Word numbers in use, with padding and the unknown word."""
        return len(self.words) + UNKNOWN + 1


class Batch(NamedTuple):
    """Sentences of a batch, padded on the right; what the tagger does not use is None."""

    words: Tensor  # (B, T) int64
    tags: Tensor | None  # (B, T) int64; -1: a tag that training never saw
    mask: Tensor  # (B, T) bool
    characters: Tensor | None  # (U, C) int64, of the distinct words
    places: Tensor | None  # (M,) int64: which distinct word each of the M real tokens is, row by row
    layers: Tensor | None  # (L+1, B, T, 2D) float32

    def to(self, device: torch.device | str) -> "Batch":
        return self._replace(**{name: field.to(device) for name, field in self._asdict().items() if field is not None})


def batches_of(order: np.ndarray, lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Indices of sentences, the shortest first, in batches of `batch_size`, or fewer where the sentences are long."""
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or end - begin == batch_size or (end + 1 - begin) * lengths[order[end]] > PADDED_TOKENS:
            yield order[begin:end]
            begin = end


class Examples:
    """A set of sentences, ready to be cut into batches again and again.

    `layers` are the biLM layers of all tokens, end to end, (N, L+1, 2D) in any float type: computed once, kept in
    memory. `character_cnns` are those that will read the batches' characters (the first says where words are cut off).
    Gold tags go along where the sentences have them.
    """

    def __init__(
        self,
        sentences: Sequence[TaggedSentence],
        lexicon: Lexicon,
        layers: Tensor | None = None,
        character_cnns: Sequence[CharCNNConfig] = (),
    ):
        words = [word for sentence in sentences for word in sentence.words]
        if layers is not None and len(layers) != len(words):
            raise ValueError(f"{len(layers)} rows of layers for {len(words)} tokens: compute them for these sentences")
        self.sentences = sentences
        self.lexicon = lexicon
        self.layers = layers
        self.lengths = np.array([len(sentence.words) for sentence in sentences], dtype=np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        numbers = lexicon.word_numbers
        self.words = torch.tensor([numbers.get(word, UNKNOWN) for word in words], dtype=torch.int64)
        tags = [lexicon.tag_numbers.get(tag, -1) for sentence in sentences for tag in sentence.tags]
        self.types: Tensor | None = None
        self.tags = torch.tensor(tags, dtype=torch.int64) if len(tags) == len(words) else None
        if character_cnns:
            self._number_types(words, character_cnns)

    def _number_types(self, words: list[str], character_cnns: Sequence[CharCNNConfig]) -> None:
        max_characters = character_cnns[0].max_characters
        types = {word: number for number, word in enumerate(dict.fromkeys(words))}
        if cut := count_truncated(list(types), max_characters):
            message = f"{cut} of {len(types)} distinct words are cut off after {max_characters - 2} bytes"
            warnings.warn(message, stacklevel=3)
        self.types = torch.tensor([types[word] for word in words], dtype=torch.int64)
        self.type_characters = torch.from_numpy(encode_words(list(types), max_characters))
        widest_filter = max(config.widest_filter for config in character_cnns)
        self.type_widths = (self.type_characters != PAD_CHARACTER).sum(1) + widest_filter

    def __len__(self) -> int:
        return len(self.sentences)

    def batch(self, chosen: np.ndarray) -> Batch:
        """The batch of the sentences with the given indices, in their order."""
        lengths, starts = torch.from_numpy(self.lengths[chosen]), torch.from_numpy(self.starts[chosen])
        steps = torch.arange(int(lengths.max()))
        mask = steps < lengths[:, None]
        positions = (starts[:, None] + steps)[mask]  # of the real tokens, row by row

        def padded(values: Tensor) -> Tensor:
            whole = values.new_zeros(*mask.shape, *values.shape[1:])
            whole[mask] = values
            return whole

        characters = places = layers = None
        if self.types is not None:
            distinct, places = self.types[positions].unique(return_inverse=True)
            # Padding beyond the widest filter changes nothing in a character CNN (as in `encode_words`).
            characters = self.type_characters[distinct, : int(self.type_widths[distinct].max())].long()
        if self.layers is not None:
            layers = padded(self.layers[positions].float()).permute(2, 0, 1, 3)
        tags = None if self.tags is None else padded(self.tags[positions])
        return Batch(padded(self.words[positions]), tags, mask, characters, places, layers)

    def shuffled(self, batch_size: int, random: np.random.Generator) -> Iterator[np.ndarray]:
        """The sentences' indices in batches of like length, in a random order; sentences without words are left out."""
        order = random.permutation(np.flatnonzero(self.lengths))
        pools = [order[start : start + POOL * batch_size] for start in range(0, len(order), POOL * batch_size)]
        batches = []
        for pool in pools:
            batches += batches_of(pool[np.argsort(self.lengths[pool], kind="stable")], self.lengths, batch_size)
        for index in random.permutation(len(batches)):
            yield batches[index]

    def by_length(self, batch_size: int) -> Iterator[np.ndarray]:
        """The sentences' indices in batches, the shortest first; sentences without words are left out."""
        order = np.argsort(self.lengths, kind="stable")
        yield from batches_of(order[self.lengths[order] > 0], self.lengths, batch_size)
