"""Token encoders: ids of words -> token vectors. Each reads ids of its own kind, and answers what others need to know
of them: how words become ids, which ids are boundaries, and where there is a word at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import (
    BEGIN_SENTENCE,
    BEGIN_WORD,
    CHARACTER_SHIFT,
    END_SENTENCE,
    END_WORD,
    PAD_CHARACTER,
    BiLMConfig,
    CharCNNConfig,
    EfmlEncoderConfig,
)
from elmokit.ops.functional import char_conv, highway, linear
from elmokit.text.characters import count_truncated, encode_words
from elmokit.text.efml import boundary_ids, count_truncated_efml, encode_efml

ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_}
WORDS_MULTIPLE, CHARACTERS_MULTIPLE = 128, 8


class Vocabulary(Protocol):
    def ids(self, words: Iterable[str]) -> np.ndarray: ...


class TokenEncoder(Protocol):
    """The interface of token encoders. Ids are shifted by one: 0 means that there is no word."""

    input: str  # the kind of its ids: "characters", "words", or "words and characters"
    word_limit: str  # how much of a word it reads, such as "48 bytes"
    is_cacheable: bool  # whether caching pays: a vector takes work, and is the same to the last bit in any batch

    def __call__(self, ids: Tensor) -> Tensor:
        """Ids of U words -> token vectors (U, D)."""
        ...

    def ids(self, words: Sequence[str], vocab: Vocabulary | None = None) -> Tensor:
        """Words -> ids (U, C) or (U,); the words <S> and </S> are the boundaries."""
        ...

    def in_few_shapes(self, ids: Tensor) -> Tensor:
        """Ids (U, ...) padded with more rows and longer words to one of a few shapes; vectors stay the same.

        oneDNN compiles a program for every new shape of a product, and keeps it. Since every text has another number
        of distinct words, memory would grow by 12 MB per training step, and by 1 MB per 1,000 words embedded.
        """
        ...

    def check_ids(self, ids: Tensor) -> None:
        """ValueError unless ids (B, T, ...) are 0 or those of words that it knows."""
        ...

    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The ids of <S> and of </S>, each in the shape and dtype of one word of the ids `like` (B, T, ...)."""
        ...

    def is_word(self, ids: Tensor) -> Tensor:
        """Ids of positions (B, T, ...) -> (B, T) bool: True where there is a word."""
        ...

    def count_truncated(self, words: Sequence[str]) -> int:
        """The number of words that are longer than it reads, so that it sees their beginning only."""
        ...


def _in_few_lengths(ids: Tensor) -> Tensor:
    """Repeat the first row of ids (U, ...) until U is a multiple of WORDS_MULTIPLE."""
    return torch.cat([ids, ids[:1].expand(-len(ids) % WORDS_MULTIPLE, *ids.shape[1:])])


def _check_range(ids: Tensor, last: int, kind: str = "ids") -> None:
    if ids.numel() > 0 and (ids.min() < 0 or ids.max() > last):
        given = f"from {int(ids.min())} to {int(ids.max())}"
        raise ValueError(f"{kind} must be from 0 (padding) to {last}, but are {given}")


def _check_filled(ids: Tensor, padding: object, source: str) -> None:
    """ValueError if some ids of a word are 0, but not all."""
    if not torch.equal((ids > 0).any(dim=-1), (ids > 0).all(dim=-1)):
        raise ValueError(f"a word's characters end with {padding}, not with 0 (no word), as from {source}")


class WordEmbedding(nn.Module):
    """A table of token vectors, for models that read word ids."""

    input, word_limit, is_cacheable = "words", "no limit", False

    def __init__(self, num_words: int, dim: int, boundary_words: tuple[int, int]) -> None:
        super().__init__()
        self.boundary_words = boundary_words
        self.weight = nn.Parameter(torch.empty(num_words, dim).uniform_(-1, 1))

    def forward(self, ids: Tensor) -> Tensor:
        """ids (U,) -> (U, D)."""
        return F.embedding(ids - 1, self.weight)

    def ids(self, words: Sequence[str], vocab: Vocabulary | None = None) -> Tensor:
        """Ids of words (U,), those of the vocabulary shifted by one. ValueError without a vocabulary."""
        if vocab is None:
            raise ValueError("this model reads word ids, but has no vocabulary: put its vocab.txt next to the weights")
        return torch.from_numpy(vocab.ids(words) + 1)

    def in_few_shapes(self, ids: Tensor) -> Tensor:
        return _in_few_lengths(ids)

    def check_ids(self, ids: Tensor) -> None:
        _check_range(ids, len(self.weight))

    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        begin, end = self.boundary_words
        return like.new_tensor(begin + 1), like.new_tensor(end + 1)

    def is_word(self, ids: Tensor) -> Tensor:
        return ids > 0

    def count_truncated(self, words: Sequence[str]) -> int:
        return 0


