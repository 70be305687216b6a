"""Token encoders: ids of words -> token vectors. Each converts words to ids of its own kind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    CharCNNConfig,
)
from elmokit.ops import char_conv, highway, linear
from elmokit.text import count_truncated, encode_words

if TYPE_CHECKING:
    from elmokit.text import Vocab

ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_}
WORDS_MULTIPLE, CHARACTERS_MULTIPLE = 128, 8


class TokenEncoder(nn.Module, ABC):
    """Ids of U words -> token vectors (U, D). Ids are shifted by one: 0 means no word."""

    input: str  # the kind of its ids: "characters", "words", or "words and characters"
    dims, shape = 3, "(B, T, C), as from elmokit.batch_to_ids"  # dimensions of a batch of ids
    # whether caching pays: a vector takes work, and is the same to the last bit in any batch
    is_cacheable = False

    @abstractmethod
    def ids(self, words: Sequence[str], vocab: Vocab | None = None) -> Tensor:
        """Words -> ids (U, C) or (U,); the words <S> and </S> are the boundaries."""

    @abstractmethod
    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The ids of <S> and </S>, each like one word of the ids `like` (B, T, ...)."""

    def check_ids(self, ids: Tensor) -> None:
        """ValueError unless ids have the type and shape of a batch that this encoder reads."""
        if not isinstance(ids, Tensor) or ids.dim() != self.dims or ids.is_floating_point():
            raise ValueError(f"ids must be a tensor of integers {self.shape}, not {ids!r:.200}")

    def is_word(self, ids: Tensor) -> Tensor:
        """Ids of positions (B, T, ...) -> (B, T) bool: True where there is a word."""
        return (ids > 0).any(dim=-1)

    def add_boundaries(self, ids: Tensor) -> Tensor:
        """Put <S> before and </S> after the words of each row.

        Args:
            ids: (B, T, ...), words at the left of each row, zeros after them.

        Returns:
            (B, T+2, ...).

        Raises:
            ValueError: There is padding before a word.
        """
        begin, end = self.boundary_ids(ids)
        is_word = self.is_word(ids)
        if (is_word[:, 1:] & ~is_word[:, :-1]).any():
            raise ValueError("each row must begin with its words, followed by padding (zeros)")
        # a b   ->   <S> a  b   </S>
        # c 0        <S> c </S>   0
        rows, width = ids.shape[:2]
        padded = ids.new_zeros(rows, width + 2, *ids.shape[2:])
        padded[:, 1:-1] = ids
        padded[:, 0] = begin
        ends = is_word.sum(dim=1) + 1
        padded[torch.arange(rows, device=ids.device), ends] = end
        return padded

    def pad_to_max_characters(self, ids: Tensor) -> Tensor:
        """Ids of words (U, ...) as wide as in training."""
        return ids

    def pad_to_bucket(self, ids: Tensor) -> Tensor:
        """Ids (U, ...) padded with more rows and longer words to one of a few shapes; vectors stay
        the same.

        oneDNN compiles a program for every new shape of a product, and keeps it. Since every text
        has another number of distinct words, memory would grow by 12 MB per training step, and by 1
        MB per 1,000 words embedded.
        """
        missing = -len(ids) % WORDS_MULTIPLE
        more = ids[:1].expand(missing, *ids.shape[1:])
        return torch.cat([ids, more])

    @property
    def word_limit(self) -> str:
        """How much of a word it reads, such as "48 bytes"."""
        return "no limit"

    def count_truncated(self, words: Sequence[str]) -> int:
        """The number of words that are longer than it reads: it sees their beginning only."""
        return 0


