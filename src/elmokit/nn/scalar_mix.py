"""The learned mixture of layers, gamma * sum_j softmax(s)_j h_j (paper equation 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

LAYER_NORM_EPSILON = 1e-12  # bilm-tf's; AllenNLP has 1e-13, which float32 cannot tell apart


def _normalized(layer: Tensor, mask: Tensor) -> Tensor:
    real = layer[mask].to(torch.promote_types(layer.dtype, torch.float32))
    mean = real.mean()
    variance = (real - mean).square().mean()
    return ((layer - mean) * torch.rsqrt(variance + LAYER_NORM_EPSILON)).to(layer.dtype)


def mix_layers(
    layers: Tensor, weights: Tensor, mask: Tensor | None = None, layer_norm: bool = False
) -> Tensor:
    """Sum layers by weights.

    Args:
        layers: (L+1, ..., 2D).
        weights: (L+1,).
        mask: (...), True for words; for layer norm only.
        layer_norm: As in `ScalarMix`.

    Returns:
        (..., 2D), in the number type of the weights.
    """
    if layer_norm:
        is_word = cast(Tensor, mask).bool()
        layers = torch.stack([_normalized(layer, is_word) for layer in layers])
    return torch.tensordot(weights.to(layers.dtype), layers, dims=1).to(weights.dtype)


class ScalarMix(nn.Module):
    """A weighted sum of layers. `weights` (before a softmax) and `gamma` learn unless
    `fixed_weights` are given.

    With `layer_norm`, each layer is first normalized to mean 0 and variance 1 over the whole batch
    (all dimensions of all positions where the mask is True), as in bilm-tf and AllenNLP: results
    then depend on the batch.
    """

    def __init__(
        self,
        num_layers: int,
        *,
        layer_norm: bool = False,
        fixed_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        learned, self.layer_norm = fixed_weights is None, layer_norm
        weights = (
            torch.zeros(num_layers)
            if fixed_weights is None
            else torch.tensor(fixed_weights, dtype=torch.float32)
        )
        self.weights = nn.Parameter(weights, requires_grad=learned)
        self.gamma = nn.Parameter(torch.ones(()), requires_grad=learned)

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix layers.

        Args:
            layers: (L+1, ..., 2D).
            mask: (...), True for words; for layer norm only.

        Returns:
            (..., 2D), in the number type of the weights.
        """
        return mix_layers(layers, self.gamma * self.layer_weights(), mask, self.layer_norm)

    def layer_weights(self) -> Tensor:
        """The weights after the softmax, (L+1,)."""
        return torch.softmax(self.weights, dim=0)

    def penalty(self, coefficient: float) -> Tensor:
        """The L2 penalty on the weights, which draws them towards an average (bilm/data.py:541)."""
        return coefficient * self.weights.square().sum()
