"""`logsumexp` one tile of logits at a time, computed again for the gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably

LOGITS_AT_ONCE = 1 << 20  # 4 MB in float32: a tile stays in cache between the product and the sum
MIN_ROWS = 64  # of a tile, however many classes there are: with fewer, products are slow
# tiles are this much larger on a GPU, where launching a kernel costs more than memory
GPU_FACTOR = 64


def _slices(total: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, total)) for begin in range(0, total, size)]


def _tiles(hidden: Tensor, weight: Tensor) -> Iterator[tuple[slice, list[slice]]]:
    """Yield slices of the rows of `hidden`, each with the slices of the classes."""
    logits = LOGITS_AT_ONCE * (1 if hidden.device.type == "cpu" else GPU_FACTOR)
    rows = max(MIN_ROWS, logits // len(weight))
    classes = _slices(len(weight), max(1, logits // rows))
    for part in _slices(len(hidden), rows):
        yield part, classes


def _logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    excluded: Tensor | None,
    rows: slice,
    classes: slice,
) -> Tensor:
    wide = torch.promote_types(bias.dtype, torch.float32)
    logits = (hidden[rows] @ weight[classes].T).to(wide).add_(bias[classes])
    if excluded is not None:
        # One write for each row, of the logit itself where none is excluded: to find these rows
        # would wait for a GPU.
        place = excluded[rows, None].long() - classes.start
        column = place.clamp(0, logits.shape[1] - 1)
        logits.scatter_(
            1, column, logits.gather(1, column).masked_fill_(column == place, -torch.inf)
        )
    return logits


def forward(
    hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None, dtype: torch.dtype
) -> tuple[tuple[Tensor], Tensors]:
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    result = torch.empty(
        len(hidden), dtype=torch.promote_types(dtype, torch.float32), device=hidden.device
    )
    for rows, tiles in _tiles(hidden, weight):
        parts = [
            torch.logsumexp(_logits(hidden, weight, bias, excluded, rows, classes), dim=1)
            for classes in tiles
        ]
        result[rows] = torch.logsumexp(torch.stack(parts), dim=0)
    # finite, so that a row whose only class is excluded has a gradient of 0 and not NaN
    result.clamp_(min=torch.finfo(result.dtype).min)
    return (result,), (hidden, weight, bias, excluded, result)


def backward(saved: Tensors, gradients: Sequence[Tensor], dtype: torch.dtype) -> Tensors:
    hidden, weight, bias, excluded, result = saved
    assert hidden is not None and weight is not None and bias is not None and result is not None
    grad_hidden, grad_weight, grad_bias = (
        torch.zeros_like(tensor, dtype=result.dtype) for tensor in (hidden, weight, bias)
    )
    for rows, tiles in _tiles(hidden, weight):
        for classes in tiles:
            probability = (
                _logits(hidden, weight, bias, excluded, rows, classes)
                .sub_(result[rows, None])
                .exp_()
            )
            probability.mul_(gradients[0][rows, None])
            grad_bias[classes] += probability.sum(dim=0)
            probability = probability.to(dtype)
            grad_hidden[rows] += probability @ weight[classes]
            grad_weight[classes] += probability.T @ hidden[rows]
    return grad_hidden, grad_weight, grad_bias, None


def logsumexp(
    hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None, dtype: torch.dtype
) -> Tensor:
    return differentiably(forward, backward, hidden, weight, bias, excluded, dtype=dtype)[0]
