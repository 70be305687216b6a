"""A linear map of each direction's own, both at once, with its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.nn.kernels.directions import on_both_cores
from elmokit.nn.kernels.products import multiply_into, product_type


class _BothLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, weight, bias, dtype):
        low_x, low_weight, low_bias = (tensor.to(dtype) for tensor in (x, weight, bias))
        out = low_x.new_empty(*x.shape[:2], weight.shape[1])

        def one(d: int) -> None:
            multiply_into(out[d], low_x[d], low_weight[d], low_bias[d])

        on_both_cores(one, x.device)
        ctx.save_for_backward(low_x, low_weight)
        ctx.dtypes = x.dtype, weight.dtype, bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients):
        x, weight = ctx.saved_tensors
        (grad,) = gradients
        grad = grad.contiguous()
        grad_x, grad_weight, grad_bias = (grad.new_empty(shape) for shape in (x.shape, weight.shape, weight.shape[:2]))

        def one(d: int) -> None:
            multiply_into(grad_x[d], grad[d], weight[d].T)
            torch.mm(grad[d].T, x[d], out=grad_weight[d])
            torch.sum(grad[d], dim=0, out=grad_bias[d])  # into another type it would take ten times as long

        on_both_cores(one, x.device)
        return grad_x.to(ctx.dtypes[0]), grad_weight.to(ctx.dtypes[1]), grad_bias.to(ctx.dtypes[2]), None


def both_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (2, N, D), weight (2, M, D), bias (2, M) -> x @ weight.T + bias (2, N, M), direction by direction.

    In the type of the weight, or that of autocast.
    """
    return _BothLinear.apply(x, weight, bias, product_type(weight))  # type: ignore[no-any-return]
