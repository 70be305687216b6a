"""`highway`: a product of PyTorch's, then one compiled pass over its result (csrc/highway.c)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.native.library import native
from elmokit.ops.threads import parallel_for
from elmokit.ops.workspace import allocate, allocate_like, converted

CHUNKS = 8  # of the rows, always as many, so that sums over rows do not depend on the number of threads


def _rows_of_chunks(count: int) -> list[slice]:
    return [slice(number * count // CHUNKS, (number + 1) * count // CHUNKS) for number in range(CHUNKS)]


def forward(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[tuple[Tensor], Tensors]:
    x, weight = x.to(dtype).contiguous(), converted(weight, dtype)
    gates = torch.addmm(bias.to(dtype), x, weight.T, out=allocate((len(x), len(weight)), dtype))
    out, rows = allocate_like(x), _rows_of_chunks(len(x))

    def chunk(number: int) -> None:
        own = rows[number]
        native("highway_forward", dtype)(
            rows=own.stop - own.start, units=x.shape[1], gates=gates[own], x=x[own], out=out[own]
        )

    parallel_for(chunk, CHUNKS)
    return (out,), (gates, x, weight)


def backward(saved: Tensors, gradients: Sequence[Tensor], last: bool, dtype: torch.dtype) -> Tensors:
    gates, x, weight = saved
    assert gates is not None and x is not None and weight is not None
    grad, rows = gradients[0].contiguous(), _rows_of_chunks(len(x))
    grad_gates = gates if last else gates.clone()
    grad_x, grad_bias = allocate_like(x), torch.zeros(CHUNKS, len(weight))

    def chunk(number: int) -> None:
        own = rows[number]
        native("highway_backward", dtype)(
            rows=own.stop - own.start, units=x.shape[1], gates=grad_gates[own], x=x[own], grad_out=grad[own],
            grad_x=grad_x[own], grad_bias=grad_bias[number],
        )  # fmt: skip

    parallel_for(chunk, CHUNKS)
    grad_x.addmm_(grad_gates, weight)
    grad_weight = torch.mm(grad_gates.T, x, out=allocate_like(weight))
    return grad_x, grad_weight, grad_bias.sum(dim=0)


def highway(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return differentiably(sys.modules[__name__], x, weight, bias, dtype=dtype)[0]
