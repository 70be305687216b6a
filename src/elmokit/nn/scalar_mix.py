"""The learned mixture of layers, gamma * sum_j softmax(s)_j h_j (paper equation 1; bilm/data.py:532-574)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

LAYER_NORM_EPSILON = 1e-12  # bilm-tf's; AllenNLP has 1e-13, which float32 cannot tell apart


def _normalized(layer: Tensor, mask: Tensor) -> Tensor:
    real = layer[mask].to(torch.promote_types(layer.dtype, torch.float32))
    mean = real.mean()
    variance = (real - mean).square().mean()
    return ((layer - mean) * torch.rsqrt(variance + LAYER_NORM_EPSILON)).to(layer.dtype)


def mix_layers(layers: Tensor, weights: Tensor, mask: Tensor | None = None, layer_norm: bool = False) -> Tensor:
    """Sum layers by weights.

    Args:
        layers: (L+1, ..., 2D).
        weights: (L+1,).
        mask: (...), True for words; for layer norm only.
        layer_norm: As in `ScalarMix`.

    Returns:
        (..., 2D), in the number type of the weights.

    Raises:
        ValueError: `layer_norm` is set, and there is no mask.
    """
    if layer_norm:
        if mask is None:
            raise ValueError("a mix with layer norm needs the mask, to leave padding out of the statistics")
        layers = torch.stack([_normalized(layer, mask.bool()) for layer in layers])
    return torch.tensordot(weights.to(layers.dtype), layers, dims=1).to(weights.dtype)


class ScalarMix(nn.Module):
    """A weighted sum of layers. `weights` (before a softmax) and `gamma` learn unless `fixed_weights` are given.

    With `layer_norm`, each layer is first normalized to mean 0 and variance 1 over the whole batch (all dimensions of
    all positions where the mask is True), as in bilm-tf and AllenNLP: results then depend on the batch.
    """

    def __init__(
        self, num_layers: int, *, layer_norm: bool = False, fixed_weights: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        if fixed_weights is not None and len(fixed_weights) != num_layers:
            raise ValueError(
                f"fixed_weights must hold {num_layers} numbers (before the softmax), not {len(fixed_weights)}"
            )
        self.layer_norm = layer_norm
        learned = fixed_weights is None
        weights = torch.zeros(num_layers)
        if fixed_weights is not None:
            given = torch.as_tensor(fixed_weights, dtype=torch.float32, device="cpu").detach()
            if not given.softmax(dim=0).isfinite().all():
                raise ValueError(f"fixed_weights must be finite, or -inf for a layer left out, not {fixed_weights}")
            weights = given.to(weights.device, copy=True)
        self.weights = nn.Parameter(weights, requires_grad=learned)
        self.gamma = nn.Parameter(torch.ones(()), requires_grad=learned)

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix layers.

        Args:
            layers: (L+1, ..., 2D).
            mask: (...), True for words; for layer norm only.

        Returns:
            (..., 2D), in the number type of the weights.

        Raises:
            ValueError: `layers` is not a tensor of as many layers as weights, or layer norm has no mask.
        """
        if not isinstance(layers, Tensor):
            raise ValueError(f"a mix takes one tensor (L+1, ..., 2D), not {type(layers).__name__}: torch.stack(layers)")
        if len(layers) != len(self.weights):
            raise ValueError(f"this mix has {len(self.weights)} weights, but got {len(layers)} layers")
        return mix_layers(layers, self.gamma * self.layer_weights(), mask, self.layer_norm)

    def layer_weights(self) -> Tensor:
        """The weights after the softmax, (L+1,)."""
        return torch.softmax(self.weights, dim=0)

    def penalty(self, coefficient: float) -> Tensor:
        """The L2 penalty on the weights before the softmax (bilm/data.py:541), which draws them towards an average."""
        return coefficient * self.weights.square().sum()
