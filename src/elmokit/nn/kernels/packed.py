"""The recurrence of one layer over a packed stream, both directions at once.

The gradient of a weight is one product over all steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from elmokit.nn.kernels.cell import cell_backward, cell_forward
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


def _one_thread_each() -> None:
    torch.get_num_threads()  # a thread takes over torch's remembered setting once: let that be before the next line
    torch.set_num_threads(1)


@lru_cache(maxsize=1)
def _workers() -> ThreadPoolExecutor:
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(2, thread_name_prefix="elmokit-direction", initializer=_one_thread_each)
    both_started = Barrier(2)
    for future in [pool.submit(both_started.wait) for _ in range(2)]:
        future.result()
    # torch remembers the last setting for threads to come: give it back its own
    torch.set_num_threads(threads)
    return pool


def _after_fork() -> None:
    """A forked child has the pool's object, but none of its threads; nor do OpenMP's survive, so it keeps to one."""
    _workers.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _both_directions(run: Callable[[int], None], device: torch.device) -> None:
    """The two directions on two cores where there are two; each then computes with one thread."""
    if device.type != "cpu" or torch.get_num_threads() < 2:
        for d in range(2):
            run(d)
        return
    inference = torch.is_inference_mode_enabled()

    def run_without_graph(d: int) -> None:
        with torch.inference_mode(inference), torch.no_grad():
            run(d)

    for future in [_workers().submit(run_without_graph, d) for d in range(2)]:
        future.result()


def _empty_trace(inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Room for what the backward pass needs of a slot: gates, unprojected output, cell, h and c before the step."""
    slots, width = inputs.shape[1], c.shape[2]
    cells = c.new_empty(2, slots, width)
    hiddens, previous_h = inputs.new_empty(2, slots, width), inputs.new_empty(2, slots, h.shape[2])
    return inputs.new_empty(inputs.shape), hiddens, cells, previous_h, torch.empty_like(cells)


def _forward_steps(inputs, outputs, h, c, recurrent_weight, projection, packing, fresh_rows, clips, start, trace):
    """One direction; writes `outputs` and, where there is one, `trace`; leaves the final state in `h` and `c`."""
    cell_clip, proj_clip = clips
    most_rows = max(packing.batch_sizes, default=0)
    scratch, scratch_hidden = inputs.new_empty(most_rows, inputs.shape[1]), inputs.new_empty(most_rows, c.shape[1])
    transposed = recurrent_weight.T
    starts = packing.starts()
    for t, rows in enumerate(packing.batch_sizes):
        window = slice(starts[t], starts[t + 1])
        if fresh_rows is not None and len(fresh_rows[t]):
            h[fresh_rows[t]] = 0 if start is None else start[0].to(h.dtype)
            c[fresh_rows[t]] = 0 if start is None else start[1].to(c.dtype)
        h_rows, c_rows = h[:rows].to(inputs.dtype), c[:rows]
        if trace is None:
            gates, hidden, step_trace = scratch[:rows], scratch_hidden[:rows], None
        else:
            gates, hidden, cells, previous_h, previous_c = (part[window] for part in trace)
            previous_h.copy_(h_rows)
            step_trace = cells, previous_c
        torch.addmm(inputs[window], h_rows, transposed, out=gates)
        cell_forward(gates, c_rows, hidden, cell_clip, step_trace)
        if projection is not None:
            hidden = hidden @ projection.T
            if proj_clip is not None:
                hidden.clamp_(-proj_clip, proj_clip)
        h[:rows] = hidden
        outputs[window] = h[:rows]


