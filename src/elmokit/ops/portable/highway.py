"""`highway` with its gradient, one chunk of rows at a time, which stays in cache for several passes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.portable.linear import product
from elmokit.ops.portable.prepacked import PrepackedProduct
from elmokit.ops.threads import parallel_rows
from elmokit.ops.workspace import allocate_like, converted

CHUNK_ROWS = 32


def forward(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[tuple[Tensor], Tensors]:
    x, weight = x.to(dtype).contiguous(), converted(weight, dtype)
    gates, out = product(x, weight.T, bias.to(dtype)), allocate_like(x)

    def run(rows: slice) -> None:
        transform, carry = gates[rows].chunk(2, dim=1)
        torch.lerp(x[rows], transform.relu_(), carry.sigmoid_(), out=out[rows])

    parallel_rows(run, len(x), CHUNK_ROWS, x.device)
    return (out,), (gates, x, weight)


def backward(saved: Tensors, gradients: Sequence[Tensor], last: bool, dtype: torch.dtype) -> Tensors:
    gates, x, weight = saved
    assert gates is not None and x is not None and weight is not None
    grad_x, grad_gates = allocate_like(x), allocate_like(gates)

    def run(rows: slice) -> None:
        transform, carry = gates[rows].chunk(2, dim=1)
        grad_transform, grad_carry = grad_gates[rows].chunk(2, dim=1)
        through = gradients[0][rows] * carry
        torch.mul(through, transform > 0, out=grad_transform)
        torch.mul(transform - x[rows], through, out=grad_carry).mul_(1 - carry)
        torch.sub(gradients[0][rows], through, out=grad_x[rows])

    parallel_rows(run, len(x), CHUNK_ROWS, x.device)
    product(grad_gates, weight, out=grad_x, add=True)
    return grad_x, product(grad_gates.T, x), grad_gates.sum(dim=0, dtype=torch.promote_types(dtype, torch.float32))


def highway(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return differentiably(sys.modules[__name__], x, weight, bias, dtype=dtype)[0]


def _run_prepacked(gates_of: PrepackedProduct, x: Tensor) -> Tensor:
    transform, carry = gates_of(x).chunk(2, dim=1)
    return torch.lerp(x.to(gates_of.dtype), transform.relu_(), carry.sigmoid_())


def prepack_highway(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return partial(_run_prepacked, PrepackedProduct(weight, dtype, bias))
