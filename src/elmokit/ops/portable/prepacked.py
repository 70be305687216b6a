"""Products with weights that oneDNN has laid out once: up to twice as fast on a CPU as PyTorch's, which does it at
each call.

PyTorch has them for the programs of its compiler only (`torch.ops.mkldnn`). So each number type is tried beside
PyTorch's own product first, which takes over where they are missing, fail, or give other numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_MULTIPLE = 8  # oneDNN compiles a program for each number of rows


@cache
def is_usable(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies that type here, and rightly."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=generator).to(dtype) for size in ((70, 40), (96, 40), (96,)))
    try:
        packed = _packed(weight)
        for rows in (1, 5, 70):
            for added in (None, bias):
                found, expected = _multiply(x[:rows], packed, added), F.linear(x[:rows], weight, added)
                if (found - expected).norm() > (1e-5 if dtype == torch.float32 else 0.02) * expected.norm():
                    return False
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True


def _packed(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


def _multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed, bias, "none", [], "")


class PrepackedProduct:
    """x @ weight.T, and perhaps a bias, in one number type and without gradients. It keeps a copy of the weight."""

    def __init__(self, weight: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> None:
        self.dtype, self._bias = dtype, None if bias is None else bias.detach().to(dtype, copy=True)
        self._pack(weight.detach().to(dtype, copy=True).contiguous())

    def _pack(self, weight: Tensor) -> None:
        self._is_packed = weight.device.type == "cpu" and is_usable(self.dtype) and weight.numel() > 0
        self._weight = _packed(weight) if self._is_packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x (M, K) -> (M, N)."""
        x = x.to(self.dtype)
        if not self._is_packed:
            return F.linear(x, self._weight, self._bias)
        return _multiply(x, self._weight, self._bias) if len(x) > 0 else x.new_empty(0, len(self._weight))

    def first(self, x: Tensor, rows: int) -> Tensor:
        """The product of the first rows of x; some more are multiplied where there are, so that few shapes occur."""
        return self(x[: -(-rows // ROWS_MULTIPLE) * ROWS_MULTIPLE])[:rows]

    def __getstate__(self) -> dict[str, Any]:
        """oneDNN's layout is that of this machine."""
        return {**vars(self), "_weight": self._weight.to_dense() if self._is_packed else self._weight}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._pack(self._weight)