# --- Characters ------------------------------------------------------------------------------------------------------


class Filters(nn.Module):
    """The filters of one width over a word's characters; `CharCNN` runs those of all widths at once."""

    def __init__(self, embedding_dim: int, num_filters: int, width: int, activation: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_filters, embedding_dim, width))
        self.bias = nn.Parameter(torch.zeros(num_filters))
        with torch.no_grad():  # bilm-tf (training.py:206-213)
            if activation == "relu":
                self.weight.uniform_(-0.05, 0.05)
            else:
                self.weight.normal_(0, math.sqrt(1 / (width * embedding_dim)))


class Highway(nn.Module):
    """y = carry * relu(W_t x + b_t) + (1 - carry) * x, with carry = sigmoid(W_c x + b_c) (bilm-tf's sign)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gates = nn.Linear(dim, 2 * dim)  # rows: transform, then carry
        with torch.no_grad():  # at first the input is mostly carried (bilm-tf, training.py:240-265)
            self.gates.weight.normal_(0, math.sqrt(1 / dim))
            self.gates.bias[:dim] = 0
            self.gates.bias[dim:] = -2

    def forward(self, x: Tensor) -> Tensor:
        """x (M, F) -> (M, F)."""
        return highway(x, self.gates.weight, self.gates.bias)


class Projection(nn.Linear):
    """`nn.Linear` whose results are the same to the last bit on any number of threads."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class CharacterReader:
    """The part of a `TokenEncoder` that turns words into characters, for encoders that read nothing else."""

    input = "characters"
    config: CharCNNConfig

    def ids(self, words: Sequence[str], vocab: Vocabulary | None = None) -> Tensor:
        return torch.from_numpy(encode_words(words, self.config.max_characters, self.config.widest_filter))

    def in_few_shapes(self, ids: Tensor) -> Tensor:
        width = ids.shape[1]
        missing = min(-width % CHARACTERS_MULTIPLE, self.config.max_characters - width)
        return _in_few_lengths(F.pad(ids, (0, missing), value=PAD_CHARACTER))

    def check_ids(self, ids: Tensor) -> None:
        _check_range(ids, self.config.num_characters)
        _check_filled(ids, PAD_CHARACTER, "batch_to_ids")

    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        rows = []
        for mark in (BEGIN_SENTENCE, END_SENTENCE):
            row = like.new_full((like.shape[-1],), PAD_CHARACTER)
            row[:3] = like.new_tensor([BEGIN_WORD, mark, END_WORD])
            rows.append(row)
        return rows[0], rows[1]

    def is_word(self, ids: Tensor) -> Tensor:
        return (ids > 0).any(dim=-1)

    @property
    def word_limit(self) -> str:
        return f"{self.config.max_characters - 2} bytes"

    def count_truncated(self, words: Sequence[str]) -> int:
        return count_truncated(words, self.config.max_characters)


