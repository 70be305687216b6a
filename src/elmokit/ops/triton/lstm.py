"""`lstm` with a projection as one kernel for all steps of a layer and direction, forward and
backward.

Rows are independent of each other, so a program takes a few of them through all steps and never
waits for another one. At each step it reads all weights, from L2 cache, a block of units at a time;
its h stays in registers. The gradient of a weight is one GEMM over all slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiable_lstm
from elmokit.ops.functional import LSTMResult, LSTMState, LSTMSteps, LSTMWeights
from elmokit.ops.triton import launch

# --- Kernels --------------------------------------------------------------------------------------
#
# A program takes ROWS rows of the stream through all steps, and at each step HIDDEN cells in blocks
# of UNITS. Slots of its rows, where step t begins at starts[t] and the rows of the step come first:
#
#     slot                starts[t]  +0  +1  +2  ..            starts[t+1]
#     rank (row)                      0   1   2  ..  active rows of step t
#
# A gate of the weights (4 HIDDEN, WIDTH) begins at i: 0, g: HIDDEN, f: 2 HIDDEN, o: 3 HIDDEN.
#
# tl.range is iterated over in kernels only:
# pyright: reportGeneralTypeIssues=false


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _clip(x, bound):
    return tl.clamp(x, -bound, bound, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _block(matrix, rows, columns, STRIDE: tl.constexpr):
    return tl.load(matrix + rows[:, None] * STRIDE + columns[None, :])


@triton.jit
def _fresh(resets, slots, active):
    """The rows that are reset before their slots, as a column."""
    fresh = slots < 0 if resets is None else tl.load(resets + slots, mask=active, other=0) != 0
    return fresh[:, None]


@triton.jit
def _gate(x, mask, low_h, recurrent, units, dims, WIDTH: tl.constexpr, PRECISION: tl.constexpr):
    """A gate before its activation; `x` and `recurrent` point to the gate's columns and rows."""
    weights = _block(recurrent, units, dims, WIDTH).T
    return tl.dot(
        low_h, weights, tl.load(x, mask=mask, other=0.0).to(tl.float32), input_precision=PRECISION
    )


