"""The recurrence of one layer over a packed stream, both directions at once, with its gradients.

The gradient of a weight is one product over all steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.nn.kernels import fused, stepwise
from elmokit.nn.kernels.directions import on_both_cores
from elmokit.nn.kernels.passes import Gradients, Run, Steps, Trace, Weights, empty_trace, part
from elmokit.nn.packing import Packing

Pair = tuple[Tensor, Tensor]


def _start(start: Pair | None, h: Tensor, c: Tensor) -> Pair:
    """The state that a reset sets, for each direction: (2, 1, D) and (2, 1, H)."""
    if start is None:
        return h.new_zeros(2, 1, h.shape[2]), c.new_zeros(2, 1, c.shape[2])
    return start[0].to(h.dtype).contiguous(), start[1].to(c.dtype).contiguous()


def _is_fused(inputs: Tensor, h: Tensor, c: Tensor) -> bool:
    return fused.has_passes(inputs.dtype, c.dtype, inputs.device, h.shape[2], c.shape[2])


class _PackedLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs, h, c, recurrent_weight, projection_weight, steps, start):
        projection = None if projection_weight is None else projection_weight.to(inputs.dtype)
        weights = Weights(recurrent_weight.to(inputs.dtype), projection)
        wide = torch.promote_types(inputs.dtype, torch.float32)
        h, c = (state.to(wide, copy=True, memory_format=torch.contiguous_format) for state in (h, c))
        outputs = h.new_empty(2, inputs.shape[1], h.shape[2])
        run = Run(inputs.contiguous(), outputs, h, c, *_start(start, h, c))
        trace = empty_trace(run) if any(ctx.needs_input_grad) else None

        def one(d: int) -> None:
            own_trace = None if trace is None else part(trace, d)
            if _is_fused(inputs, h, c):
                layer = fused.pack_layer(part(weights, d), inputs.dtype)
                fused.forward_steps(steps, layer, part(run, d), own_trace)
            else:
                stepwise.forward_steps(steps, part(weights, d), part(run, d), own_trace)

        on_both_cores(one, inputs.device)
        if trace is not None:
            ctx.save_for_backward(*trace, *weights, outputs)
            ctx.steps = steps
        return outputs, h, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients):
        *saved, recurrent, projection, outputs = ctx.saved_tensors
        trace, weights = Trace(*saved), Weights(recurrent, projection)
        of_outputs, of_h, of_c = (gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients)
        grad = Gradients(of_outputs, of_h, of_c, torch.empty_like(trace.gates))
        grad_weights = Weights(
            torch.empty_like(recurrent), None if projection is None else torch.empty_like(projection)
        )
        kernel = fused if _is_fused(trace.gates, of_h, of_c) else stepwise

        def one(d: int) -> None:
            own, own_grad = part(trace, d), part(grad, d)
            kernel.backward_steps(ctx.steps, part(weights, d), outputs[d], own, own_grad)
            torch.mm(own_grad.gates.T, own.previous_h, out=grad_weights.recurrent[d])
            if grad_weights.projection is not None:
                torch.mm(own_grad.outputs.to(own.hidden.dtype).T, own.hidden, out=grad_weights.projection[d])

        on_both_cores(one, outputs.device)
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
    steps = Steps(packing, cell_clip, proj_clip)
    return _PackedLSTM.apply(inputs, h, c, recurrent_weight, projection_weight, steps, start)  # type: ignore
