"""The recurrence of one layer over a packed stream, both directions at once, with its gradients.

The gradient of a weight is one product over all steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from elmokit.nn.kernels import fused, stepwise
from elmokit.nn.kernels.directions import Direction, each_direction, on_both_cores
from elmokit.nn.kernels.kept_graph import graph_is_kept
from elmokit.nn.kernels.memory import large
from elmokit.nn.kernels.passes import Gradients, Run, Steps, Trace, Weights, empty_trace, part, width_of
from elmokit.nn.packing import Packing

Pair = tuple[Tensor, Tensor]


def _start(start: Pair | None, h: Tensor, c: Tensor) -> Pair:
    """The state that a reset sets, for each direction: (2, 1, D) and (2, 1, H)."""
    if start is None:
        return h.new_zeros(2, 1, h.shape[2]), c.new_zeros(2, 1, c.shape[2])
    return start[0].to(h.dtype).contiguous(), start[1].to(c.dtype).contiguous()


class _Recurrence:
    """The forward pass of a layer whose weights are made ready once, for one stream or for many pieces of it."""

    def __init__(self, weights: Weights, dtype: torch.dtype) -> None:
        self._wide, device = torch.promote_types(dtype, torch.float32), weights.recurrent.device
        _, four_h, width = weights.recurrent.shape
        self.is_fused = fused.has_passes(dtype, self._wide, device, width, width_of(weights.beside), four_h // 4)
        # packing narrows them
        self.weights = weights if self.is_fused else weights.mapped(lambda weight: weight.to(dtype))
        self._packed: dict[Direction, fused.PackedLayer] = {}

        def pack(d: int) -> None:
            self._packed[d] = fused.pack_layer(part(weights, d), dtype)

        if self.is_fused:
            on_both_cores(pack, device)

    def run(
        self,
        steps: Steps,
        inputs: Tensor,
        h: Tensor,
        c: Tensor,
        start: Pair | None,
        traced: bool = False,
        overwrite: bool = False,
        beside: Tensor | None = None,
    ) -> tuple[Run, Trace | None]:
        """What was run, its outputs and final state filled, and where it is `traced` what the gradient needs."""
        h, c = (state.to(self._wide, copy=True, memory_format=torch.contiguous_format) for state in (h, c))
        outputs = h.new_empty(2, sum(steps.packing.batch_sizes), h.shape[2])
        run = Run(inputs.contiguous(), outputs, h, c, *_start(start, h, c), beside)
        trace = empty_trace(run, overwrite) if traced else None

        def one(d: Direction) -> None:
            own_trace = None if trace is None else part(trace, d)
            if self.is_fused:
                fused.forward_steps(steps, self._packed[d], part(run, d), own_trace)
            else:
                stepwise.forward_steps(steps, part(self.weights, d), part(run, d), own_trace)

        each_direction(one, inputs.device)
        return run, trace


def _weight_gradients(trace: Trace, grad: Gradients, into: Weights) -> None:
    """Each is one product over all steps; of one direction, or both."""
    both, width = grad.gates.mT @ trace.factors, into.recurrent.shape[-1]
    into.recurrent.copy_(both[..., -width:])
    if into.beside is not None:
        into.beside.copy_(both[..., :-width])
    if into.projection is not None:
        into.projection.copy_(grad.outputs.to(trace.hidden.dtype).mT @ trace.hidden)


class _PackedLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs, beside, h, c, recurrent, projection, beside_weight, steps, start, overwrite):
        recurrence = _Recurrence(Weights(recurrent, projection, beside_weight), inputs.dtype)
        traced = any(ctx.needs_input_grad) or beside is not None
        run, trace = recurrence.run(steps, inputs, h, c, start, traced, overwrite, beside)
        if trace is not None:
            if overwrite:
                increment_version(inputs)  # so that autograd refuses any other use of their values
            ctx.save_for_backward(*trace, run.outputs, *recurrence.weights)
            ctx.steps, ctx.is_fused = steps, recurrence.is_fused
            ctx.beside = None if beside is None else beside.shape
        return run.outputs, run.h, run.c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients):
        saved, traced = ctx.saved_tensors, len(Trace._fields)
        trace, outputs, weights = Trace(*saved[:traced]), saved[traced], Weights(*saved[traced + 1 :])
        of_outputs, of_h, of_c = (gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients)
        gates, device = trace.gates, outputs.device
        if graph_is_kept() or not ctx.is_fused:
            gates = large(gates.shape, gates.dtype, device)
        grad_beside = constant = None
        if ctx.beside is not None:
            grad_beside, constant = of_outputs.new_empty(ctx.beside), of_c.new_zeros(2, gates.shape[2])
        grad = Gradients(of_outputs, of_h, of_c, gates, grad_beside, constant)
        of_weights = weights.mapped(lambda weight: large(weight.shape, weight.dtype, device))
        kernel = fused if ctx.is_fused else stepwise

        def one(d: Direction) -> None:
            own, own_grad = part(trace, d), part(grad, d)
            kernel.backward_steps(ctx.steps, part(weights, d), outputs[d], own, own_grad)
            _weight_gradients(own, own_grad, part(of_weights, d))

        each_direction(one, device)
        of_inputs = gates if constant is None else constant[:, None].to(gates.dtype)
        return of_inputs, grad_beside, grad.h, grad.c, *of_weights, None, None, None


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
    overwrite: bool = False,
    beside: Pair | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `nn.lstm.lstm_reference`. Products run in the type of `inputs`; state and outputs are float32 at least.

    With `overwrite` and gradients, what the gradient needs of the gates is kept in the place of `inputs`, the largest
    tensor of all, whose values are lost. With `beside`, values (2, N, K), float32 as the outputs are, and their weight
    (2, 4H, K), these are multiplied in one product with h, and inputs (2, 1, 4H) are the same for every slot.
    """
    assert beside is None or not overwrite, "a constant has no place for the gates of all slots"
    values, weight = (None, None) if beside is None else beside
    weights, steps = (recurrent_weight, projection_weight, weight), Steps(packing, cell_clip, proj_clip)
    return _PackedLSTM.apply(inputs, values, h, c, *weights, steps, start, overwrite)  # type: ignore[no-any-return]


def joins_products(dtype: torch.dtype, beside: Tensor, width: int, hidden: int) -> bool:
    """Whether `packed_lstm` with values beside h is faster than with products of them that were made before.

    It is where all steps are one compiled call: their inputs and gradients are used while they are in cache.
    """
    return fused.has_passes(dtype, beside.dtype, beside.device, beside.shape[2], width, hidden)


@torch.no_grad()
def packed_lstm_in_pieces(
    pieces: Iterable[tuple[Tensor, Packing]],
    h: Tensor,
    c: Tensor,
    recurrent_weight: Tensor,
    projection_weight: Tensor | None,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
    start: Pair | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`packed_lstm` without gradients of a stream cut between steps: inputs and packing of one piece after another.

    The weights are made ready once for all pieces.
    """
    outputs, recurrence = [], None
    for inputs, packing in pieces:
        recurrence = recurrence or _Recurrence(Weights(recurrent_weight, projection_weight), inputs.dtype)
        run, _ = recurrence.run(Steps(packing, cell_clip, proj_clip), inputs, h, c, start)
        outputs.append(run.outputs)
        h, c = run.h, run.c
    return torch.cat(outputs, dim=1) if outputs else h[:, :0], h, c
