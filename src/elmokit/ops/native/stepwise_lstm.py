"""`lstm` as `portable.lstm` has it, with the cell compiled: one pass over memory for any processor (csrc/cell.c)."""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from elmokit.ops.lstm import Clips, LSTMState, LSTMWeights
from elmokit.ops.native.library import native
from elmokit.ops.packing import Packing
from elmokit.ops.portable import lstm as portable


def _bound(clip: float | None) -> float:
    return math.inf if clip is None else clip


def cell_forward(
    gates: Tensor, c: Tensor, out: Tensor, clip: float | None, trace: tuple[Tensor, Tensor] | None
) -> None:
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
    cells, previous = trace
    native("cell_backward", gates.dtype)(
        rows=len(cells), hidden_size=cells.shape[1], gates=gates, cells=cells, previous=previous,
        grad_out=grad_out.contiguous(), grad_c=grad_c, grad_gates=grad_gates, clip=_bound(clip),
    )  # fmt: skip


def lstm(
    x: Tensor,
    packing: Packing,
    state: LSTMState,
    weights: LSTMWeights,
    clips: Clips,
    start: LSTMState,
    dtype: torch.dtype,
) -> tuple[Tensor, LSTMState]:
    return portable.lstm(x, packing, state, weights, clips, start, dtype, sys.modules[__name__])


def prepack_lstm(weights: LSTMWeights, dtype: torch.dtype) -> portable.StepwiseLSTM:
    return portable.StepwiseLSTM(weights, dtype, __name__)
