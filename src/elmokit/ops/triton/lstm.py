"""`lstm` with a projection as one kernel for all steps of a layer and direction, forward and
backward.

Rows are independent of each other, so a program takes a few of them through all steps and never
waits for another one. At each step it reads all weights, from L2 cache, a block of units at a time;
its h stays in registers. The gradient of a weight is one GEMM over all slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.functional import LSTMResult, LSTMState, LSTMSteps, LSTMWeights
from elmokit.ops.triton import fitted_launch

# --- Kernels --------------------------------------------------------------------------------------
#
# A program takes ROWS rows of the stream through all steps, and at each step HIDDEN cells in blocks
# of UNITS. Slots of its rows, where step t begins at starts[t] and the rows of the step come first:
#
#     slot                starts[t]  +0  +1  +2  ..            starts[t+1]
#     rank (row)                      0   1   2  ..  active rows of step t
#
# Weights are (4 HIDDEN, WIDTH) and the products of x (N, 4 HIDDEN). Gate k of a block, of i g f o:
#
#     rows of the weights, columns of the products      k HIDDEN + units
#
# Float32 is multiplied as PyTorch does it ("ieee"), not rounded to TF32.
#
# tl.range is iterated over, and numbers are constants, in kernels only:
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _clip(x, bound):
    return tl.clamp(x, -bound, bound, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _load(pointers, mask):
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def _block(matrix, rows, columns, STRIDE: tl.constexpr):
    return tl.load(matrix + rows[:, None] * STRIDE + columns[None, :])


@triton.jit
def _fresh(resets, slots, active):
    """The rows that are reset before their slots, as a column."""
    fresh = slots < 0 if resets is None else tl.load(resets + slots, mask=active, other=0) != 0
    return fresh[:, None]


@triton.jit
def _gate(
    k: tl.constexpr,
    x,
    mask,
    low_h,
    recurrent,
    units,
    dims,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Gate k before its activation; `x` points to the products of gate 0."""
    weights = _block(recurrent + k * HIDDEN * WIDTH, units, dims, WIDTH).T
    products = _load(x + k * HIDDEN, mask).to(tl.float32)
    return tl.dot(low_h, weights, products, input_precision="ieee")


@triton.jit
def _back_through_gate(
    k: tl.constexpr, grad, recurrent, units, dims, total, HIDDEN: tl.constexpr, WIDTH: tl.constexpr
):
    """`total` plus the gradient of h through gate k."""
    weights = _block(recurrent + k * HIDDEN * WIDTH, units, dims, WIDTH)
    return tl.dot(grad, weights, total, input_precision="ieee")


