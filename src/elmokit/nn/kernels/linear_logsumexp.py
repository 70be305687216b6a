"""log(sum(exp(hidden @ weight.T + bias))) and its gradient, never holding all logits.

Compiled (packed_logsumexp.py) where the processor allows, else made a piece at a time, so that logits stay in cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.nn.kernels import packed_logsumexp
from elmokit.nn.kernels.products import has_products, product_type

LOGITS_AT_ONCE = 1 << 20  # 4 MB in float32: a piece stays in cache between the product and the sum
ROWS_AT_ONCE = 64  # at least, however many classes there are: fewer make slow products
FACTOR_ON_GPU = 64  # where a kernel's launch costs more than memory does


def _slices(total: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, total)) for begin in range(0, total, size)]


def _pieces(hidden: Tensor, weight: Tensor) -> Iterator[tuple[slice, list[slice]]]:
    """Rows of `hidden`, and for each such slice those of the classes."""
    logits = LOGITS_AT_ONCE * (1 if hidden.device.type == "cpu" else FACTOR_ON_GPU)
    rows = max(ROWS_AT_ONCE, logits // len(weight))
    classes = _slices(len(weight), max(1, logits // rows))
    for piece in _slices(len(hidden), rows):
        yield piece, classes


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None, rows: slice, classes: slice
) -> Tensor:
    logits = (hidden[rows] @ weight[classes].T).to(bias.dtype).add_(bias[classes])
    if excluded is not None:
        place = excluded[rows] - classes.start
        hits = ((excluded[rows] >= 0) & (place >= 0) & (place < logits.shape[1])).nonzero().squeeze(1)
        # finite, so that a row with no other class has a gradient of 0 and not NaN
        logits[hits, place[hits]] = torch.finfo(logits.dtype).min
    return logits


def _in_pieces(hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None) -> Tensor:
    wide = torch.promote_types(weight.dtype, torch.float32)
    result = torch.empty(len(hidden), dtype=wide, device=hidden.device)
    for rows, pieces in _pieces(hidden, weight):
        parts = [torch.logsumexp(_logits(hidden, weight, bias, excluded, rows, classes), dim=1) for classes in pieces]
        result[rows] = torch.logsumexp(torch.stack(parts), dim=0)
    return result


def _gradients_in_pieces(
    hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None, result: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grad_hidden, grad_weight = (torch.zeros_like(tensor, dtype=result.dtype) for tensor in (hidden, weight))
    grad_bias = torch.zeros_like(bias)
    for rows, pieces in _pieces(hidden, weight):
        for classes in pieces:
            probability = _logits(hidden, weight, bias, excluded, rows, classes).sub_(result[rows, None]).exp_()
            probability.mul_(grad[rows, None])
            grad_bias[classes] += probability.sum(dim=0)
            probability = probability.to(hidden.dtype)
            grad_hidden[rows] += probability @ weight[classes]
            grad_weight[classes] += probability.T @ hidden[rows]
    return grad_hidden, grad_weight, grad_bias


class _LinearLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden, weight, bias, excluded, dtype):
        ctx.dtypes = hidden.dtype, weight.dtype, bias.dtype
        ctx.is_packed = has_products(dtype, hidden.device, hidden.shape[1])
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        if ctx.is_packed:
            weight, bias = weight.contiguous(), bias.float().contiguous()
            excluded = None if excluded is None else excluded.int().contiguous()
        result = (packed_logsumexp.forward if ctx.is_packed else _in_pieces)(hidden, weight, bias, excluded)
        ctx.save_for_backward(hidden, weight, bias, excluded, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients):
        hidden, weight, bias, excluded, result = ctx.saved_tensors
        run = packed_logsumexp.backward if ctx.is_packed else _gradients_in_pieces
        found = run(hidden, weight, bias, excluded, result, gradients[0].contiguous())
        return *(grad.to(dtype) for grad, dtype in zip(found, ctx.dtypes, strict=True)), None, None


def linear_logsumexp(hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None = None) -> Tensor:
    """hidden (N, D), weight (V, D), bias (V,) -> (N,). `excluded` (N,): a class left out in each row, -1 for none.

    Products run in the autocast type where autocast is on, sums in float32. ValueError where sizes do not fit.
    """
    count, dim = hidden.shape
    if weight.shape[1] != dim or len(bias) != len(weight) or not (excluded is None or len(excluded) == count):
        raise ValueError(f"a softmax of weights {tuple(weight.shape)} has no place for vectors {tuple(hidden.shape)}")
    return _LinearLogSumExp.apply(hidden, weight, bias, excluded, product_type(weight))  # type: ignore[no-any-return]
