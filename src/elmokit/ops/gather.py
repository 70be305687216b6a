"""Rows of a table, such as the weight of a softmax."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from elmokit.ops.dispatch import choose


def gather_rows(table: Tensor, sets: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """table (V, ...) and sets of ids, (N,) each -> of each set its rows (N, ...)."""
    return choose("gather", table.device, table.dtype).gather(table, sets)