@triton.jit
def _store_gates(gates, i, g, f, o, mask, HIDDEN: tl.constexpr):
    """Store what belongs to each gate; `gates` points to gate 0."""
    tl.store(gates, i, mask=mask)
    tl.store(gates + HIDDEN, g, mask=mask)
    tl.store(gates + 2 * HIDDEN, f, mask=mask)
    tl.store(gates + 3 * HIDDEN, o, mask=mask)


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
):
    dtype = recurrent.dtype.element_ty
    rows, dims = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    all_rows = tl.load(starts + 1)
    at_h, is_row = rows[:, None] * WIDTH + dims[None, :], (rows < all_rows)[:, None]
    state = _load(h + at_h, is_row)
    for step in tl.range(0, steps, num_stages=1):
        begin = tl.load(starts + step)
        active = rows < tl.load(starts + step + 1) - begin
        slots, mask = (begin + rows).to(tl.int64), active[:, None]
        fresh = _fresh(resets, slots, active)
        state = tl.where(fresh, tl.load(start_h + dims)[None, :], state)
        low_h = state.to(dtype)
        # the row of `inputs` that each slot reads: its own, or its word's
        sources = (
            slots if index is None else tl.load(index + slots, mask=active, other=0).to(tl.int64)
        )
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in tl.range(0, HIDDEN, UNITS, num_stages=STAGES):
            units = first + tl.arange(0, UNITS)
            x = inputs + sources[:, None] * (4 * HIDDEN) + units[None, :]
            i = tl.sigmoid(_gate(0, x, mask, low_h, recurrent, units, dims, HIDDEN, WIDTH))
            g = _tanh(_gate(1, x, mask, low_h, recurrent, units, dims, HIDDEN, WIDTH))
            f = tl.sigmoid(_gate(2, x, mask, low_h, recurrent, units, dims, HIDDEN, WIDTH))
            o = tl.sigmoid(_gate(3, x, mask, low_h, recurrent, units, dims, HIDDEN, WIDTH))
            at_c = c + rows[:, None] * HIDDEN + units[None, :]
            cell = tl.where(fresh, tl.load(start_c + units)[None, :], _load(at_c, mask))
            cell = _clip(i * g + f * cell, cell_clip)
            tl.store(at_c, cell, mask=mask)
            value = (o * _tanh(cell)).to(dtype)
            weights = _block(projection, dims, units, HIDDEN).T
            total = tl.dot(value, weights, total, input_precision="ieee")
            if gates is not None:
                at = slots[:, None] * HIDDEN + units[None, :]
                at_gates = gates + slots[:, None] * (4 * HIDDEN) + units[None, :]
                _store_gates(
                    at_gates, i.to(dtype), g.to(dtype), f.to(dtype), o.to(dtype), mask, HIDDEN
                )
                tl.store(hidden + at, value, mask=mask)
                # `cells` (B + N, H) begins with those before the first step
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
):
    dtype = recurrent.dtype.element_ty
    rows, dims = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    all_rows = tl.load(starts + 1)
    at_h, is_row = rows[:, None] * WIDTH + dims[None, :], (rows < all_rows)[:, None]
    grad_state = _load(grad_h + at_h, is_row)
    for back in tl.range(0, steps, num_stages=1):
        step = steps - 1 - back
        begin = tl.load(starts + step)
        active = rows < tl.load(starts + step + 1) - begin
        slots, mask = (begin + rows).to(tl.int64), active[:, None]
        fresh = _fresh(resets, slots, active)
        # Cells before and after step t, of 2 rows and then of slots that begin at 0 and 2:
        #
        #     row of `cells`    0 1     2 3     4 5
        #                       first   slots   slots
        #     step 0            before  after
        #     step 1                    before  after
        before = tl.where(step == 0, 0, all_rows + tl.load(starts + tl.maximum(step - 1, 0)))
        old_slots = (before + rows).to(tl.int64)
        at_out = slots[:, None] * WIDTH + dims[None, :]
        grad = _load(grad_outputs + at_out, mask) + grad_state
        grad = tl.where(tl.abs(_load(outputs + at_out, mask)) < projection_clip, grad, 0.0)
        low_grad = grad.to(dtype)
        tl.store(grad_projected + at_out, low_grad, mask=mask)
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in tl.range(0, HIDDEN, UNITS, num_stages=STAGES):
            units = first + tl.arange(0, UNITS)
            weights = _block(projection, dims, units, HIDDEN)
            grad_hidden = tl.dot(low_grad, weights, input_precision="ieee")
            at_gates = slots[:, None] * (4 * HIDDEN) + units[None, :]
            i = _load(gates + at_gates, mask).to(tl.float32)
            g = _load(gates + at_gates + HIDDEN, mask).to(tl.float32)
            f = _load(gates + at_gates + 2 * HIDDEN, mask).to(tl.float32)
            o = _load(gates + at_gates + 3 * HIDDEN, mask).to(tl.float32)
            at_cells = cells + units[None, :]
            cell = _load(at_cells + (all_rows + slots)[:, None] * HIDDEN, mask)
            old = _load(at_cells + old_slots[:, None] * HIDDEN, mask)
            old = tl.where(fresh, tl.load(start_c + units)[None, :], old)
            tanh_c = _tanh(cell)
            at_c = grad_c + rows[:, None] * HIDDEN + units[None, :]
            grad_cell = _load(at_c, mask) + grad_hidden * o * (1 - tanh_c * tanh_c)
            grad_cell = tl.where(tl.abs(cell) < cell_clip, grad_cell, 0.0)
            # no gradient goes back through a reset
            tl.store(at_c, tl.where(fresh, 0.0, grad_cell * f), mask=mask)
            grad_i = (grad_cell * g * i * (1 - i)).to(dtype)
            grad_g = (grad_cell * i * (1 - g * g)).to(dtype)
            grad_f = (grad_cell * old * f * (1 - f)).to(dtype)
            grad_o = (grad_hidden * tanh_c * o * (1 - o)).to(dtype)
            _store_gates(grad_gates + at_gates, grad_i, grad_g, grad_f, grad_o, mask, HIDDEN)
            total = _back_through_gate(0, grad_i, recurrent, units, dims, total, HIDDEN, WIDTH)
            total = _back_through_gate(1, grad_g, recurrent, units, dims, total, HIDDEN, WIDTH)
            total = _back_through_gate(2, grad_f, recurrent, units, dims, total, HIDDEN, WIDTH)
            total = _back_through_gate(3, grad_o, recurrent, units, dims, total, HIDDEN, WIDTH)
        grad_state = tl.where(mask, tl.where(fresh, 0.0, total), grad_state)
        # the threads of the next step read gradients of cells that others have written
        tl.debug_barrier()
    tl.store(grad_h + at_h, grad_state, mask=is_row)


