"""A highway layer with its gradients: compiled on a CPU where it could be (highway.c), else in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.nn.kernels.cell import TYPES
from elmokit.nn.kernels.directions import on_both_cores
from elmokit.nn.kernels.kept_graph import graph_is_kept
from elmokit.nn.kernels.library import POINTER, SIZE, address, compiled, is_compiled
from elmokit.nn.kernels.memory import large
from elmokit.nn.kernels.products import product_type


def _on_rows(name: str, shared: tuple[Tensor, ...], sums: Tensor | None = None) -> None:
    """The compiled pass over rows of tensors (M, .), the second (M, F), half of them on each core; sums (2, .)."""
    count, units = shared[1].shape
    pointers = [POINTER] * (len(shared) + (sums is not None))
    function = compiled(f"elmokit_highway_{name}_{TYPES[shared[0].dtype]}", SIZE, SIZE, *pointers)
    assert function is not None, "ask is_compiled first"

    def half(which: int) -> None:
        rows = slice(which * count // 2, (which + 1) * count // 2)
        own = [] if sums is None else [address(sums[which])]
        function(rows.stop - rows.start, units, *(address(tensor[rows]) for tensor in shared), *own)

    on_both_cores(half, shared[0].device)


class _Highway(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, weight, bias, dtype):
        ctx.dtypes = x.dtype, weight.dtype, bias.dtype
        x, bias = x.to(dtype).contiguous(), bias.to(dtype)
        if weight.dtype != dtype:
            weight = large(weight.shape, dtype, weight.device).copy_(weight)
        gates = torch.addmm(bias, x, weight.T, out=large((len(x), len(weight)), dtype, x.device))
        out = large(x.shape, dtype, x.device)
        _on_rows("forward", (gates, x, out))
        ctx.save_for_backward(gates, x, weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients):
        gates, x, weight = ctx.saved_tensors
        grad = gradients[0].contiguous()
        of_gates = gates.clone() if graph_is_kept() else gates
        of_x, of_bias = large(x.shape, x.dtype, x.device), torch.zeros(2, len(weight), device=x.device)
        _on_rows("backward", (of_gates, x, grad, of_x), of_bias)
        of_x.addmm_(of_gates, weight)
        of_weight = torch.mm(of_gates.T, x, out=large(weight.shape, x.dtype, x.device))
        if of_weight.dtype != ctx.dtypes[1]:
            of_weight = large(weight.shape, ctx.dtypes[1], x.device).copy_(of_weight)
        return of_x.to(ctx.dtypes[0]), of_weight, of_bias.sum(dim=0).to(ctx.dtypes[2]), None


def highway_of_gates(x: Tensor, gates: Tensor) -> Tensor:
    """x (..., F) and what its product with the weight, and the bias, gave (..., 2F) -> as `highway`."""
    transform, carry = gates.chunk(2, dim=-1)
    return torch.lerp(x.to(transform.dtype), torch.relu(transform), torch.sigmoid(carry))


def highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (M, F), weight (2F, F), bias (2F,) -> carry * relu(transform) + (1 - carry) * x (M, F).

    Rows of the weight: those of transform, then those of carry, of which the sigmoid is taken. In the type of the
    weight, or that of autocast.
    """
    dtype = product_type(weight)
    if x.device.type == "cpu" and x.dim() == 2 and dtype in TYPES and is_compiled():
        return _Highway.apply(x, weight, bias, dtype)  # type: ignore[no-any-return]
    return highway_of_gates(x, F.linear(x, weight, bias))
