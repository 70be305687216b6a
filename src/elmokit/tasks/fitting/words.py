"""Sentences as tensors; words as vectors: learned, from a character CNN, or from ELMo."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elmokit.checkpoints import Pretrained
from elmokit.config import PAD_CHARACTER, CharCNNConfig
from elmokit.nn import CharCNN, ScalarMix
from elmokit.tasks import WordsConfig
from elmokit.tasks.fitting.layers import LayerCache, Words
from elmokit.text import encode_words

# --- Sentences as tensors -------------------------------------------------------------------------

PADDING, UNKNOWN = 0, 1  # word indices; words of the table follow
# The character CNN that a network learns from its own training set: small, because such sets are.
CHARACTERS = CharCNNConfig(
    embedding_dim=16, filters=((1, 16), (2, 32), (3, 48), (4, 48), (5, 48)), num_highway=1
)


@dataclass(frozen=True)
class WordTable:
    """The words of a training set, the most frequent first.

    Attributes:
        words: The words; those from `num_frequent` on occurred once.
        num_frequent: Number of words that occurred more than once.
    """

    words: tuple[str, ...]
    num_frequent: int

    @classmethod
    def from_sentences(cls, sentences: Iterable[Words]) -> WordTable:
        """The table of a training set; words of equal count are in alphabetical order.

        A sentence that several examples share, such as the passage of many questions, counts once,
        so that its rare words stay rare.
        """
        counts = Counter(word for words in dict.fromkeys(map(tuple, sentences)) for word in words)
        by_count = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(by_count), sum(count > 1 for count in counts.values()))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The index of each word."""
        return {word: number for number, word in enumerate(self.words, start=UNKNOWN + 1)}

    @property
    def size(self) -> int:
        """Number of word indices, including padding and the unknown word."""
        return len(self.words) + UNKNOWN + 1


class WordBatch(NamedTuple):
    """A batch of sentences, padded on the right; None for inputs that the network does not read.

    sentences   words   mask    characters      character_rows
    a b         2 3     x x     0: those of a   0 1
    b           3 0     x       1: those of b   1
    """

    words: Tensor  # (B, T) int64
    mask: Tensor  # (B, T) bool
    characters: Tensor | None  # (U, C) int64, of the distinct words
    character_rows: Tensor | None  # (M,) int64: row of `characters` of each of M real tokens
    layers: Tensor | None  # (L+1, B, T, 2D) float32, of a frozen biLM

    @property
    def lengths(self) -> Tensor:
        """Number of words of each sentence, (B,)."""
        return self.mask.sum(1)


