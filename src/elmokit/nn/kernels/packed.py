"""The recurrence of one layer over a packed stream, both directions at once.

The gradient of a weight is one product over all steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elmokit.nn.kernels.cell import cell_backward, cell_forward
from elmokit.nn.kernels.directions import both_directions
from elmokit.nn.packing import Packing

Pair = tuple[Tensor, Tensor]


def _rows_by_step(packing: Packing) -> tuple[Tensor, ...] | None:
    """For each step the ranks whose state starts afresh there."""
    if packing.resets is None:
        return None
    steps = packing.resets.split(list(packing.batch_sizes))
    counts = [int(n) for n in torch.stack([step.sum() for step in steps])] if steps else []
    ranks = torch.cat([torch.arange(n) for n in packing.batch_sizes])[packing.resets] if steps else torch.empty(0)
    return ranks.split(counts)


@dataclass(frozen=True)
class _Steps:
    """What both passes of a layer know of its steps."""

    packing: Packing
    fresh_rows: tuple[Tensor, ...] | None  # of each step: ranks whose state starts afresh
    cell_clip: float | None
    proj_clip: float | None

    def __iter__(self) -> Iterator[tuple[int, slice, Tensor | None]]:
        """Of each step: how many rows it has, its slots, and the rows that start afresh (None: no row)."""
        starts = self.packing.starts()
        for t, rows in enumerate(self.packing.batch_sizes):
            fresh = None if self.fresh_rows is None or not len(self.fresh_rows[t]) else self.fresh_rows[t]
            yield rows, slice(starts[t], starts[t + 1]), fresh


# Tensors that belong together; `_part` takes the same part of each: a direction first, then a step's slots.


class _Weights(NamedTuple):
    recurrent: Tensor  # (2, 4H, D)
    projection: Tensor | None  # (2, D, H)


class _Run(NamedTuple):
    """A forward pass: what it reads, and what it writes."""

    inputs: Tensor  # (2, N, 4H)
    outputs: Tensor  # (2, N, D)
    h: Tensor  # (2, B, D), at the end the final state
    c: Tensor
    start_h: Tensor  # (2, 1, D), what a reset sets
    start_c: Tensor


class _Trace(NamedTuple):
    """What the backward pass needs of every slot."""

    gates: Tensor  # (2, N, 4H), after their functions
    hidden: Tensor  # (2, N, H), the output before the projection
    cell: Tensor
    previous_h: Tensor
    previous_c: Tensor


class _Gradients(NamedTuple):
    outputs: Tensor  # (2, N, D), in the end those of the projection before it was clipped
    h: Tensor  # (2, B, D), in the end that of the initial state
    c: Tensor
    gates: Tensor  # (2, N, 4H)


def _part(record: Any, index: int | slice) -> Any:
    return type(record)(*(None if tensor is None else tensor[index] for tensor in record))


def _empty_trace(run: _Run) -> _Trace:
    slots, width = run.inputs.shape[1], run.c.shape[2]
    cell = run.c.new_empty(2, slots, width)
    return _Trace(
        gates=run.inputs.new_empty(run.inputs.shape),
        hidden=run.inputs.new_empty(2, slots, width),
        cell=cell,
        previous_h=run.inputs.new_empty(2, slots, run.h.shape[2]),
        previous_c=torch.empty_like(cell),
    )


def _forward_steps(steps: _Steps, weights: _Weights, run: _Run, trace: _Trace | None) -> None:
    """One direction: fills `run.outputs` and, where there is one, `trace`; leaves the final state in `run`."""
    inputs, h, c, proj_clip = run.inputs, run.h, run.c, steps.proj_clip
    most_rows = max(steps.packing.batch_sizes, default=0)
    scratch, scratch_hidden = inputs.new_empty(most_rows, inputs.shape[1]), inputs.new_empty(most_rows, c.shape[1])
    for rows, window, fresh in steps:
        if fresh is not None:
            h[fresh], c[fresh] = run.start_h, run.start_c
        h_rows = h[:rows].to(inputs.dtype)
        if trace is None:
            gates, hidden, cell_trace = scratch[:rows], scratch_hidden[:rows], None
        else:
            step = _part(trace, window)
            gates, hidden, cell_trace = step.gates, step.hidden, (step.cell, step.previous_c)
            step.previous_h.copy_(h_rows)
        torch.addmm(inputs[window], h_rows, weights.recurrent.T, out=gates)
        cell_forward(gates, c[:rows], hidden, steps.cell_clip, cell_trace)
        if weights.projection is not None:
            hidden = hidden @ weights.projection.T
            if proj_clip is not None:
                hidden.clamp_(-proj_clip, proj_clip)
        h[:rows] = hidden
        run.outputs[window] = h[:rows]


def _backward_steps(steps: _Steps, weights: _Weights, outputs: Tensor, trace: _Trace, grad: _Gradients) -> None:
    """One direction, last step first."""
    dtype, proj_clip = trace.gates.dtype, steps.proj_clip
    if proj_clip is not None:
        proj_clip = torch.tensor(proj_clip, dtype=dtype).item()  # as clipped outputs hold it
    for rows, window, fresh in reversed(list(steps)):
        step = _part(trace, window)
        grad_hidden = grad.outputs[window].add_(grad.h[:rows])
        if weights.projection is not None:
            if proj_clip is not None:
                grad_hidden *= outputs[window].abs() < proj_clip
            grad_hidden = grad_hidden.to(dtype) @ weights.projection
        cell_backward(
            step.gates, (step.cell, step.previous_c), grad_hidden.to(dtype), grad.c[:rows], grad.gates[window],
            steps.cell_clip,
        )  # fmt: skip
        grad.h[:rows] = grad.gates[window] @ weights.recurrent
        if fresh is not None:
            grad.h[fresh], grad.c[fresh] = 0, 0


def _start(start: Pair | None, h: Tensor, c: Tensor) -> Pair:
    """The state that a reset sets, for each direction: (2, 1, D) and (2, 1, H)."""
    if start is None:
        return h.new_zeros(2, 1, h.shape[2]), c.new_zeros(2, 1, c.shape[2])
    return start[0].to(h.dtype), start[1].to(c.dtype)


class _PackedLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs, h, c, recurrent_weight, projection_weight, steps, start):
        projection = None if projection_weight is None else projection_weight.to(inputs.dtype)
        weights = _Weights(recurrent_weight.to(inputs.dtype), projection)
        wide = torch.promote_types(inputs.dtype, torch.float32)
        h, c = (part.to(wide, copy=True, memory_format=torch.contiguous_format) for part in (h, c))
        outputs = h.new_empty(2, inputs.shape[1], h.shape[2])
        run = _Run(inputs, outputs, h, c, *_start(start, h, c))
        trace = _empty_trace(run) if any(ctx.needs_input_grad) else None

        def one(d: int) -> None:
            _forward_steps(steps, _part(weights, d), _part(run, d), None if trace is None else _part(trace, d))

        both_directions(one, inputs.device)
        if trace is not None:
            ctx.save_for_backward(*trace, *weights, outputs)
            ctx.steps = steps
        return outputs, h, c

    @staticmethod
    def backward(ctx: Any, *gradients):
        *saved, recurrent, projection, outputs = ctx.saved_tensors
        trace, weights = _Trace(*saved), _Weights(recurrent, projection)
        of_outputs, of_h, of_c = (gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients)
        grad = _Gradients(of_outputs, of_h, of_c, torch.empty_like(trace.gates))
        grad_weights = _Weights(
            torch.empty_like(recurrent), None if projection is None else torch.empty_like(projection)
        )

        def one(d: int) -> None:
            own, own_grad = _part(trace, d), _part(grad, d)
            _backward_steps(ctx.steps, _part(weights, d), outputs[d], own, own_grad)
            torch.mm(own_grad.gates.T, own.previous_h, out=grad_weights.recurrent[d])
            if grad_weights.projection is not None:
                torch.mm(own_grad.outputs.to(own.hidden.dtype).T, own.hidden, out=grad_weights.projection[d])

        both_directions(one, outputs.device)
        return grad.gates, grad.h, grad.c, *grad_weights, None, None


def packed_lstm(
    inputs: Tensor,
    packing: Packing,
    h: Tensor,
    c: Tensor,
    recurrent_weight: Tensor,
    projection_weight: Tensor | None,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
    start: Pair | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `nn.lstm.lstm_reference`. Products run in the type of `inputs`; state and outputs are float32 at least."""
    steps = _Steps(packing, _rows_by_step(packing), cell_clip, proj_clip)
    return _PackedLSTM.apply(inputs, h, c, recurrent_weight, projection_weight, steps, start)  # type: ignore