class WordEmbedding(TokenEncoder):
    """A table of token vectors, for models that read word ids."""

    input = "words"
    dims, shape = 2, "(B, T), as Vocab.ids + 1"

    def __init__(self, num_words: int, dim: int, boundary_words: tuple[int, int]) -> None:
        super().__init__()
        self.boundary_words = boundary_words
        weight = torch.empty(num_words, dim).uniform_(-1, 1)
        self.weight = nn.Parameter(weight)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (U,) -> (U, D)."""
        return F.embedding(ids - 1, self.weight)

    def ids(self, words: Sequence[str], vocab: Vocab | None = None) -> Tensor:
        """Ids of words in the vocabulary plus one, (U,). ValueError without a vocabulary."""
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
    """The filters of one width; `CharCNN` runs those of all widths at once."""

    def __init__(self, embedding_dim: int, num_filters: int, width: int, activation: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_filters, embedding_dim, width))
        if activation == "relu":  # bilm-tf (training.py:206-213)
            nn.init.uniform_(self.weight, -0.05, 0.05)
        else:
            size = width * embedding_dim
            nn.init.normal_(self.weight, std=math.sqrt(1 / size))
        self.bias = nn.Parameter(torch.zeros(num_filters))


class Highway(nn.Module):
    """y = c * relu(W_t x + b_t) + (1 - c) * x, with c = sigmoid(W_c x + b_c) (bilm-tf's sign)."""

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


class CharacterEncoder(TokenEncoder):
    """Words as UTF-8 bytes between marks: what token encoders of characters have in common."""

    input = "characters"

    def __init__(self, config: CharCNNConfig) -> None:
        super().__init__()
        self.config = config
        self.activation = ACTIVATIONS[config.activation]

    def ids(self, words: Sequence[str], vocab: Vocab | None = None) -> Tensor:
        limits = self.config.max_characters, self.config.widest_filter
        return torch.from_numpy(encode_words(words, *limits))

    def check_ids(self, ids: Tensor) -> None:
        super().check_ids(ids)
        limit = self.config.max_characters
        if ids.shape[-1] > limit:
            raise ValueError(
                f"this model reads {limit} characters of a word: use batch_to_ids(sentences, "
                f"{limit})"
            )

    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        begin, end = like.new_full((2, like.shape[-1]), PAD_CHARACTER)
        begin[:3] = like.new_tensor([BEGIN_WORD, BEGIN_SENTENCE, END_WORD])
        end[:3] = like.new_tensor([BEGIN_WORD, END_SENTENCE, END_WORD])
        return begin, end

    def pad_to_max_characters(self, ids: Tensor) -> Tensor:
        """Ids of words (U, C) as wide as in training.

        In a narrower batch, wide filters would not see the padding after a word that they saw in
        training, and the word would have another vector.
        """
        missing = self.config.max_characters - ids.shape[1]
        return F.pad(ids, (0, missing), value=PAD_CHARACTER) if missing else ids

    def pad_to_bucket(self, ids: Tensor) -> Tensor:
        width = ids.shape[1]
        missing = min(-width % CHARACTERS_MULTIPLE, self.config.max_characters - width)
        ids = F.pad(ids, (0, missing), value=PAD_CHARACTER)
        return super().pad_to_bucket(ids)

    @property
    def word_limit(self) -> str:
        return f"{self.config.max_characters - 2} bytes"

    def count_truncated(self, words: Sequence[str]) -> int:
        return count_truncated(words, self.config.max_characters)


class CharCNN(CharacterEncoder):
    """Characters of words -> token vectors: embedding, convolutions, highway layers, projection
    (bilm/model.py).

    Weights are initialized as in bilm-tf (training.py:183-289).
    """

    def __init__(self, config: CharCNNConfig, output_dim: int) -> None:
        super().__init__(config)
        dim, filters = config.embedding_dim, config.num_filters
        table = torch.empty(config.num_characters, dim).uniform_(-1, 1)
        self.char_embedding = nn.Parameter(table)
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
        x = char_conv(ids - CHARACTER_SHIFT, self.char_embedding, *self.filters())
        x = self.activation(x)
        for layer in self.highways:
            x = layer(x)
        return x if self.projection is None else self.projection(x)

    def filters(self) -> tuple[list[Tensor], list[Tensor]]:
        """Weights (F, E, w) and biases (F,) of each width."""
        widths: Any = self.convolutions
        return [filters.weight for filters in widths], [filters.bias for filters in widths]
