"""`linear` with its gradient: the same bits on any number of threads, which BLAS alone does not promise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.portable.prepacked import PrepackedProduct
from elmokit.ops.threads import parallel_rows
from elmokit.ops.workspace import allocate, converted

CHUNKS = 8  # of a product's rows, each computed by one thread; a fixed number, whatever the number of threads


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None, add: bool = False) -> Tensor:
    """a (M, K) @ b (K, N), plus a bias (N,) if there is one, or with `add` plus the values of `out`."""
    result = allocate((len(a), b.shape[1]), a.dtype, a.device) if out is None else out

    def run(rows: slice) -> None:
        if add or bias is not None:
            torch.addmm(result[rows] if bias is None else bias, a[rows], b, out=result[rows])
        else:
            torch.mm(a[rows], b, out=result[rows])

    parallel_rows(run, len(a), max(1, -(-len(a) // CHUNKS)), a.device)
    return result


def forward(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[tuple[Tensor], Tensors]:
    x, weight = converted(x, dtype), converted(weight, dtype)
    return (product(x, weight.T, bias.to(dtype)),), (x, weight)


def backward(saved: Tensors, gradients: Sequence[Tensor], last: bool, dtype: torch.dtype) -> Tensors:
    (x, weight), grad = saved, gradients[0]
    assert x is not None and weight is not None
    return product(grad, weight), product(grad.T, x), grad.sum(dim=0, dtype=torch.promote_types(dtype, torch.float32))


def linear(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return differentiably(sys.modules[__name__], x, weight, bias, dtype=dtype)[0]


def prepack_linear(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return PrepackedProduct(weight, dtype, bias)
