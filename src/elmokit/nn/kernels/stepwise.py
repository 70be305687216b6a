"""The passes of one direction in PyTorch, step by step, with the compiled cell where there is one: for any device."""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.nn.kernels.cell import cell_backward, cell_forward
from elmokit.nn.kernels.passes import Gradients, Run, Steps, Trace, Weights, part


def forward_steps(steps: Steps, weights: Weights, run: Run, trace: Trace | None) -> None:
    """Fills `run.outputs` and, where there is one, `trace`; leaves the final state in `run`."""
    inputs, h, c, proj_clip, of_factors = run.inputs, run.h, run.c, steps.proj_clip, weights.of_factors()
    most_rows = max(steps.packing.batch_sizes, default=0)
    scratch, scratch_hidden = (inputs.new_empty(most_rows, size) for size in (inputs.shape[1], c.shape[1]))
    for rows, window, fresh in steps:
        if fresh is not None:
            h[fresh], c[fresh] = run.start_h, run.start_c
        constant, factors = inputs[window], h[:rows].to(inputs.dtype)
        if run.beside is not None:
            constant, factors = inputs, torch.cat([run.beside[window].to(inputs.dtype), factors], dim=1)
        if trace is None:
            gates, hidden, cell_trace = scratch[:rows], scratch_hidden[:rows], None
        else:
            step = part(trace, window)
            gates, hidden, cell_trace = step.gates, step.hidden, (step.cell, step.previous_c)
            step.factors.copy_(factors)
        torch.addmm(constant, factors, of_factors.T, out=gates)
        cell_forward(gates, c[:rows], hidden, steps.cell_clip, cell_trace)
        if weights.projection is not None:
            hidden = hidden @ weights.projection.T
            if proj_clip is not None:
                hidden.clamp_(-proj_clip, proj_clip)
        h[:rows] = hidden
        run.outputs[window] = h[:rows]


def backward_steps(steps: Steps, weights: Weights, outputs: Tensor, trace: Trace, grad: Gradients) -> None:
    """Last step first: from `grad.outputs` and those of the final state to all of `grad`."""
    dtype, proj_clip, of_factors = trace.gates.dtype, steps.proj_clip, weights.of_factors()
    if proj_clip is not None:
        proj_clip = torch.tensor(proj_clip, dtype=dtype).item()  # as clipped outputs hold it
    for rows, window, fresh in reversed(list(steps)):
        step = part(trace, window)
        grad_hidden = grad.outputs[window].add_(grad.h[:rows])
        if weights.projection is not None:
            if proj_clip is not None:
                grad_hidden *= outputs[window].abs() < proj_clip
            grad_hidden = grad_hidden.to(dtype) @ weights.projection
        cell_backward(
            step.gates, (step.cell, step.previous_c), grad_hidden.to(dtype), grad.c[:rows], grad.gates[window],
            steps.cell_clip,
        )  # fmt: skip
        grad_factors = grad.gates[window] @ of_factors
        grad.h[:rows] = grad_factors[:, -grad.h.shape[1] :]
        if grad.beside is not None and grad.constant is not None:
            grad.beside[window] = grad_factors[:, : grad.beside.shape[1]]
            grad.constant.add_(grad.gates[window].sum(dim=0))
        if fresh is not None:
            grad.h[fresh], grad.c[fresh] = 0, 0