def _backward_steps(
    grad_outputs, grad_h, grad_c, grad_gates, gates, cells, previous_c, outputs, recurrent_weight, projection,
    packing, fresh_rows, clips
):  # fmt: skip
    """One direction, last step first; fills `grad_gates`, turns `grad_h`, `grad_c` into those of the initial state.

    Returns the gradient of the projection's (unclipped) output at every step, (N, D).
    """
    cell_clip, proj_clip = clips
    if proj_clip is not None:
        proj_clip = torch.tensor(proj_clip, dtype=gates.dtype).item()  # as clipped outputs hold it
    starts = packing.starts()
    for t in reversed(range(len(packing.batch_sizes))):
        rows, window = packing.batch_sizes[t], slice(starts[t], starts[t + 1])
        grad_hidden = grad_outputs[window].add_(grad_h[:rows])
        if projection is not None:
            if proj_clip is not None:
                grad_hidden *= outputs[window].abs() < proj_clip
            grad_hidden = grad_hidden.to(gates.dtype) @ projection
        trace = (cells[window], previous_c[window])
        cell_backward(gates[window], trace, grad_hidden.to(gates.dtype), grad_c[:rows], grad_gates[window], cell_clip)
        grad_h[:rows] = grad_gates[window] @ recurrent_weight
        if fresh_rows is not None and len(fresh_rows[t]):
            grad_h[fresh_rows[t]] = 0
            grad_c[fresh_rows[t]] = 0
    return grad_outputs


class _PackedLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs, h, c, recurrent_weight, projection_weight, packing, clips, start):
        recurrent_weight = recurrent_weight.to(inputs.dtype)
        if projection_weight is not None:
            projection_weight = projection_weight.to(inputs.dtype)
        keep = any(ctx.needs_input_grad)
        wide = torch.promote_types(inputs.dtype, torch.float32)
        h, c = (part.to(wide, copy=True, memory_format=torch.contiguous_format) for part in (h, c))
        outputs = h.new_empty(2, inputs.shape[1], h.shape[2])
        fresh_rows = _rows_by_step(packing)
        trace = _empty_trace(inputs, h, c) if keep else None

        def run(d: int) -> None:
            projection = None if projection_weight is None else projection_weight[d]
            begin = None if start is None else (start[0][d], start[1][d])
            kept = None if trace is None else tuple(part[d] for part in trace)
            _forward_steps(
                inputs[d],
                outputs[d],
                h[d],
                c[d],
                recurrent_weight[d],
                projection,
                packing,
                fresh_rows,
                clips,
                begin,
                kept,
            )

        _both_directions(run, inputs.device)
        if trace is not None:
            ctx.save_for_backward(*trace, outputs, recurrent_weight, projection_weight)
            ctx.packing, ctx.fresh_rows, ctx.clips = packing, fresh_rows, clips
        return outputs, h, c

    @staticmethod
    def backward(ctx: Any, *gradients):
        grad_outputs, grad_h, grad_c = (g.clone(memory_format=torch.contiguous_format) for g in gradients)
        gates, hiddens, cells, previous_h, previous_c, outputs, recurrent_weight, projection_weight = ctx.saved_tensors
        grad_gates = torch.empty_like(gates)
        grad_recurrent = torch.empty_like(recurrent_weight)
        grad_projection = None if projection_weight is None else torch.empty_like(projection_weight)

        def run(d: int) -> None:
            projection = None if projection_weight is None else projection_weight[d]
            grad_hidden_outputs = _backward_steps(
                grad_outputs[d], grad_h[d], grad_c[d], grad_gates[d], gates[d], cells[d], previous_c[d], outputs[d],
                recurrent_weight[d], projection, ctx.packing, ctx.fresh_rows, ctx.clips,
            )  # fmt: skip
            torch.mm(grad_gates[d].T, previous_h[d], out=grad_recurrent[d])
            if grad_projection is not None:
                torch.mm(grad_hidden_outputs.to(hiddens.dtype).T, hiddens[d], out=grad_projection[d])

        _both_directions(run, gates.device)
        return grad_gates, grad_h, grad_c, grad_recurrent, grad_projection, None, None, None


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
    return _PackedLSTM.apply(  # type: ignore[no-any-return]
        inputs, h, c, recurrent_weight, projection_weight, packing, (cell_clip, proj_clip), start
    )