class Sentences:
    """Tokenized sentences, encoded once, from which batches are gathered.

    Args:
        sentences: All sentences of the batches; equal ones are stored once.
        table: The words of the training set.
        reads_characters: Whether the network has a character CNN of its own.
        layers: Layers of all sentences, if the network reads those of a biLM.
    """

    def __init__(
        self,
        sentences: Iterable[Words],
        table: WordTable,
        reads_characters: bool = False,
        layers: LayerCache | None = None,
    ) -> None:
        distinct = list(dict.fromkeys(tuple(words) for words in sentences))
        self._number_of = {words: number for number, words in enumerate(distinct)}
        self._lengths = np.array([len(words) for words in distinct], dtype=np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        # All sentences end to end: the indices of their words, and of their distinct words (types).
        words = [word for sentence in distinct for word in sentence]
        self._words = torch.tensor([table.numbers.get(word, UNKNOWN) for word in words]).long()
        self._types: Tensor | None = None
        if reads_characters:
            types = {word: number for number, word in enumerate(dict.fromkeys(words))}
            self._types = torch.tensor([types[word] for word in words]).long()
            characters = encode_words(list(types), CHARACTERS.max_characters)
            self._characters = torch.from_numpy(characters)
            self._widths = (self._characters != PAD_CHARACTER).sum(1) + CHARACTERS.widest_filter
        self._layers, self._stored = layers, layers and layers.find(distinct)

    def batch(self, sentences: Sequence[Words]) -> WordBatch:
        """The batch of these sentences, in their order. KeyError for one that is not among them."""
        chosen = np.array([self._number_of[tuple(words)] for words in sentences], dtype=np.int64)
        lengths = torch.from_numpy(self._lengths[chosen])
        starts = torch.from_numpy(self._starts[chosen])
        steps = torch.arange(max(1, int(lengths.max())))  # one step if all sentences are empty
        mask = steps < lengths[:, None]
        # Where the real tokens are among those of all sentences:
        # starts 5, 0 and lengths 1, 2 -> [[5, 6], [0, 1]] and mask [[1, 0], [1, 1]] -> 5, 0, 1
        positions = (starts[:, None] + steps)[mask]

        def padded(values: Tensor) -> Tensor:
            """Values of the real tokens, (M, ...) -> (B, T, ...)."""
            whole = values.new_zeros(*mask.shape, *values.shape[1:])
            whole[mask] = values
            return whole

        characters = character_rows = layers = None
        if self._types is not None:
            distinct, character_rows = self._types[positions].unique(return_inverse=True)
            # Padding beyond the widest filter does not change the output of a character CNN (see
            # `encode_words`).
            width = int(self._widths[distinct].max()) if len(distinct) else CHARACTERS.widest_filter
            characters = self._characters[distinct, :width].long()
        if self._layers is not None and self._stored is not None:
            read = self._layers.read([self._stored[number] for number in chosen])  # (M, L+1, 2D)
            layers = padded(torch.from_numpy(read).float()).permute(2, 0, 1, 3)
        words = padded(self._words[positions])
        return WordBatch(words, mask, characters, character_rows, layers)


# --- The vectors ----------------------------------------------------------------------------------


class EncodedWords(NamedTuple):
    """The input of a network, and ELMo's vectors for its output."""

    vectors: Tensor  # (B, T, dim)
    at_output: Tensor | None  # (B, T, output_dim); None if ELMo does not enter there
    mask: Tensor  # (B, T) bool

    def join(self, hidden: Tensor) -> Tensor:
        """[h; ELMo] if ELMo enters at the output, else h: (B, T, H) -> (B, T, H + output_dim)."""
        return hidden if self.at_output is None else torch.cat([hidden, self.at_output], dim=-1)


class WordEncoder(nn.Module):
    """Words -> vectors of each kind that the configuration names, concatenated.

    Args:
        config: Which of them to use, and their dropout.
        table: The words of the training set.
        model: The biLM, whose layers are in the batches; None with elmo "none".

    Attributes:
        dim: Width of `EncodedWords.vectors`.
        output_dim: Width of ELMo at the output of the network, 0 if it does not enter there.
        mixes: ELMo's mix at the input, at the output, or at both.
    """

    def __init__(
        self, config: WordsConfig, table: WordTable, model: Pretrained | None = None
    ) -> None:
        super().__init__()
        self.config, self.num_frequent = config, table.num_frequent
        self.words = self.characters = None
        if config.word_dim:  # vectors of a length of about 1 (Ma and Hovy, 2016)
            self.words = nn.Embedding(table.size, config.word_dim, padding_idx=PADDING)
            bound = math.sqrt(3 / config.word_dim)
            nn.init.uniform_(self.words.weight[PADDING + 1 :], -bound, bound)
        if config.character_dim:
            self.characters = CharCNN(CHARACTERS, config.character_dim)
        self.mixes, elmo_dim = nn.ModuleList(), 0
        if model is not None:
            elmo_dim = model.config.output_dim
            for _ in range(1 + (config.elmo == "both")):
                self.mixes.append(ScalarMix(model.config.num_representations))
        self.elmo_dropout = nn.Dropout(config.elmo_dropout)
        self.dropout = nn.Dropout(config.word_dropout)
        self.dim = config.word_dim + config.character_dim
        self.dim += elmo_dim if config.elmo in ("input", "both") else 0
        self.output_dim = elmo_dim if config.elmo in ("output", "both") else 0

    def forward(self, batch: WordBatch) -> EncodedWords:
        """Encode a batch, with dropout in training."""
        mask = batch.mask[..., None]
        mixed = [self.elmo_dropout(mix(batch.layers)) * mask for mix in self.mixes]
        parts = []
        if self.words is not None:
            parts.append(self.dropout(self.words(self._replace_rare(batch.words))))
        if self.characters is not None:
            vectors = self.characters(batch.characters)[batch.character_rows]
            padded = vectors.new_zeros(*batch.mask.shape, vectors.shape[1])
            parts.append(self.dropout(padded.masked_scatter(mask, vectors)))
        if self.config.elmo in ("input", "both"):
            parts.append(mixed[0])
        at_output = mixed[-1] if self.output_dim else None
        return EncodedWords(torch.cat(parts, dim=2), at_output, batch.mask)

    def penalty(self) -> Tensor | float:
        """The L2 penalty on the mix weights, to be added to the loss."""
        return sum(mix.penalty(self.config.mix_l2) for mix in self.mixes)  # pyright: ignore

    def _replace_rare(self, words: Tensor) -> Tensor:
        """In training, replace some words that occur once, so that the unknown word learns too."""
        if not self.training or not self.config.rare_word_dropout:
            return words
        hidden = torch.rand(words.shape, device=words.device) < self.config.rare_word_dropout
        return words.masked_fill(hidden & (words > UNKNOWN + self.num_frequent), UNKNOWN)


# --- Parts that several networks share ------------------------------------------------------------


class BiLSTM(nn.Module):
    """A bidirectional LSTM over padded sentences: (B, T, I) -> (B, T, 2 hidden_dim).

    The output is zero at padding.

    Args:
        input_dim: Width I of the input.
        hidden_dim: Width of each direction.
        num_layers: Number of layers, each of which reads both directions of the one below.
        dropout: Dropout between layers.
    """

    def __init__(
        self, input_dim: int, hidden_dim: int, num_layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        between = dropout if num_layers > 1 else 0.0
        self.lstm = nn.LSTM(
            input_dim, hidden_dim, num_layers, batch_first=True, bidirectional=True, dropout=between
        )
        self.output_dim = 2 * hidden_dim

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, T, I), and mask (B, T), True from the first word to the last."""
        lengths = mask.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=x.shape[1]
        )
        return hidden * mask[..., None]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension where `mask` is True; zeros elsewhere."""
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)  # also where all is masked, and softmax undefined


def masked_mean(vectors: Tensor, mask: Tensor) -> Tensor:
    """Mean of the real words' vectors, (B, D) from (B, T, D); zeros for no words."""
    return (vectors * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def masked_max(vectors: Tensor, mask: Tensor) -> Tensor:
    """Maximum of the real words' vectors, (B, D) from (B, T, D); zeros for no words."""
    highest = vectors.masked_fill(~mask[..., None], torch.finfo(vectors.dtype).min).amax(1)
    return highest.masked_fill(~mask.any(1, keepdim=True), 0.0)
