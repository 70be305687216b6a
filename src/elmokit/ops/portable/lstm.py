"""`lstm` step by step in PyTorch, with its gradients: a backward pass over what the forward pass left of every slot.

The gradient of a weight is one product over all steps. The cell between two products may be another module's (as
`native.stepwise_lstm` has it).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.lstm import Clips, LSTMState, LSTMWeights
from elmokit.ops.packing import Packing
from elmokit.ops.workspace import allocate

# Without gradients the products of a layer's input are made for about so many slots at a time: enough for the speed of
# a large product, few enough that they stay in cache until the steps have used them. A GPU has no such cache.
SLOTS_AT_ONCE, SLOTS_AT_ONCE_ON_GPU = 512, 16_384


# --- The cell --------------------------------------------------------------------------------------------------------


def cell_forward(
    gates: Tensor, c: Tensor, out: Tensor, clip: float | None, trace: tuple[Tensor, Tensor] | None
) -> None:
    """c <- clip(sigmoid(i) tanh(g) + sigmoid(f) c) and out <- sigmoid(o) tanh(c), in place.

    Args:
        gates: i, g, f, o before their functions (B, 4H); with a trace, left as their functions made them.
        c: (B, H), float32 at least.
        out: (B, H).
        clip: None: no bound.
        trace: Two (B, H) that take c after and before the step.
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


def cell_backward(
    gates: Tensor,
    trace: tuple[Tensor, Tensor],
    grad_out: Tensor,
    grad_c: Tensor,
    grad_gates: Tensor,
    clip: float | None,
) -> None:
    """From the trace and the gradient of `out`: fills `grad_gates`, turns `grad_c` into that of c before the step."""
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


# --- Steps -----------------------------------------------------------------------------------------------------------


def _steps_with_resets(packing: Packing, device: torch.device) -> list[tuple[slice, int, Tensor | None]]:
    """Of each step its slots, its number of rows, and the ranks of the rows that are reset (None: no row)."""
    steps = list(packing.steps())
    if packing.resets is None or not steps:
        return [(slots, rows, None) for slots, rows in steps]
    counts = [int(n) for n in torch.stack([step.sum() for step in packing.resets.split(list(packing.batch_sizes))])]
    # all at once: a GPU would wait for each
    ranks = torch.cat([torch.arange(rows) for _, rows in steps])[packing.resets].to(device).split(counts)
    return [(*step, fresh if len(fresh) else None) for step, fresh in zip(steps, ranks, strict=True)]


@dataclass(frozen=True)
class _Trace:
    """What the backward pass needs of every slot."""

    gates: Tensor  # (N, 4H), after their functions
    hidden: Tensor  # (N, H), the output before the projection
    cells: Tensor
    previous_c: Tensor
    previous_h: Tensor  # (N, D)

    @staticmethod
    def empty(
        slots: int, hidden: int, width: int, dtype: torch.dtype, wide: torch.dtype, device: torch.device
    ) -> _Trace:
        sizes = (4 * hidden, dtype), (hidden, dtype), (hidden, wide), (hidden, wide), (width, dtype)
        return _Trace(*(allocate((slots, size), of_type, device) for size, of_type in sizes))

    def tensors(self) -> tuple[Tensor, ...]:
        return self.gates, self.hidden, self.cells, self.previous_c, self.previous_h


def _forward_steps(
    inputs: Tensor,
    packing: Packing,
    state: LSTMState,
    recurrent: Tensor,
    projection: Tensor | None,
    clips: Clips,
    start: LSTMState,
    outputs: Tensor,
    trace: _Trace | None,
    cell: Any,
) -> None:
    """Fills `outputs` and, where there is one, `trace`; the state runs on in place."""
    rows_at_once = max(packing.batch_sizes, default=0)
    scratch = inputs.new_empty(rows_at_once, inputs.shape[1])
    scratch_hidden = inputs.new_empty(rows_at_once, state.c.shape[1])
    for slots, rows, resets in _steps_with_resets(packing, inputs.device):
        if resets is not None:
            state.h[resets], state.c[resets] = start.h, start.c
        h, c = state.h[:rows], state.c[:rows]
        gates, hidden, of_cell = scratch[:rows], scratch_hidden[:rows], None
        if trace is not None:
            gates, hidden = trace.gates[slots], trace.hidden[slots]
            of_cell = trace.cells[slots], trace.previous_c[slots]
            trace.previous_h[slots] = h
        torch.addmm(inputs[slots], h.to(inputs.dtype), recurrent.T, out=gates)
        cell.cell_forward(gates, c, hidden, clips.cell, of_cell)
        if projection is not None:
            hidden = hidden @ projection.T
            if clips.projection is not None:
                hidden.clamp_(-clips.projection, clips.projection)
        h.copy_(hidden)
        outputs[slots] = h


# --- With gradients --------------------------------------------------------------------------------------------------


