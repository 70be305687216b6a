"""Token encoders: ids of words -> token vectors. Each reads ids of its own kind, and says how words
become ids, which ids are boundaries, and where there is a word at all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

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
from elmokit.ops import CharFilters, char_conv, highway, linear
from elmokit.text import (
    boundary_ids,
    count_truncated,
    count_truncated_efml,
    encode_efml,
    encode_words,
)

if TYPE_CHECKING:
    from elmokit.text import Vocab

ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_}
WORDS_MULTIPLE, CHARACTERS_MULTIPLE = 128, 8


class TokenEncoder(nn.Module, ABC):
    """Ids of U words -> token vectors (U, D). Ids are shifted by one: 0 means that there is no
    word.
    """

    input: str  # the kind of its ids: "characters", "words", or "words and characters"
    # whether caching pays: a vector takes work, and is the same to the last bit in any batch
    is_cacheable = False

    @abstractmethod
    def ids(self, words: Sequence[str], vocab: Vocab | None = None) -> Tensor:
        """Words -> ids (U, C) or (U,); the words <S> and </S> are the boundaries."""

    @abstractmethod
    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The ids of <S> and of </S>, each in the shape and dtype of one word of the ids `like` (B,
        T, ...).
        """

    def is_word(self, ids: Tensor) -> Tensor:
        """Ids of positions (B, T, ...) -> (B, T) bool: True where there is a word."""
        return (ids > 0).any(dim=-1)

    def in_few_shapes(self, ids: Tensor) -> Tensor:
        """Ids (U, ...) padded with more rows and longer words to one of a few shapes; vectors stay
        the same.

        oneDNN compiles a program for every new shape of a product, and keeps it. Since every text
        has another number of distinct words, memory would grow by 12 MB per training step, and by 1
        MB per 1,000 words embedded.
        """
        return torch.cat([ids, ids[:1].expand(-len(ids) % WORDS_MULTIPLE, *ids.shape[1:])])

    @property
    def word_limit(self) -> str:
        """How much of a word it reads, such as "48 bytes"."""
        return "no limit"

    def count_truncated(self, words: Sequence[str]) -> int:
        """The number of words that are longer than it reads, so that it sees their beginning
        only.
        """
        return 0


class WordEmbedding(TokenEncoder):
    """A table of token vectors, for models that read word ids."""

    input = "words"

    def __init__(self, num_words: int, dim: int, boundary_words: tuple[int, int]) -> None:
        super().__init__()
        self.boundary_words = boundary_words
        self.weight = nn.Parameter(torch.empty(num_words, dim).uniform_(-1, 1))

    def forward(self, ids: Tensor) -> Tensor:
        """ids (U,) -> (U, D)."""
        return F.embedding(ids - 1, self.weight)

    def ids(self, words: Sequence[str], vocab: Vocab | None = None) -> Tensor:
        """Ids of words (U,), those of the vocabulary shifted by one. ValueError without a
        vocabulary.
        """
        if vocab is None:
            raise ValueError(
                "this model reads word ids, but has no vocabulary: put its vocab.txt next to the "
                "weights"
            )
        return torch.from_numpy(vocab.ids(words) + 1)

    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        begin, end = self.boundary_words
        return like.new_tensor(begin + 1), like.new_tensor(end + 1)

    def is_word(self, ids: Tensor) -> Tensor:
        return ids > 0


# --- Characters -----------------------------------------------------------------------------------


class Filters(nn.Module):
    """The filters of one width over a word's characters; `CharCNN` runs those of all widths at
    once.
    """

    def __init__(self, embedding_dim: int, num_filters: int, width: int, activation: str) -> None:
        super().__init__()
        weight, std = (
            torch.empty(num_filters, embedding_dim, width),
            math.sqrt(1 / (width * embedding_dim)),
        )
        # bilm-tf (training.py:206-213)
        self.weight = nn.Parameter(
            weight.uniform_(-0.05, 0.05) if activation == "relu" else weight.normal_(0, std)
        )
        self.bias = nn.Parameter(torch.zeros(num_filters))


class Highway(nn.Module):
    """y = carry * relu(W_t x + b_t) + (1 - carry) * x, with carry = sigmoid(W_c x + b_c) (bilm-tf's
    sign).
    """

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

    def effective_weight(self) -> Tensor:
        """The weight of the product, (M, K)."""
        return self.weight

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.effective_weight(), self.bias)


