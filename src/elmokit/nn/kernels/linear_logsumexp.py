"""log(sum(exp(hidden @ weight.T + bias))) and its gradient, made a few rows at a time, so that logits stay in cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

LOGITS_AT_ONCE = 1 << 20  # 4 MB in float32: they stay in cache between the product and the sum


def _chunks(rows: int, classes: int) -> Iterator[slice]:
    size = max(1, LOGITS_AT_ONCE // classes)
    for begin in range(0, rows, size):
        yield slice(begin, min(begin + size, rows))


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None, rows: slice) -> Tensor:
    logits = (hidden[rows] @ weight.T).to(bias.dtype).add_(bias)
    if excluded is not None:
        hits = (excluded[rows] >= 0).nonzero().squeeze(1)
        # finite, so that a row with no other class has a gradient of 0 and not NaN
        logits[hits, excluded[rows][hits]] = torch.finfo(logits.dtype).min
    return logits


class _LinearLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden, weight, bias, excluded, dtype):
        small_hidden, small_weight = hidden.to(dtype), weight.to(dtype)
        wide = torch.promote_types(dtype, torch.float32)
        result = torch.empty(len(hidden), dtype=wide, device=hidden.device)
        for rows in _chunks(len(hidden), len(weight)):
            result[rows] = torch.logsumexp(_logits(small_hidden, small_weight, bias, excluded, rows), dim=1)
        ctx.save_for_backward(small_hidden, small_weight, bias, excluded, result)
        ctx.dtypes = hidden.dtype, weight.dtype
        return result

    @staticmethod
    def backward(ctx: Any, *gradients):
        hidden, weight, bias, excluded, result = ctx.saved_tensors
        (grad,) = gradients
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=result.dtype)
        grad_bias = torch.zeros_like(bias)
        for rows in _chunks(len(hidden), len(weight)):
            probability = _logits(hidden, weight, bias, excluded, rows).sub_(result[rows, None]).exp_()
            probability.mul_(grad[rows, None])
            grad_bias += probability.sum(dim=0)
            probability = probability.to(hidden.dtype)
            grad_hidden[rows] = probability @ weight
            grad_weight += probability.T @ hidden[rows]
        return grad_hidden.to(ctx.dtypes[0]), grad_weight.to(ctx.dtypes[1]), grad_bias, None, None


def linear_logsumexp(hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None = None) -> Tensor:
    """hidden (N, D), weight (V, D), bias (V,) -> (N,). `excluded` (N,): a class left out in each row, -1 for none.

    Products run in the autocast type where autocast is on, sums in float32.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    return _LinearLogSumExp.apply(hidden, weight, bias, excluded, dtype)  # type: ignore[no-any-return]
