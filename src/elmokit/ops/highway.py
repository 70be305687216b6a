"""A highway layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from elmokit.ops.autograd import product_dtype
from elmokit.ops.dispatch import choose


def highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """carry * relu(transform) + (1 - carry) * x (M, F), in the number type of the weight, or that of autocast.

    Args:
        x: (M, F).
        weight: (2F, F); rows of transform, then those of carry, of which the sigmoid is taken.
        bias: (2F,).
    """
    dtype = product_dtype(weight)
    with torch.autocast(x.device.type, enabled=False):
        return choose("highway", x.device, dtype, x.shape[1]).highway(x, weight, bias, dtype)


def prepack_highway(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The weights of `highway` -> a function of x (M, F) that runs without gradients, on the calling thread."""
    with torch.no_grad():
        return choose("prepacked highway", weight.device, dtype, weight.shape[1]).prepack_highway(weight, bias, dtype)
