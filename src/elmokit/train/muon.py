"""Muon with products in the number type of the run, for all matrices of a shape at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn


class Muon(torch.optim.Muon):
    """PyTorch's Muon, with updates of AdamW's size that are orthogonalized in float32 or bfloat16.

    PyTorch's own are in bfloat16 whatever the processor: where the hardware does not multiply it, a step in float32 is
    a hundred times faster.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], learning_rate: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        # Updates of AdamW's size, so that both can share a learning rate.
        super().__init__(parameters, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all parameters from their gradients."""
        for group in self.param_groups:
            by_shape: defaultdict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                for parameter, update in zip(parameters, self._updates(parameters, group), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-0.2 * group["lr"] * max(shape) ** 0.5)

    def _updates(self, parameters: Sequence[nn.Parameter], group: dict[str, Any]) -> Tensor:
        """The directions of the updates of K matrices of one shape, as `torch.optim._muon._single_tensor_muon`."""
        gradients, momenta = [], []
        for parameter in parameters:
            state, gradient = self.state[parameter], cast(Tensor, parameter.grad)
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            gradients.append(gradient)
            momenta.append(state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"]))
        averages = torch.stack(gradients).lerp(torch.stack(momenta), group["momentum"])
        settings = group["ns_coefficients"], group["ns_steps"], group["eps"]
        return orthogonalized(averages.to(self.dtype), *settings).to(averages.dtype)


def orthogonalized(
    matrices: Tensor, coefficients: tuple[float, float, float], iterations: int, epsilon: float
) -> Tensor:
    """The Newton-Schulz iteration of Muon, in the number type of the matrices (Jordan et al. 2024).

    Args:
        matrices: (K, M, N).
        coefficients: a, b and c of the polynomial a X + b (X X^T) X + c (X X^T)^2 X.
        iterations: Number of iterations.
        epsilon: Smallest norm to divide by.

    Returns:
        U S V^T for each matrix, (K, M, N), where U D V^T is its singular value decomposition, and the diagonal of S is
        between 0.5 and 1.5.
    """
    a, b, c = coefficients
    is_tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if is_tall else matrices
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=epsilon)
    for _ in range(iterations):
        gram = wide @ wide.mT
        wide = torch.baddbmm(wide, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.mT if is_tall else wide
