"""Several sets of rows of one table, with one gradient, as large as the table, for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.nn.kernels.memory import large


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table, *sets):
        ctx.save_for_backward(*sets)
        ctx.shape = table.shape
        found = [large((len(ids), *table.shape[1:]), table.dtype, table.device) for ids in sets]
        return tuple(torch.index_select(table, 0, ids, out=rows) for ids, rows in zip(sets, found, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients):
        of_table = large(ctx.shape, gradients[0].dtype, gradients[0].device).zero_()
        for ids, grad in zip(ctx.saved_tensors, gradients, strict=True):
            of_table.index_add_(0, ids, grad)
        return of_table, *[None] * len(gradients)


def table_rows(table: Tensor, sets: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """table (V, ...) and sets of ids, (N,) each -> of each set its rows (N, ...)."""
    if table.device.type == "cpu":  # where the gradient of F.embedding takes three times as long
        return _Rows.apply(table, *sets)  # type: ignore[no-any-return]
    return F.embedding(torch.cat([*sets]), table).split([len(ids) for ids in sets])
