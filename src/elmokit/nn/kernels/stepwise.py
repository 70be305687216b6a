"""The passes in PyTorch, step by step, of one direction or of both at once, for any device.

Of one direction on a CPU the cell is compiled where it could be. Tensors of one have no dimension for the direction.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.nn.kernels.cell import cell_backward, cell_forward
from elmokit.nn.kernels.passes import Gradients, Run, Steps, Trace, Weights, part


def forward_steps(steps: Steps, weights: Weights, run: Run, trace: Trace | None) -> None:
    """Fills `run.outputs` and, where there is one, `trace`; leaves the final state in `run`."""
    inputs, proj_clip, of_factors = run.inputs, steps.proj_clip, weights.of_factors()
    add_product = torch.baddbmm if inputs.dim() == 3 else torch.addmm
    of_step = *inputs.shape[:-2], max(steps.packing.batch_sizes, default=0)
    scratch, scratch_hidden = (inputs.new_empty(*of_step, size) for size in (inputs.shape[-1], run.c.shape[-1]))
    for rows, slots, fresh in steps.on(inputs.device):
        if fresh is not None:
            run.h[..., fresh, :], run.c[..., fresh, :] = run.start_h, run.start_c
        h, c = run.h[..., :rows, :], run.c[..., :rows, :]
        constant, factors = inputs[slots], h.to(inputs.dtype)
        if run.beside is not None:
            constant, factors = inputs, torch.cat([run.beside[slots].to(inputs.dtype), factors], dim=-1)
        if trace is None:
            gates, hidden, cell_trace = scratch[..., :rows, :], scratch_hidden[..., :rows, :], None
        else:
            step = part(trace, slots)
            gates, hidden, cell_trace = step.gates, step.hidden, (step.cell, step.previous_c)
            step.factors.copy_(factors)
        add_product(constant, factors, of_factors.mT, out=gates)
        cell_forward(gates, c, hidden, steps.cell_clip, cell_trace)
        if weights.projection is not None:
            hidden = hidden @ weights.projection.mT
            if proj_clip is not None:
                hidden.clamp_(-proj_clip, proj_clip)
        h.copy_(hidden)
        run.outputs[slots] = h


def backward_steps(steps: Steps, weights: Weights, outputs: Tensor, trace: Trace, grad: Gradients) -> None:
    """Last step first: from `grad.outputs` and those of the final state to all of `grad`."""
    dtype, proj_clip, of_factors = trace.gates.dtype, steps.proj_clip, weights.of_factors()
    if proj_clip is not None:
        proj_clip = torch.tensor(proj_clip, dtype=dtype).item()  # as clipped outputs hold it
    for rows, slots, fresh in reversed(steps.on(outputs.device)):
        step = part(trace, slots)
        grad_h, grad_c, grad_gates = grad.h[..., :rows, :], grad.c[..., :rows, :], grad.gates[slots]
        grad_hidden = grad.outputs[slots].add_(grad_h)
        if weights.projection is not None:
            if proj_clip is not None:
                grad_hidden *= outputs[slots].abs() < proj_clip
            grad_hidden = grad_hidden.to(dtype) @ weights.projection
        cell_backward(
            step.gates, (step.cell, step.previous_c), grad_hidden.to(dtype), grad_c, grad_gates, steps.cell_clip
        )
        grad_factors = grad_gates @ of_factors
        grad_h.copy_(grad_factors[..., -grad_h.shape[-1] :])
        if grad.beside is not None and grad.constant is not None:
            grad.beside[slots] = grad_factors[..., : grad.beside.shape[-1]]
            grad.constant.add_(grad_gates.sum(dim=-2))
        if fresh is not None:
            grad.h[..., fresh, :], grad.c[..., fresh, :] = 0, 0