class CharCNN(TokenEncoder):
    """Characters of words -> token vectors: embedding, convolutions, highway layers, projection
    (bilm/model.py).

    Weights are initialized as in bilm-tf (training.py:183-289).
    """

    input = "characters"

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

        C may be smaller than `max_characters` as long as every filter still sees a window of
        padding only.
        """
        x = self.activation(
            char_conv(ids - CHARACTER_SHIFT, CharFilters(self.char_embedding, *self.filters()))
        )
        for layer in self.highways:
            x = layer(x)
        return x if self.projection is None else self.projection(x)

    def filters(self) -> tuple[list[Tensor], list[Tensor]]:
        """Weights (F, E, w) and biases (F,) of each width."""
        convolutions = [cast(Filters, filters) for filters in self.convolutions]
        return [filters.weight for filters in convolutions], [
            filters.bias for filters in convolutions
        ]

    def ids(self, words: Sequence[str], vocab: Vocab | None = None) -> Tensor:
        return torch.from_numpy(
            encode_words(words, self.config.max_characters, self.config.widest_filter)
        )

    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        begin, end = like.new_full((2, like.shape[-1]), PAD_CHARACTER)
        begin[:3] = like.new_tensor([BEGIN_WORD, BEGIN_SENTENCE, END_WORD])
        end[:3] = like.new_tensor([BEGIN_WORD, END_SENTENCE, END_WORD])
        return begin, end

    def in_few_shapes(self, ids: Tensor) -> Tensor:
        width = ids.shape[1]
        missing = min(-width % CHARACTERS_MULTIPLE, self.config.max_characters - width)
        return super().in_few_shapes(F.pad(ids, (0, missing), value=PAD_CHARACTER))

    @property
    def word_limit(self) -> str:
        return f"{self.config.max_characters - 2} bytes"

    def count_truncated(self, words: Sequence[str]) -> int:
        return count_truncated(words, self.config.max_characters)


# --- ELMoForManyLangs -----------------------------------------------------------------------------


class EfmlEncoder(TokenEncoder):
    """The ELMoForManyLangs token encoder: a table of word vectors, a CNN over characters, or both,
    and a projection.

    (Its modules/token_embedder.py, ConvTokenEmbedder.)
    """

    def __init__(self, config: EfmlEncoderConfig, output_dim: int) -> None:
        super().__init__()
        self.config = config
        self.input = " and ".join(name for name in ("words", "characters") if getattr(config, name))
        self.word_embedding = (
            nn.Parameter(torch.empty(len(config.words), config.word_dim)) if config.words else None
        )
        # Its output is as wide as its filters, so that it has no projection.
        self.char_cnn = (
            None
            if config.char_cnn is None
            else CharCNN(config.char_cnn, config.char_cnn.num_filters)
        )
        self.projection = Projection(config.num_features, output_dim)
        if self.word_embedding is not None:
            nn.init.uniform_(self.word_embedding, -0.25, 0.25)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (U, 1 + C): of the word, if there is a word table, and of its characters, if there is
        a CNN -> (U, D).
        """
        features = []
        if self.word_embedding is not None:
            features.append(F.embedding(ids[:, 0] - 1, self.word_embedding))
            ids = ids[:, 1:]
        if self.char_cnn is not None:
            features.append(self.char_cnn(ids))
        return self.projection(torch.cat(features, dim=1))

    def ids(self, words: Sequence[str], vocab: Vocab | None = None) -> Tensor:
        return torch.from_numpy(encode_efml(words, self.config))

    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        begin, end = (
            like.new_tensor(boundary_ids(self.config, which, like.shape[-1])) for which in range(2)
        )
        return begin, end

    @property
    def word_limit(self) -> str:
        limit = self.config.max_characters
        return "no limit" if limit is None else f"{limit - 2} characters"

    def count_truncated(self, words: Sequence[str]) -> int:
        return count_truncated_efml(words, self.config)


def token_encoder(config: BiLMConfig) -> TokenEncoder:
    """Create the token encoder of a model's configuration."""
    dim = config.sequence_encoder.projection_dim
    if config.char_cnn is not None:
        return CharCNN(config.char_cnn, dim)
    if config.efml is not None:
        return EfmlEncoder(config.efml, dim)
    assert config.num_words is not None
    return WordEmbedding(config.num_words, dim, config.boundary_words)
