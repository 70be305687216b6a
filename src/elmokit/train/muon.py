"""Muon with products in the number type of the run; PyTorch's own are in bfloat16, whatever the processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Muon(torch.optim.Muon):
    """PyTorch's Muon, with updates of AdamW's size that are orthogonalized in float32 or bfloat16.

    In bfloat16 it is PyTorch's own step. Where the hardware does not multiply bfloat16, a step in float32 is a hundred
    times faster.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], learning_rate: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        # Updates of AdamW's size, so that both can share a learning rate.
        super().__init__(parameters, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters from their gradients."""
        if self.dtype == torch.bfloat16:
            return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """As `torch.optim._muon._single_tensor_muon`, for one matrix."""
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum: Tensor = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        update = orthogonalized(
            gradient.lerp(momentum, group["momentum"]), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-0.2 * group["lr"] * max(parameter.shape) ** 0.5)


def orthogonalized(matrix: Tensor, coefficients: tuple[float, float, float], iterations: int, epsilon: float) -> Tensor:
    """The Newton-Schulz iteration of Muon, in the number type of the matrix (Jordan et al. 2024).

    Args:
        matrix: (M, N).
        coefficients: a, b and c of the polynomial a X + b (X X^T) X + c (X X^T)^2 X.
        iterations: Number of iterations.
        epsilon: Smallest norm to divide by.

    Returns:
        U S V^T, (M, N), where U D V^T is the singular value decomposition of the matrix, and the diagonal of S is
        between 0.5 and 1.5.
    """
    a, b, c = coefficients
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=epsilon)
    for _ in range(iterations):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
