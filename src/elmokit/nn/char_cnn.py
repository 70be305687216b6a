"""The character encoder of a token: embedding, convolutions, highway layers, projection (paper section 3.4; bilm/model.py)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import CHARACTER_SHIFT, CharCNNConfig
from elmokit.nn.kernels.pooled_convolution import pooled_convolution


class Highway(nn.Module):
    """y = carry * relu(W_t x + b_t) + (1 - carry) * x, with carry = sigmoid(W_c x + b_c) (bilm-tf's sign of the gate)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gates = nn.Linear(dim, 2 * dim)  # rows: transform, then carry

    def forward(self, x: Tensor) -> Tensor:
        transform, carry = self.gates(x).chunk(2, dim=-1)
        return torch.lerp(x, torch.relu(transform), torch.sigmoid(carry))


class CharCNN(nn.Module):
    """Character ids of words -> token vectors."""

    def __init__(self, config: CharCNNConfig, output_dim: int) -> None:
        super().__init__()
        self.activation = {"relu": torch.relu, "tanh": torch.tanh}[config.activation]
        self.char_embedding = nn.Parameter(torch.empty(config.num_characters, config.embedding_dim))
        self.convolutions = nn.ModuleList(nn.Conv1d(config.embedding_dim, n, width) for width, n in config.filters)
        self.highways = nn.ModuleList(Highway(config.num_filters) for _ in range(config.num_highway))
        # bilm-tf has no projection where it would change nothing in size
        self.projection = nn.Linear(config.num_filters, output_dim) if config.num_filters != output_dim else None
        self.reset_parameters(config.activation)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (U, C), shifted by one, every row a word (no zero) -> (U, D). C may be trimmed as `encode_words` does."""
        characters = F.embedding(ids - CHARACTER_SHIFT, self.char_embedding)  # (U, C, E)
        pooled = [self.activation(pooled_convolution(characters, c.weight, c.bias)) for c in self.convolutions]
        x = torch.cat(pooled, dim=1)  # (U, F)
        for highway in self.highways:
            x = highway(x)
        return x if self.projection is None else self.projection(x)

    @torch.no_grad()
    def reset_parameters(self, activation: str) -> None:
        """bilm-tf's initialisation (training.py:183-289): each highway gate starts nearly closed, passing its input on."""
        self.char_embedding.uniform_(-1, 1)
        for conv in self.convolutions:
            if activation == "relu":
                conv.weight.uniform_(-0.05, 0.05)
            else:
                conv.weight.normal_(0, math.sqrt(1 / (conv.kernel_size[0] * conv.in_channels)))
            conv.bias.zero_()
        for highway in self.highways:
            dim = highway.gates.in_features
            highway.gates.weight.normal_(0, math.sqrt(1 / dim))
            highway.gates.bias[:dim] = 0
            highway.gates.bias[dim:] = -2
        if self.projection is not None:
            self.projection.weight.normal_(0, math.sqrt(1 / self.projection.in_features))
            self.projection.bias.zero_()