@triton.jit(do_not_specialize=["steps"], do_not_specialize_on_alignment=["index"])
def forward_kernel(
    inputs,
    index,
    recurrent,
    projection,
    h,
    c,
    start_h,
    start_c,
    outputs,
    gates,
    hidden,
    cells,
    previous_h,
    starts,
    resets,
    steps,
    cell_clip,
    projection_clip,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    dtype = recurrent.dtype.element_ty
    rows, dims = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    all_rows = tl.load(starts + 1)
    at_h, is_row = rows[:, None] * WIDTH + dims[None, :], (rows < all_rows)[:, None]
    state = tl.load(h + at_h, mask=is_row, other=0.0)
    for step in tl.range(0, steps, num_stages=1):
        begin = tl.load(starts + step)
        active = rows < tl.load(starts + step + 1) - begin
        slots, mask = (begin + rows).to(tl.int64), active[:, None]
        fresh = _fresh(resets, slots, active)
        state = tl.where(fresh, tl.load(start_h + dims)[None, :], state)
        low_h = state.to(dtype)
        sources = (
            slots if index is None else tl.load(index + slots, mask=active, other=0).to(tl.int64)
        )
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in tl.range(0, HIDDEN, UNITS, num_stages=STAGES):
            units = first + tl.arange(0, UNITS)
            x = inputs + sources[:, None] * (4 * HIDDEN) + units[None, :]
            i = tl.sigmoid(_gate(x, mask, low_h, recurrent, units, dims, WIDTH, PRECISION))
            g = _tanh(
                _gate(
                    x + HIDDEN,
                    mask,
                    low_h,
                    recurrent + HIDDEN * WIDTH,
                    units,
                    dims,
                    WIDTH,
                    PRECISION,
                )
            )
            f = _gate(
                x + 2 * HIDDEN,
                mask,
                low_h,
                recurrent + 2 * HIDDEN * WIDTH,
                units,
                dims,
                WIDTH,
                PRECISION,
            )
            o = _gate(
                x + 3 * HIDDEN,
                mask,
                low_h,
                recurrent + 3 * HIDDEN * WIDTH,
                units,
                dims,
                WIDTH,
                PRECISION,
            )
            f, o = tl.sigmoid(f), tl.sigmoid(o)
            at_c = c + rows[:, None] * HIDDEN + units[None, :]
            cell = tl.where(
                fresh, tl.load(start_c + units)[None, :], tl.load(at_c, mask=mask, other=0.0)
            )
            cell = _clip(i * g + f * cell, cell_clip)
            tl.store(at_c, cell, mask=mask)
            value = (o * _tanh(cell)).to(dtype)
            total = tl.dot(
                value, _block(projection, dims, units, HIDDEN).T, total, input_precision=PRECISION
            )
            if gates is not None:
                at, at_gates = (
                    slots[:, None] * HIDDEN + units[None, :],
                    slots[:, None] * (4 * HIDDEN) + units[None, :],
                )
                tl.store(gates + at_gates, i.to(dtype), mask=mask)
                tl.store(gates + at_gates + HIDDEN, g.to(dtype), mask=mask)
                tl.store(gates + at_gates + 2 * HIDDEN, f.to(dtype), mask=mask)
                tl.store(gates + at_gates + 3 * HIDDEN, o.to(dtype), mask=mask)
                tl.store(hidden + at, value, mask=mask)
                tl.store(cells + all_rows.to(tl.int64) * HIDDEN + at, cell, mask=mask)
        at_out = slots[:, None] * WIDTH + dims[None, :]
        if previous_h is not None:
            tl.store(previous_h + at_out, low_h, mask=mask)
        state = tl.where(mask, _clip(total, projection_clip), state)
        tl.store(outputs + at_out, state, mask=mask)
        tl.debug_barrier()  # the threads of the next step read cells that others have written
    tl.store(h + at_h, state, mask=is_row)


@triton.jit(do_not_specialize=["steps"])
def backward_kernel(
    grad_outputs,
    grad_h,
    grad_c,
    recurrent,
    projection,
    start_c,
    outputs,
    gates,
    cells,
    grad_projected,
    grad_gates,
    starts,
    resets,
    steps,
    cell_clip,
    projection_clip,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    dtype = recurrent.dtype.element_ty
    rows, dims = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    all_rows = tl.load(starts + 1)
    at_h, is_row = rows[:, None] * WIDTH + dims[None, :], (rows < all_rows)[:, None]
    grad_state = tl.load(grad_h + at_h, mask=is_row, other=0.0)
    for back in tl.range(0, steps, num_stages=1):
        step = steps - 1 - back
        begin = tl.load(starts + step)
        active = rows < tl.load(starts + step + 1) - begin
        slots, mask = (begin + rows).to(tl.int64), active[:, None]
        fresh = _fresh(resets, slots, active)
        # `cells` (B + N, H) begins with those before the first step
        before = tl.where(step == 0, 0, all_rows + tl.load(starts + tl.maximum(step - 1, 0)))
        old_slots = (before + rows).to(tl.int64)
        at_out = slots[:, None] * WIDTH + dims[None, :]
        grad = tl.load(grad_outputs + at_out, mask=mask, other=0.0) + grad_state
        grad = tl.where(
            tl.abs(tl.load(outputs + at_out, mask=mask, other=0.0)) < projection_clip, grad, 0.0
        )
        low_grad = grad.to(dtype)
        tl.store(grad_projected + at_out, low_grad, mask=mask)
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in tl.range(0, HIDDEN, UNITS, num_stages=STAGES):
            units = first + tl.arange(0, UNITS)
            grad_hidden = tl.dot(
                low_grad, _block(projection, dims, units, HIDDEN), input_precision=PRECISION
            )
            at_gates = slots[:, None] * (4 * HIDDEN) + units[None, :]
            i = tl.load(gates + at_gates, mask=mask, other=0.0).to(tl.float32)
            g = tl.load(gates + at_gates + HIDDEN, mask=mask, other=0.0).to(tl.float32)
            f = tl.load(gates + at_gates + 2 * HIDDEN, mask=mask, other=0.0).to(tl.float32)
            o = tl.load(gates + at_gates + 3 * HIDDEN, mask=mask, other=0.0).to(tl.float32)
            at_cells = cells + units[None, :]
            cell = tl.load(at_cells + (all_rows + slots)[:, None] * HIDDEN, mask=mask, other=0.0)
            old = tl.load(at_cells + old_slots[:, None] * HIDDEN, mask=mask, other=0.0)
            old = tl.where(fresh, tl.load(start_c + units)[None, :], old)
            tanh_c = _tanh(cell)
            at_c = grad_c + rows[:, None] * HIDDEN + units[None, :]
            grad_cell = tl.load(at_c, mask=mask, other=0.0) + grad_hidden * o * (
                1 - tanh_c * tanh_c
            )
            grad_cell = tl.where(tl.abs(cell) < cell_clip, grad_cell, 0.0)
            tl.store(at_c, tl.where(fresh, 0.0, grad_cell * f), mask=mask)
            grad_i = (grad_cell * g * i * (1 - i)).to(dtype)
            grad_g = (grad_cell * i * (1 - g * g)).to(dtype)
            grad_f = (grad_cell * old * f * (1 - f)).to(dtype)
            grad_o = (grad_hidden * tanh_c * o * (1 - o)).to(dtype)
            tl.store(grad_gates + at_gates, grad_i, mask=mask)
            tl.store(grad_gates + at_gates + HIDDEN, grad_g, mask=mask)
            tl.store(grad_gates + at_gates + 2 * HIDDEN, grad_f, mask=mask)
            tl.store(grad_gates + at_gates + 3 * HIDDEN, grad_o, mask=mask)
            of_gate = recurrent + HIDDEN * WIDTH
            total = tl.dot(
                grad_i, _block(recurrent, units, dims, WIDTH), total, input_precision=PRECISION
            )
            total = tl.dot(
                grad_g, _block(of_gate, units, dims, WIDTH), total, input_precision=PRECISION
            )
            of_gate += HIDDEN * WIDTH
            total = tl.dot(
                grad_f, _block(of_gate, units, dims, WIDTH), total, input_precision=PRECISION
            )
            of_gate += HIDDEN * WIDTH
            total = tl.dot(
                grad_o, _block(of_gate, units, dims, WIDTH), total, input_precision=PRECISION
            )
        grad_state = tl.where(mask, tl.where(fresh, 0.0, total), grad_state)
        # the threads of the next step read gradients of cells that others have written
        tl.debug_barrier()
    tl.store(grad_h + at_h, grad_state, mask=is_row)


# --- Launch ---------------------------------------------------------------------------------------


def _launch(kernel: Any, name: str, steps: LSTMSteps, **tensors: Any) -> None:
    """Run a kernel over all steps."""
    packing, clips, _ = steps
    if packing.num_slots == 0:
        return
    (width, hidden), weight = tensors["projection"].shape, tensors["recurrent"]
    rows, units, warps, stages = launch.fitted(name, hidden, width, weight.dtype, weight.device)
    cell_clip, projection_clip = (math.inf if clip is None else clip for clip in clips)
    _, starts, resets = packing.on(weight.device)
    if weight.is_cuda:
        # The packing may be gone before this stream is through with it; its tensors share memory.
        starts.record_stream(torch.cuda.current_stream(weight.device))
    with torch.cuda.device_of(weight):
        kernel[(triton.cdiv(packing.batch_sizes[0], rows),)](
            **tensors,
            starts=starts,
            resets=None if resets is None else resets.view(torch.uint8),
            steps=len(packing.batch_sizes),
            cell_clip=cell_clip,
            projection_clip=projection_clip,
            HIDDEN=hidden,
            WIDTH=width,
            ROWS=rows,
            UNITS=units,
            STAGES=stages,
            PRECISION=launch.PRECISION,
            num_warps=warps,
        )


def _contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


# --- With gradients -------------------------------------------------------------------------------


def forward(
    x: Tensor, h: Tensor, c: Tensor, *weights: Tensor, steps: LSTMSteps, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], Tensors]:
    input, recurrent, bias, projection = _contiguous([weight.to(dtype) for weight in weights])
    low_x, state = x.to(dtype), LSTMState(h, c).copy()
    slots, hidden, width = len(x), c.shape[1], h.shape[1]
    rows = max(steps.packing.batch_sizes, default=0)
    outputs, cells = h.new_empty(slots, width), c.new_empty(rows + slots, hidden)
    cells[:rows] = c[:rows]
    trace = {
        "gates": low_x.new_empty(slots, 4 * hidden),
        "hidden": low_x.new_empty(slots, hidden),
        "cells": cells,
        "previous_h": low_x.new_empty(slots, width),
    }
    _launch(
        forward_kernel,
        "forward",
        steps,
        inputs=torch.addmm(bias, low_x, input.T),
        index=None,
        recurrent=recurrent,
        projection=projection,
        h=state.h,
        c=state.c,
        start_h=steps.reset_state.h,
        start_c=steps.reset_state.c,
        outputs=outputs,
        **trace,
    )
    return (outputs, *state), (*trace.values(), outputs, low_x, input, recurrent, projection)


def backward(
    saved: Sequence[Tensor],
    gradients: Sequence[Tensor],
    steps: LSTMSteps,
    dtype: torch.dtype,
) -> Tensors:
    gates, hidden, cells, previous_h, outputs, x, input, recurrent, projection = saved
    grad_h, grad_c = LSTMState(*gradients[1:]).copy()
    grad_gates, grad_projected = torch.empty_like(gates), torch.empty_like(previous_h)
    _launch(
        backward_kernel,
        "backward",
        steps,
        grad_outputs=gradients[0].contiguous(),
        grad_h=grad_h,
        grad_c=grad_c,
        recurrent=recurrent,
        projection=projection,
        start_c=steps.reset_state.c,
        outputs=outputs,
        gates=gates,
        cells=cells,
        grad_projected=grad_projected,
        grad_gates=grad_gates,
    )
    return (
        grad_gates @ input,
        grad_h,
        grad_c,
        grad_gates.T @ x,
        grad_gates.T @ previous_h,
        grad_gates.sum(dim=0, dtype=grad_c.dtype),
        grad_projected.T @ hidden,
    )


lstm = partial(differentiable_lstm, forward, backward)


# --- Without gradients ----------------------------------------------------------------------------


def _run(
    x: Tensor,
    state: LSTMState,
    steps: LSTMSteps,
    index: Tensor | None,
    *,
    weights: Sequence[Tensor],
) -> LSTMResult:
    (input, recurrent, bias, projection), state = weights, state.copy()
    outputs = state.h.new_empty(steps.packing.num_slots, state.h.shape[1])
    assert index is None or index.is_contiguous()
    _launch(
        forward_kernel,
        "forward",
        steps,
        inputs=torch.addmm(bias, x.to(bias.dtype), input.T),
        index=index,
        recurrent=recurrent,
        projection=projection,
        h=state.h,
        c=state.c,
        start_h=steps.reset_state.h,
        start_c=steps.reset_state.c,
        outputs=outputs,
        gates=None,
        hidden=None,
        cells=None,
        previous_h=None,
    )
    return outputs, state


def prepack_lstm(weights: LSTMWeights, dtype: torch.dtype) -> Callable[..., LSTMResult]:
    copied = [weight.detach().to(dtype, copy=True) for weight in weights if weight is not None]
    return partial(_run, weights=_contiguous(copied))
