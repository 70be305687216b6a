"""`lstm` step by step, with its gradients: a backward pass over the values that the forward pass
saved for each slot.

The gradient of a weight is one product over all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiable_lstm
from elmokit.ops.functional import LSTMResult, LSTMState, LSTMSteps, LSTMWeights
from elmokit.ops.packing import Packing
from elmokit.ops.portable.linear import PrepackedLinear
from elmokit.ops.transfer import upload
from elmokit.ops.workspace import allocate

# Without gradients the products of a layer's input are computed for about this many slots at a
# time: enough for a fast product, few enough that they stay in cache until the steps have used
# them. A GPU has no such cache.
CHUNK_SLOTS, CHUNK_SLOTS_ON_GPU = 512, 16_384


# --- The cell -------------------------------------------------------------------------------------


def _cell_forward(
    gates: Tensor, c: Tensor, out: Tensor, clip: float | None, trace: tuple[Tensor, Tensor] | None
) -> None:
    """c <- clip(sigmoid(i) tanh(g) + sigmoid(f) c) and out <- sigmoid(o) tanh(c), in place.

    Args:
        gates: i, g, f, o before their activation functions (B, 4H); with a trace, overwritten by
            the activations.
        c: (B, H), at least float32.
        out: (B, H).
        clip: The bound of the cell; None: no bound.
        trace: Two tensors (B, H) to fill: c after the step, and before it.
    """
    wide = gates.to(c.dtype)
    i, g, f, o = wide.chunk(4, dim=1)
    i.sigmoid_()
    g.tanh_()
    wide[:, 2 * c.shape[1] :].sigmoid_()  # f and o lie side by side
    if trace is not None:
        trace[1].copy_(c)
    c.mul_(f).addcmul_(i, g)
    if clip is not None:
        c.clamp_(-clip, clip)
    if trace is not None:
        trace[0].copy_(c)
        gates.copy_(wide)
    out.copy_(torch.tanh(c).mul_(o))


def _cell_backward(
    gates: Tensor,
    trace: tuple[Tensor, Tensor],
    grad_out: Tensor,
    grad_c: Tensor,
    grad_gates: Tensor,
    clip: float | None,
) -> None:
    """Fill `grad_gates`, and turn `grad_c` into the gradient of the old c."""
    cells, previous = trace
    i, g, f, o = (gate.to(cells.dtype) for gate in gates.chunk(4, dim=1))
    grad_i, grad_g, grad_f, grad_o = grad_gates.chunk(4, dim=1)
    tanh_c, grad_out = torch.tanh(cells), grad_out.to(cells.dtype)
    grad_c.addcmul_(grad_out * o, 1 - tanh_c * tanh_c)
    if clip is not None:
        grad_c *= cells.abs() < clip
    grad_i.copy_(grad_c * g * (i * (1 - i)))
    grad_g.copy_(grad_c * i * (1 - g * g))
    grad_f.copy_(grad_c * previous * (f * (1 - f)))
    grad_o.copy_(grad_out * tanh_c * (o * (1 - o)))
    grad_c *= f


# --- Steps ----------------------------------------------------------------------------------------


def _steps_with_resets(
    packing: Packing, device: torch.device
) -> list[tuple[slice, int, Tensor | None]]:
    """For each step its slots, its number of rows, and the ranks that are reset (None: no row)."""
    steps = list(packing.steps())
    if packing.resets is None or not steps:
        return [(slots, rows, None) for slots, rows in steps]
    starts, reset = np.array(packing.starts()), np.flatnonzero(packing.resets.cpu().numpy())
    step = np.searchsorted(starts, reset, side="right") - 1
    # One transfer for all steps: one for each would synchronize with the GPU every time.
    (ranks,) = upload([torch.from_numpy(reset - starts[step])], device)
    of_steps = ranks.split(np.bincount(step, minlength=len(steps)).tolist())
    return [
        (*step, fresh if len(fresh) else None) for step, fresh in zip(steps, of_steps, strict=True)
    ]


class _Trace(NamedTuple):
    """The values of each slot that the backward pass needs."""

    gates: Tensor  # (N, 4H), after the activation functions
    hidden: Tensor  # (N, H), the output before the projection
    cells: Tensor
    previous_c: Tensor
    previous_h: Tensor  # (N, D)


def _forward_steps(
    inputs: Tensor,
    state: LSTMState,
    recurrent: PrepackedLinear,
    projection: PrepackedLinear | None,
    steps: LSTMSteps,
    outputs: Tensor,
    trace: _Trace | None = None,
) -> None:
    """Fill `outputs`, and `trace` if given, from the products of the input; update the state."""
    packing, clips, reset_state = steps
    max_rows = max(packing.batch_sizes, default=0)
    scratch, scratch_hidden = (
        inputs.new_empty(max_rows, size) for size in (inputs.shape[1], state.c.shape[1])
    )
    for slots, rows, resets in _steps_with_resets(packing, inputs.device):
        if resets is not None:
            state.h[resets], state.c[resets] = reset_state
        h, c = state.h[:rows], state.c[:rows]
        gates, hidden, of_cell = scratch[:rows], scratch_hidden[:rows], None
        if trace is not None:
            gates, hidden = trace.gates[slots], trace.hidden[slots]
            of_cell = trace.cells[slots], trace.previous_c[slots]
            trace.previous_h[slots] = h
        torch.add(inputs[slots], recurrent(h), out=gates)
        _cell_forward(gates, c, hidden, clips.cell, of_cell)
        if projection is not None:
            hidden = projection(hidden)
            if clips.projection is not None:
                hidden.clamp_(-clips.projection, clips.projection)
        h.copy_(hidden)
        outputs[slots] = h


# --- With gradients -------------------------------------------------------------------------------


def forward(
    x: Tensor, h: Tensor, c: Tensor, *weights: Any, steps: LSTMSteps, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], Tensors]:
    low: Any = [weight if weight is None else weight.to(dtype) for weight in weights]
    input, recurrent, bias, projection = low
    low_x, state = x.to(dtype), LSTMState(h, c).copy()
    slots, hidden, width = len(x), c.shape[1], h.shape[1]

    def for_slots(size: int, of_type: torch.dtype) -> Tensor:
        return allocate((slots, size), of_type, x.device)

    outputs = for_slots(width, h.dtype)
    trace = _Trace(
        gates=for_slots(4 * hidden, dtype),
        hidden=for_slots(hidden, dtype),
        cells=for_slots(hidden, c.dtype),
        previous_c=for_slots(hidden, c.dtype),
        previous_h=for_slots(width, dtype),
    )
    inputs = torch.addmm(bias, low_x, input.T)
    times_recurrent = PrepackedLinear(recurrent, None, dtype)
    times_projection = None if projection is None else PrepackedLinear(projection, None, dtype)
    _forward_steps(inputs, state, times_recurrent, times_projection, steps, outputs, trace)
    return (outputs, *state), (*trace, outputs, low_x, input, recurrent, projection)


def backward(
    saved: Any, gradients: Sequence[Tensor], steps: LSTMSteps, dtype: torch.dtype
) -> Tensors:
    *of_trace, outputs, x, input, recurrent, projection = saved
    trace, clips = _Trace(*of_trace), steps.clips
    grad_outputs, grad_h, grad_c = (
        part.clone(memory_format=torch.contiguous_format) for part in gradients
    )
    grad_gates = torch.empty_like(trace.gates)
    proj_clip = clips.projection
    if proj_clip is not None:  # rounded as in the clipped outputs
        proj_clip = torch.tensor(proj_clip, dtype=dtype, device="cpu").item()
    times_recurrent = PrepackedLinear(recurrent.T, None, dtype)
    times_projection = (
        projection if projection is None else PrepackedLinear(projection.T, None, dtype)
    )
    for slots, rows, resets in reversed(_steps_with_resets(steps.packing, x.device)):
        grad_hidden = grad_outputs[slots].add_(grad_h[:rows])
        if times_projection is not None:
            if proj_clip is not None:
                grad_hidden *= outputs[slots].abs() < proj_clip
            grad_hidden = times_projection(grad_hidden)
        of_cell = trace.cells[slots], trace.previous_c[slots]
        _cell_backward(
            trace.gates[slots],
            of_cell,
            grad_hidden.to(dtype),
            grad_c[:rows],
            grad_gates[slots],
            clips.cell,
        )
        grad_h[:rows] = times_recurrent(grad_gates[slots])
        if resets is not None:
            grad_h[resets], grad_c[resets] = 0, 0
    grad_projection = None if projection is None else grad_outputs.to(dtype).T @ trace.hidden
    return (
        grad_gates @ input, grad_h, grad_c, grad_gates.T @ x, grad_gates.T @ trace.previous_h,
        grad_gates.sum(dim=0, dtype=grad_c.dtype), grad_projection,
    )  # fmt: skip


lstm = partial(differentiable_lstm, forward, backward)


# --- Without gradients ----------------------------------------------------------------------------


class StepwiseLSTM:
    """A layer with prepacked weights, step by step; see `functional.prepack_lstm`."""

    def __init__(self, weights: LSTMWeights, dtype: torch.dtype) -> None:
        self._input = PrepackedLinear(weights.input, weights.bias, dtype)
        self._recurrent = PrepackedLinear(weights.recurrent, None, dtype)
        self._projection = (
            None if weights.projection is None else PrepackedLinear(weights.projection, None, dtype)
        )

    def __call__(
        self, x: Tensor, state: LSTMState, steps: LSTMSteps, index: Tensor | None
    ) -> LSTMResult:
        state, packing = state.copy(), steps.packing
        out = allocate((packing.num_slots, state.h.shape[1]), state.h.dtype, x.device)
        table = None if index is None else self._input(x)
        for slots, chunk in packing.windows(
            CHUNK_SLOTS if x.device.type == "cpu" else CHUNK_SLOTS_ON_GPU
        ):
            inputs = (
                self._input(x[slots]) if table is None or index is None else table[index[slots]]
            )
            chunk_steps = steps._replace(packing=chunk)
            _forward_steps(
                inputs, state, self._recurrent, self._projection, chunk_steps, out[slots]
            )
        return out, state


prepack_lstm = StepwiseLSTM