# --- Launch ---------------------------------------------------------------------------------------


def _launch(kernel: Any, name: str, steps: LSTMSteps, **tensors: Any) -> None:
    """Run a kernel over all steps."""
    packing, (cell_clip, projection_clip), _ = steps
    if packing.num_slots == 0:
        return
    (width, hidden), weight = tensors["projection"].shape, tensors["recurrent"]
    rows, units, warps, stages = fitted_launch(name, hidden, width, weight.dtype, weight.device)
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
            num_warps=warps,
        )


def _forward_steps(
    products: Tensor,
    state: LSTMState,
    steps: LSTMSteps,
    recurrent: Tensor,
    projection: Tensor,
    index: Tensor | None = None,
    **trace: Tensor,
) -> Tensor:
    """The outputs, from the products of the input; the state is updated, a trace is filled."""
    outputs = state.h.new_empty(steps.packing.num_slots, state.h.shape[1])
    not_traced = dict.fromkeys(("gates", "hidden", "cells", "previous_h"))
    _launch(
        forward_kernel,
        "forward",
        steps,
        inputs=products,
        index=index,
        recurrent=recurrent,
        projection=projection,
        h=state.h,
        c=state.c,
        start_h=steps.reset_state.h,
        start_c=steps.reset_state.c,
        outputs=outputs,
        **(trace or not_traced),
    )
    return outputs


# --- With gradients -------------------------------------------------------------------------------


def forward(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    *weights: Tensor,
    steps: LSTMSteps,
    dtype: torch.dtype,
) -> tuple[tuple[Tensor, ...], Tensors]:
    input, recurrent, bias, projection = (weight.to(dtype).contiguous() for weight in weights)
    low_x, state = x.to(dtype), LSTMState(h, c).copy()
    slots, hidden, width = len(x), c.shape[1], h.shape[1]
    rows = max(steps.packing.batch_sizes, default=0)
    cells = c.new_empty(rows + slots, hidden)
    cells[:rows] = c[:rows]
    trace = {
        "gates": low_x.new_empty(slots, 4 * hidden),
        "hidden": low_x.new_empty(slots, hidden),
        "cells": cells,
        "previous_h": low_x.new_empty(slots, width),
    }
    products = torch.addmm(bias, low_x, input.T)
    outputs = _forward_steps(products, state, steps, recurrent, projection, **trace)
    return (outputs, *state), (*trace.values(), outputs, low_x, input, recurrent, projection)


def backward(
    saved: Sequence[Tensor],
    *gradients: Tensor,
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


lstm = partial(differentiably, forward, backward)


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
    assert index is None or index.is_contiguous()
    products = torch.addmm(bias, x.to(bias.dtype), input.T)
    return _forward_steps(products, state, steps, recurrent, projection, index), state


def prepack_lstm(weights: LSTMWeights, dtype: torch.dtype) -> Callable[..., LSTMResult]:
    copies = [weight.detach().to(dtype, copy=True) for weight in weights if weight is not None]
    return partial(_run, weights=[weight.contiguous() for weight in copies])
