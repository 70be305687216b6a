"""Muon with products in the number type of the run, for all matrices of a shape at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

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
                updates = self._updates(parameters, group)
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, updates, alpha=-0.2 * group["lr"] * max(shape) ** 0.5)

    def _updates(self, parameters: Sequence[nn.Parameter], group: dict[str, Any]) -> list[Tensor]:
        """The directions of the updates of matrices of one shape, as `torch.optim._muon._single_tensor_muon`."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(gradient)
        momenta = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        averages = torch.stack(torch._foreach_lerp(gradients, momenta, group["momentum"]))
        settings = group["ns_coefficients"], group["ns_steps"], group["eps"]
        return [*orthogonalized(averages.to(self.dtype), *settings).to(averages.dtype)]


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
