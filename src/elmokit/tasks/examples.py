"""Tagged sentences as tensors of word and tag ids, concatenated, and batches gathered from them."""

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

PADDING, UNKNOWN = 0, 1  # word ids; those of the vocabulary's words follow
# Sentences are shuffled into pools of this many batches, and sorted by length within: little padding, random order.
POOL = 32
# Maximum tokens of a batch of several sentences, with padding: a long sentence does not pad the others to its length.
PADDED_TOKENS = 16_384


@dataclass(frozen=True)
class TaskVocab:
    """The words and tags of a training set.

    Attributes:
        words: The words, the most frequent first.
        tags: The tags, in alphabetical order.
        num_frequent: Number of words that occur more than once; they come first in `words`.
        scheme: Scheme of tags that mark spans (see `metrics.span_scheme`); None for other tags.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    num_frequent: int
    scheme: str | None = None

    @classmethod
    def of(cls, sentences: Sequence[TaggedSentence]) -> "TaskVocab":
        """Build the vocabulary of a training set; words of equal frequency are sorted alphabetically."""
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
    def word_ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=UNKNOWN + 1)}

    @cached_property
    def tag_ids(self) -> dict[str, int]:
        return {tag: number for number, tag in enumerate(self.tags)}

    @property
    def num_words(self) -> int:
        """Number of word ids, including padding and the unknown word."""
        return len(self.words) + UNKNOWN + 1


class Batch(NamedTuple):
    """A batch of B sentences, padded on the right to T tokens; tensors that the tagger does not need are None.

    Attributes:
        words: Word ids, (B, T) int64.
        tags: Tag ids, (B, T) int64; -1 for tags absent from the training set.
        mask: True for real tokens, (B, T) bool.
        characters: Character ids of the U distinct words, (U, C) int64.
        types: Row in `characters` of each of the M real tokens, (M,) int64, row by row.
        layers: Layers of the biLM, (L+1, B, T, 2D) float32.
    """

    words: Tensor
    tags: Tensor | None
    mask: Tensor
    characters: Tensor | None
    types: Tensor | None
    layers: Tensor | None

    def to(self, device: torch.device | str) -> "Batch":
        """Move all tensors to a device."""
        return self._replace(**{name: field.to(device) for name, field in self._asdict().items() if field is not None})


def batches_of(order: np.ndarray, lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Split indices of sentences, sorted by length, into batches of `batch_size` sentences, or fewer long ones."""
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or end - begin == batch_size or (end + 1 - begin) * lengths[order[end]] > PADDED_TOKENS:
            yield order[begin:end]
            begin = end


class Examples:
    """Encoded sentences, from which batches are gathered in every epoch."""

    def __init__(
        self,
        sentences: Sequence[TaggedSentence],
        vocab: TaskVocab,
        layers: Tensor | None = None,
        character_cnns: Sequence[CharCNNConfig] = (),
    ):
        """Encode sentences.

        Args:
            sentences: N tokens in all, with gold tags or without.
            vocab: The words and tags of the training set.
            layers: Layers of a frozen biLM for all tokens, concatenated, (N, L+1, 2D) in any float type.
            character_cnns: The character CNNs that read the batches; the first determines where words are truncated.

        Raises:
            ValueError: `layers` has another number of tokens.
        """
        words = [word for sentence in sentences for word in sentence.words]
        if layers is not None and len(layers) != len(words):
            raise ValueError(f"{len(layers)} rows of layers for {len(words)} tokens: compute them for these sentences")
        self.sentences = sentences
        self.vocab = vocab
        self.layers = layers
        self.lengths = np.array([len(sentence.words) for sentence in sentences], dtype=np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        word_ids = vocab.word_ids
        self.words = torch.tensor([word_ids.get(word, UNKNOWN) for word in words], dtype=torch.int64)
        tags = [vocab.tag_ids.get(tag, -1) for sentence in sentences for tag in sentence.tags]
        self.types: Tensor | None = None
        self.tags = torch.tensor(tags, dtype=torch.int64) if len(tags) == len(words) else None
        if character_cnns:
            self._encode_types(words, character_cnns)

    def _encode_types(self, words: list[str], character_cnns: Sequence[CharCNNConfig]) -> None:
        max_characters = character_cnns[0].max_characters
        types = {word: number for number, word in enumerate(dict.fromkeys(words))}
        if truncated := count_truncated(list(types), max_characters):
            message = f"{truncated} of {len(types)} distinct words are truncated to {max_characters - 2} bytes"
            warnings.warn(message, stacklevel=3)
        self.types = torch.tensor([types[word] for word in words], dtype=torch.int64)
        self.type_characters = torch.from_numpy(encode_words(list(types), max_characters))
        widest_filter = max(config.widest_filter for config in character_cnns)
        self.type_widths = (self.type_characters != PAD_CHARACTER).sum(1) + widest_filter

    def __len__(self) -> int:
        return len(self.sentences)

    def batch(self, indices: np.ndarray) -> Batch:
        """The batch of the sentences with the given indices, in this order."""
        lengths, starts = torch.from_numpy(self.lengths[indices]), torch.from_numpy(self.starts[indices])
        steps = torch.arange(int(lengths.max()))
        mask = steps < lengths[:, None]
        positions = (starts[:, None] + steps)[mask]  # of the real tokens, row by row

        def padded(values: Tensor) -> Tensor:
            result = values.new_zeros(*mask.shape, *values.shape[1:])
            result[mask] = values
            return result

        characters = types = layers = None
        if self.types is not None:
            distinct, types = self.types[positions].unique(return_inverse=True)
            # Padding beyond the widest filter does not change the output of a character CNN (see `encode_words`).
            characters = self.type_characters[distinct, : int(self.type_widths[distinct].max())].long()
        if self.layers is not None:
            layers = padded(self.layers[positions].float()).permute(2, 0, 1, 3)
        tags = None if self.tags is None else padded(self.tags[positions])
        return Batch(padded(self.words[positions]), tags, mask, characters, types, layers)

    def shuffled(self, batch_size: int, random: np.random.Generator) -> Iterator[np.ndarray]:
        """Indices of the sentences that have words, in random batches of similar length."""
        order = random.permutation(np.flatnonzero(self.lengths))
        pools = [order[start : start + POOL * batch_size] for start in range(0, len(order), POOL * batch_size)]
        batches = []
        for pool in pools:
            batches += batches_of(pool[np.argsort(self.lengths[pool], kind="stable")], self.lengths, batch_size)
        for index in random.permutation(len(batches)):
            yield batches[index]

    def by_length(self, batch_size: int) -> Iterator[np.ndarray]:
        """Indices of the sentences that have words, in batches, the shortest first."""
        order = np.argsort(self.lengths, kind="stable")
        yield from batches_of(order[self.lengths[order] > 0], self.lengths, batch_size)
