"""The vector of a text, from the mean vectors of its words."""

import torch
from torch import Tensor, nn


class TextMap(nn.Module):
    """An affine map of the mean vectors of a text's words at each layer to one vector.

    It is learned from the vectors of texts that another model computed.

    Attributes:
        weight: (K, L+1, 2D).
        bias: (K,).
    """

    def __init__(self, dim: int, num_layers: int, layer_dim: int) -> None:
        """A map to zeros, of `num_layers` vectors of `layer_dim` to one of `dim`."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, num_layers, layer_dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    @property
    def dim(self) -> int:
        """Width of the vector of a text."""
        return len(self.bias)

    def forward(self, means: Tensor) -> Tensor:
        """(L+1, B, 2D) -> (B, K)."""
        return torch.einsum("lbd,kld->bk", means, self.weight) + self.bias
