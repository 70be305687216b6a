"""Sets of rows of one table, with one gradient for all of them: that of F.embedding takes three times as long on a
CPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.workspace import allocate


def forward(table: Tensor, *sets: Tensor) -> tuple[tuple[Tensor, ...], Tensors]:
    found = [allocate((len(ids), *table.shape[1:]), table.dtype, table.device) for ids in sets]
    rows = tuple(torch.index_select(table, 0, ids, out=out) for ids, out in zip(sets, found, strict=True))
    return rows, (table, *sets)


def backward(saved: Tensors, gradients: Sequence[Tensor], last: bool) -> Any:
    table, *sets = saved
    assert table is not None
    of_table = allocate(table.shape, gradients[0].dtype, table.device).zero_()
    for ids, grad in zip(sets, gradients, strict=True):
        of_table.index_add_(0, ids, grad)  # type: ignore[arg-type]
    return of_table, *[None] * len(sets)


def gather(table: Tensor, sets: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return differentiably(sys.modules[__name__], table, *sets)