class CharCNN(CharacterReader, nn.Module):
    """Characters of words -> token vectors: embedding, convolutions, highway layers, projection (bilm/model.py).

    Weights are initialized as in bilm-tf (training.py:183-289).
    """

    is_cacheable = False

    def __init__(self, config: CharCNNConfig, output_dim: int) -> None:
        super().__init__()
        self.config = config
        dim, filters = config.embedding_dim, config.num_filters
        self.activation = ACTIVATIONS[config.activation]
        self.char_embedding = nn.Parameter(torch.empty(config.num_characters, dim).uniform_(-1, 1))
        self.convolutions = nn.ModuleList(
            Filters(dim, number, width, config.activation) for width, number in config.filters
        )
        self.highways = nn.ModuleList(Highway(filters) for _ in range(config.num_highway))
        # bilm-tf omits the projection where it would not change the size
        self.projection = None if filters == output_dim else Projection(filters, output_dim)
        if self.projection is not None:
            nn.init.normal_(self.projection.weight, std=math.sqrt(1 / filters))
            nn.init.zeros_(self.projection.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (U, C), each row a word, without zeros -> (U, D).

        C may be smaller than `max_characters` as long as every filter still sees a window of padding only.
        """
        x = self.activation(char_conv(ids - CHARACTER_SHIFT, self.char_embedding, *self.filters()))
        for layer in self.highways:
            x = layer(x)
        return x if self.projection is None else self.projection(x)

    def filters(self) -> tuple[list[Tensor], list[Tensor]]:
        """Weights (F, E, w) and biases (F,) of each width."""
        convolutions = [cast(Filters, filters) for filters in self.convolutions]
        return [filters.weight for filters in convolutions], [filters.bias for filters in convolutions]


# --- ELMoForManyLangs ------------------------------------------------------------------------------------------------


class EfmlEncoder(nn.Module):
    """The ELMoForManyLangs token encoder: a table of word vectors, a CNN over characters, or both, and a projection.

    (Its modules/token_embedder.py, ConvTokenEmbedder.)
    """

    is_cacheable = False

    def __init__(self, config: EfmlEncoderConfig, output_dim: int) -> None:
        super().__init__()
        self.config = config
        self.input = " and ".join(name for name in ("words", "characters") if getattr(config, name))
        self.word_embedding = nn.Parameter(torch.empty(len(config.words), config.word_dim)) if config.words else None
        # Its output is as wide as its filters, so that it has no projection.
        self.char_cnn = None if config.char_cnn is None else CharCNN(config.char_cnn, config.char_cnn.num_filters)
        self.projection = Projection(config.num_features, output_dim)
        if self.word_embedding is not None:
            nn.init.uniform_(self.word_embedding, -0.25, 0.25)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (U, 1 + C): of the word, if there is a word table, and of its characters, if there is a CNN -> (U, D)."""
        features = []
        if self.word_embedding is not None:
            features.append(F.embedding(ids[:, 0] - 1, self.word_embedding))
            ids = ids[:, 1:]
        if self.char_cnn is not None:
            features.append(self.char_cnn(ids))
        return self.projection(torch.cat(features, dim=1))

    def ids(self, words: Sequence[str], vocab: Vocabulary | None = None) -> Tensor:
        return torch.from_numpy(encode_efml(words, self.config))

    def in_few_shapes(self, ids: Tensor) -> Tensor:
        return _in_few_lengths(ids)

    def check_ids(self, ids: Tensor) -> None:
        config, words = self.config, int(len(self.config.words) > 0)
        least = words + (0 if config.char_cnn is None else max(3, config.char_cnn.widest_filter))
        if ids.shape[-1] < least or (config.char_cnn is None and ids.shape[-1] > words):
            raise ValueError(f"a word has {ids.shape[-1]} ids, and this model reads {least}: use its token_encoder.ids")
        _check_range(ids[..., :words], len(config.words), "ids of words")
        if config.char_cnn is not None:
            _check_range(ids[..., words:], config.char_cnn.num_characters, "ids of characters")
        _check_filled(ids, "padding", "token_encoder.ids")

    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        begin, end = (like.new_tensor(boundary_ids(self.config, which, like.shape[-1])) for which in range(2))
        return begin, end

    def is_word(self, ids: Tensor) -> Tensor:
        return (ids > 0).any(dim=-1)

    @property
    def word_limit(self) -> str:
        if self.config.max_characters is None:
            return "no limit"
        return f"{self.config.max_characters - 2} characters"

    def count_truncated(self, words: Sequence[str]) -> int:
        return count_truncated_efml(words, self.config)


def token_encoder(config: BiLMConfig) -> CharCNN | WordEmbedding | EfmlEncoder:
    """Create the token encoder of a model's configuration."""
    dim = config.sequence_encoder.projection_dim
    if config.char_cnn is not None:
        return CharCNN(config.char_cnn, dim)
    if config.efml is not None:
        return EfmlEncoder(config.efml, dim)
    assert config.num_words is not None
    return WordEmbedding(config.num_words, dim, config.boundary_words)
