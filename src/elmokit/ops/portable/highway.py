"""`highway` with its gradient, rows by rows, so that what several passes over memory read and write stays in cache."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.threads import parallel_rows
from elmokit.ops.workspace import allocate, allocate_like, converted

CHUNK_ROWS = 32


def forward(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[tuple[Tensor], Tensors]:
    x, weight = x.to(dtype).contiguous(), converted(weight, dtype)
    gates = torch.addmm(bias.to(dtype), x, weight.T, out=allocate((len(x), len(weight)), dtype, x.device))
    out = allocate_like(x)

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
    grad_x.addmm_(grad_gates, weight)
    grad_weight = torch.mm(grad_gates.T, x, out=allocate_like(weight))
    return grad_x, grad_weight, grad_gates.sum(dim=0, dtype=torch.promote_types(dtype, torch.float32))


def highway(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return differentiably(sys.modules[__name__], x, weight, bias, dtype=dtype)[0]
