"""The cell of `portable.lstm` compiled: one pass over memory for any processor (csrc/cell.c)."""

from __future__ import annotations

import math

from torch import Tensor

from elmokit.ops.native.library import native


def _bound(clip: float | None) -> float:
    return math.inf if clip is None else clip


def cell_forward(
    gates: Tensor, c: Tensor, out: Tensor, clip: float | None, trace: tuple[Tensor, Tensor] | None
) -> None:
    """See `portable.lstm.cell_forward`."""
    cells, previous = trace or (None, None)
    native("cell_forward", gates.dtype)(
        rows=len(c), hidden_size=c.shape[1], gates=gates, c=c, out=out, cells=cells, previous=previous,
        clip=_bound(clip),
    )  # fmt: skip


def cell_backward(
    gates: Tensor,
    trace: tuple[Tensor, Tensor],
    grad_out: Tensor,
    grad_c: Tensor,
    grad_gates: Tensor,
    clip: float | None,
) -> None:
    """See `portable.lstm.cell_backward`."""
    cells, previous = trace
    native("cell_backward", gates.dtype)(
        rows=len(cells), hidden_size=cells.shape[1], gates=gates, cells=cells, previous=previous,
        grad_out=grad_out.contiguous(), grad_c=grad_c, grad_gates=grad_gates, clip=_bound(clip),
    )  # fmt: skip
