"""`logsumexp` in C (csrc/logsumexp.h), which keeps logits in cache."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.native.gemm import PANEL, prepack
from elmokit.ops.native.library import native
from elmokit.threads import parallel_for

TILE = 256  # classes, and positions, per tile of the gradient, as in csrc/elmokit.h
MAX_GROUPS = 4  # groups of positions (forward) or classes (backward), one thread each


def _slices(total: int, groups: int, multiple: int) -> list[slice]:
    """At most `groups` slices of about the same size, all but the last a multiple of `multiple`."""
    size = max(multiple, -(-total // (groups * multiple)) * multiple)
    return [slice(begin, min(begin + size, total)) for begin in range(0, total, size)] or [
        slice(0, 0)
    ]


def forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    excluded: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensors]:
    hidden, weight = hidden.to(dtype), weight.to(dtype).contiguous()
    bias = bias.float().contiguous()
    excluded = None if excluded is None else excluded.int().contiguous()
    maximum, total = torch.empty(2, len(hidden), dtype=torch.float32, device="cpu")
    groups = _slices(len(hidden), MAX_GROUPS, PANEL)

    def chunk(number: int) -> None:
        group = groups[number]
        native("logsumexp", dtype)(
            positions=group.stop - group.start,
            classes=len(weight),
            depth=weight.shape[1],
            panels=prepack(hidden[group], dtype).panels,
            weight=weight,
            bias=bias,
            excluded=None if excluded is None else excluded[group],
            max=maximum[group],
            total=total[group],
        )

    parallel_for(chunk, len(groups))
    result = maximum.add_(total.log2_()).mul_(math.log(2))
    return result, (hidden, weight, bias, excluded, result)


def backward(saved: Any, grad: Tensor, dtype: torch.dtype) -> Tensors:
    hidden, weight, bias, excluded, result = saved
    (count, depth), grad = hidden.shape, grad.contiguous()
    panels = prepack(hidden, dtype).panels
    # bfloat16 values are multiplied in pairs
    across = prepack(F.pad(hidden, (0, 0, 0, count % 2)).T, dtype).panels
    groups = _slices(len(weight), MAX_GROUPS, TILE)
    grad_hidden, grad_weight, grad_bias = (
        torch.zeros(shape, dtype=torch.float32, device="cpu")
        for shape in ((len(groups), depth, count), weight.shape, bias.shape)
    )

    def chunk(number: int) -> None:
        group = groups[number]
        native("logsumexp_backward", dtype)(
            positions=count,
            classes=group.stop - group.start,
            depth=depth,
            panels=panels,
            across=across,
            weight=weight[group],
            bias=bias[group],
            excluded=None if excluded is None else excluded - group.start,
            result=result,
            grad=grad,
            grad_hidden=grad_hidden[number],
            grad_weight=grad_weight[group],
            grad_bias=grad_bias[group],
            scratch=weight.new_empty(TILE * (2 * TILE + depth)),
        )

    parallel_for(chunk, len(groups))
    return grad_hidden.sum(dim=0).T.contiguous(), grad_weight, grad_bias, None


logsumexp = partial(differentiably, forward, backward)
