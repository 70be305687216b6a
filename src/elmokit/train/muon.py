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
            together: defaultdict[Any, dict[nn.Parameter, Tensor]] = defaultdict(dict)
            for number, parameter in enumerate(group["params"]):
                if parameter.grad is not None:  # on a CPU, products of one matrix at a time are faster
                    key = number if parameter.device.type == "cpu" else parameter.shape
                    together[key][parameter] = self._average(parameter, parameter.grad, group["momentum"])
            settings = group["ns_coefficients"], group["ns_steps"], group["eps"]
            for averages in together.values():
                one, *others = (average.to(self.dtype) for average in averages.values())
                updates = orthogonalized(torch.stack([one, *others]) if others else one, *settings)
                for parameter, update in zip(averages, updates if others else [updates], strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-0.2 * group["lr"] * max(parameter.shape) ** 0.5)

    def _average(self, parameter: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """Nesterov's average of the gradients, as in `torch.optim._muon._single_tensor_muon`."""
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        return gradient.lerp(state["momentum_buffer"].lerp_(gradient, 1 - momentum), momentum)


def orthogonalized(
    matrices: Tensor, coefficients: tuple[float, float, float], iterations: int, epsilon: float
) -> Tensor:
    """The Newton-Schulz iteration of Muon, in the number type of the matrices (Jordan et al. 2024).

    Args:
        matrices: (M, N), or K of them (K, M, N).
        coefficients: a, b and c of the polynomial a X + b (X X^T) X + c (X X^T)^2 X.
        iterations: Number of iterations.
        epsilon: Smallest norm to divide by.

    Returns:
        U S V^T for each matrix, where U D V^T is its singular value decomposition, and the diagonal of S is between 0.5
        and 1.5.
    """
    a, b, c = coefficients
    is_tall, multiply = matrices.shape[-2] > matrices.shape[-1], torch.addmm if matrices.dim() == 2 else torch.baddbmm
    wide = matrices.mT if is_tall else matrices
    wide = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp(min=epsilon)
    for _ in range(iterations):
        gram = wide @ wide.mT
        wide = multiply(wide, multiply(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.mT if is_tall else wide
