"""Products with weights in oneDNN's own layout: up to twice as fast on a CPU as PyTorch's, which converts the weights
at each call.

PyTorch has these functions for its compiler only (`torch.ops.mkldnn`). So they are first compared with PyTorch's own
product, for each number type, and not used where they are missing, fail, or give other results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_OF_AN_OCTAVE = 8  # numbers of rows that are used per power of two


def _multiply(x: Tensor, prepacked: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, prepacked, bias, "none", [], "")


def _prepacked(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


def is_right(multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor], dtype: torch.dtype) -> bool:
    """Whether a product of x, a prepacked weight and a bias works here, and agrees with `F.linear`."""
    with torch.autocast("cpu", enabled=False):  # the answer is kept
        return _is_right(multiply, dtype)


def _is_right(multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor], dtype: torch.dtype) -> bool:
    draw = partial(torch.randn, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    x, weight, bias = (draw(size).to(dtype) for size in ((70, 40), (96, 40), (96,)))
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    try:
        for rows in (1, 5, 70):
            expected = F.linear(x[:rows], weight, bias)
            if (multiply(x[:rows], _prepacked(weight), bias) - expected).norm() > tolerance * expected.norm():
                return False
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True


@cache
def _is_usable(dtype: torch.dtype) -> bool:
    has_type = dtype in (torch.float32, torch.bfloat16) and torch.backends.mkldnn.is_available()
    return has_type and is_right(_multiply, dtype)


def _in_few_shapes(x: Tensor) -> Tensor:
    """Append rows of zeros to x (M, K): oneDNN compiles, and keeps, a kernel for each number of rows."""
    step = max(1, (1 << (len(x) - 1).bit_length()) // ROWS_OF_AN_OCTAVE)
    return F.pad(x, (0, 0, 0, -len(x) % step))


class PrepackedProduct:
    """x @ weight.T, plus a bias if there is one, in one number type, without gradients; keeps a copy of `weight`."""

    def __init__(self, weight: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> None:
        self.dtype, self._bias = dtype, None if bias is None else bias.detach().to(dtype, copy=True)
        self._prepack(weight.detach().to(dtype, copy=True).contiguous())

    def _prepack(self, weight: Tensor) -> None:
        self._is_prepacked = weight.device.type == "cpu" and _is_usable(self.dtype)
        self._weight = _prepacked(weight) if self._is_prepacked else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x (M, K) -> (M, N)."""
        x, rows = x.to(self.dtype), len(x)
        if not self._is_prepacked:
            return F.linear(x, self._weight, self._bias)
        if rows == 0:
            return x.new_empty(0, len(self._weight))
        return _multiply(_in_few_shapes(x).contiguous(), self._weight, self._bias)[:rows]

    def __getstate__(self) -> dict[str, Any]:
        """The weight in PyTorch's layout: oneDNN's depends on the machine."""
        return {**vars(self), "_weight": self._weight.to_dense() if self._is_prepacked else self._weight}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepack(self._weight)
