"""The character encoder of a token: embedding, convolutions, highway layers, projection (bilm/model.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from elmokit.config import CHARACTER_SHIFT, CharCNNConfig
from elmokit.nn.hooks import is_hooked
from elmokit.nn.kernels.highway import highway, highway_of_gates
from elmokit.nn.kernels.pooled_characters import MOST_CHARACTERS, PooledCharacters, has_tables, pooled_characters

ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_}


class Filters(nn.Module):
    """The filters of one width over a word's characters; `CharCNN` runs all widths at once."""

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
        with torch.no_grad():  # nearly closed at first, so that the input passes (bilm-tf, training.py:240-265)
            self.gates.weight.normal_(0, math.sqrt(1 / dim))
            self.gates.bias[:dim] = 0
            self.gates.bias[dim:] = -2

    def forward(self, x: Tensor) -> Tensor:
        if type(self.gates) is nn.Linear and not is_hooked(self.gates):
            return highway(x, self.gates.weight, self.gates.bias)
        return highway_of_gates(x, self.gates(x))


def _activated(pooled: PooledCharacters, activation: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
    return activation(pooled(ids - CHARACTER_SHIFT))


class CharCNN(nn.Module):
    """Character ids of words -> token vectors. Weights begin as bilm-tf's did (training.py:183-289)."""

    def __init__(self, config: CharCNNConfig, output_dim: int) -> None:
        super().__init__()
        dim, filters = config.embedding_dim, config.num_filters
        self.activation = ACTIVATIONS[config.activation]
        self.char_embedding = nn.Parameter(torch.empty(config.num_characters, dim).uniform_(-1, 1))
        self.convolutions = nn.ModuleList(
            Filters(dim, number, width, config.activation) for width, number in config.filters
        )
        self.highways = nn.ModuleList(Highway(filters) for _ in range(config.num_highway))
        # bilm-tf has no projection where it would change nothing in size
        self.projection = None if filters == output_dim else nn.Linear(filters, output_dim)
        if self.projection is not None:
            nn.init.normal_(self.projection.weight, std=math.sqrt(1 / filters))
            nn.init.zeros_(self.projection.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (U, C), shifted by one, every row a word (no zero) -> (U, D). C may be trimmed as `encode_words` does."""
        x = self.pooled(ids)
        for layer in self.highways:
            x = layer(x)
        return x if self.projection is None else self.projection(x)

    def pooled(self, ids: Tensor) -> Tensor:
        """ids as in `forward` -> (U, F): of each filter the maximum over a word's places, activated."""
        return self.activation(pooled_characters(ids - CHARACTER_SHIFT, self.char_embedding, *self._filters()))

    def prepared_pooled(self) -> Callable[[Tensor], Tensor]:
        """`pooled` without gradients, with what it computes from the weights alone computed now, where that fits."""
        if not has_tables(self.char_embedding) or len(self.char_embedding) > MOST_CHARACTERS:
            return self.pooled
        return partial(_activated, PooledCharacters(self.char_embedding, *self._filters()), self.activation)

    def _filters(self) -> tuple[list[Tensor], list[Tensor]]:
        weights, biases = ([getattr(filters, name) for filters in self.convolutions] for name in ("weight", "bias"))
        return weights, biases
