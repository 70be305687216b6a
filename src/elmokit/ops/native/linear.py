"""`prepack_linear` and `prepack_highway` with packed products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elmokit.ops.native.gemm import PackedWeight, pack, packed_highway, product


@dataclass(frozen=True)
class PackedLinear:
    """x (N, K) -> x @ weight.T + bias (N, M) float32, or in the number type of `out`."""

    weight: PackedWeight
    bias: Tensor

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        out = torch.empty(len(x), self.weight.columns) if out is None else out
        return product(x, self.weight, self.bias, out)


@dataclass(frozen=True)
class PackedHighway:
    weight: PackedWeight
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return packed_highway(x, self.weight, self.bias)


def prepack_linear(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> PackedLinear:
    return PackedLinear(pack(weight, dtype).in_huge_pages(), bias.detach().float().clone())


def prepack_highway(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> PackedHighway:
    return PackedHighway(pack(weight, dtype, gates=2).in_huge_pages(), bias.detach().float().clone())