def forward(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    input: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    projection: Tensor | None,
    *,
    packing: Packing,
    clips: Clips,
    start: LSTMState,
    dtype: torch.dtype,
    cell: Any,
) -> tuple[tuple[Tensor, ...], Tensors]:
    low_x, input, recurrent = x.to(dtype), input.to(dtype), recurrent.to(dtype)
    projection = None if projection is None else projection.to(dtype)
    state = LSTMState(*(part.clone(memory_format=torch.contiguous_format) for part in (h, c)))
    outputs = allocate((len(x), h.shape[1]), h.dtype, x.device)
    trace = _Trace.empty(len(x), c.shape[1], h.shape[1], dtype, c.dtype, x.device)
    inputs = torch.addmm(bias.to(dtype), low_x, input.T)
    _forward_steps(inputs, packing, state, recurrent, projection, clips, start, outputs, trace, cell)
    return (outputs, *state), (*trace.tensors(), outputs, low_x, input, recurrent, projection)


def backward(
    saved: Tensors,
    gradients: Sequence[Tensor],
    last: bool,
    *,
    packing: Packing,
    clips: Clips,
    start: LSTMState,
    dtype: torch.dtype,
    cell: Any,
) -> Tensors:
    *of_trace, outputs, x, input, recurrent, projection = saved
    assert outputs is not None and x is not None and input is not None and recurrent is not None
    trace = _Trace(*of_trace)  # type: ignore[arg-type]
    grad_outputs, grad_h, grad_c = (part.clone(memory_format=torch.contiguous_format) for part in gradients)
    grad_gates = torch.empty_like(trace.gates)
    proj_clip = clips.projection
    if proj_clip is not None:
        proj_clip = torch.tensor(proj_clip, dtype=dtype).item()  # as clipped outputs hold it
    for slots, rows, resets in reversed(_steps_with_resets(packing, x.device)):
        grad_hidden = grad_outputs[slots].add_(grad_h[:rows])
        if projection is not None:
            if proj_clip is not None:
                grad_hidden *= outputs[slots].abs() < proj_clip
            grad_hidden = grad_hidden.to(dtype) @ projection
        of_cell = trace.cells[slots], trace.previous_c[slots]
        cell.cell_backward(
            trace.gates[slots], of_cell, grad_hidden.to(dtype), grad_c[:rows], grad_gates[slots], clips.cell
        )
        grad_h[:rows] = grad_gates[slots] @ recurrent
        if resets is not None:
            grad_h[resets], grad_c[resets] = 0, 0
    grad_projection = None if projection is None else grad_outputs.to(dtype).T @ trace.hidden
    return (
        grad_gates @ input, grad_h, grad_c, grad_gates.T @ x, grad_gates.T @ trace.previous_h,
        grad_gates.sum(dim=0, dtype=grad_c.dtype), grad_projection,
    )  # fmt: skip


def lstm(
    x: Tensor,
    packing: Packing,
    state: LSTMState,
    weights: LSTMWeights,
    clips: Clips,
    start: LSTMState,
    dtype: torch.dtype,
    cell: Any = None,
) -> tuple[Tensor, LSTMState]:
    settings = {"packing": packing, "clips": clips, "start": start, "dtype": dtype}
    this = sys.modules[__name__]
    outputs, h, c = differentiably(this, x, *state, *weights, **settings, cell=cell or this)
    return outputs, LSTMState(h, c)


# --- Without gradients -----------------------------------------------------------------------------------------------


class StepwiseLSTM:
    """Weights in the number type of their products."""

    def __init__(self, weights: LSTMWeights, dtype: torch.dtype, cell: str = __name__, slots_at_once: int = 0) -> None:
        self._weights = weights.copied(dtype)._replace(bias=weights.bias.detach().to(dtype, copy=True))
        self._cell, self._slots = cell, slots_at_once

    def __call__(
        self,
        x: Tensor,
        packing: Packing,
        state: LSTMState,
        clips: Clips,
        start: LSTMState,
        index: Tensor | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, LSTMState]:
        weights, low_x = self._weights, x.to(self._weights.recurrent.dtype)
        state = LSTMState(*(part.clone(memory_format=torch.contiguous_format) for part in state))
        if out is None:
            out = allocate((packing.num_slots, state.h.shape[1]), state.h.dtype, x.device)
        table = None if index is None else torch.addmm(weights.bias, low_x, weights.input.T)
        slots_at_once = self._slots or (SLOTS_AT_ONCE if x.device.type == "cpu" else SLOTS_AT_ONCE_ON_GPU)
        for slots, window in packing.windows(slots_at_once):
            inputs = table[index[slots]] if table is not None and index is not None else torch.addmm(
                weights.bias, low_x[slots], weights.input.T
            )  # fmt: skip
            _forward_steps(
                inputs, window, state, weights.recurrent, weights.projection, clips, start, out[slots], None,
                sys.modules[self._cell],
            )  # fmt: skip
        return out, state


def prepack_lstm(weights: LSTMWeights, dtype: torch.dtype) -> StepwiseLSTM:
    return StepwiseLSTM(weights, dtype)
