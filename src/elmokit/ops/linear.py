"""A linear map with prepacked weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from elmokit.ops.dispatch import choose


def prepack_linear(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """weight (M, K) and bias (M,) -> a function of x (N, K) that gives x @ weight.T + bias, (N, M) float32 at least.

    It runs without gradients, on the calling thread. Products are of `dtype`; ValueError where nothing multiplies it.
    """
    with torch.no_grad():
        return choose("prepacked linear", weight.device, dtype, weight.shape[1]).prepack_linear(weight, bias, dtype)
