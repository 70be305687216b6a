"""Wraps hand-written forward and backward functions in one `autograd.Function`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.ops.memory import converted
from elmokit.threads import run_on_own_thread

Tensors = tuple[Tensor | None, ...]


def _retains_graph() -> bool:
    """Whether the running backward pass keeps its graph; True where PyTorch does not tell."""
    autograd = getattr(torch._C, "_autograd", None)
    return getattr(autograd, "_get_current_graph_task_keep_graph", lambda: True)()


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        forward: Any,
        backward: Any,
        settings: dict[str, Any],
        *inputs: Tensor | None,
    ) -> Any:
        results, saved = forward(*inputs, **settings)
        ctx.save_for_backward(*saved)
        ctx.compute = partial(backward, **settings)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs]
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        saved, device = ctx.saved_tensors, gradients[0].device
        if _retains_graph():  # another pass may follow, and this one may write over the first
            saved = (saved[0].clone(), *saved[1:])
        # A backward pass that is called under autocast computes in the dtypes of the forward pass
        # all the same.
        with torch.autocast(device.type, enabled=False):
            backward = partial(ctx.compute, saved, *gradients)
            computed = run_on_own_thread(backward, device)
        typed = [
            None if gradient is None else converted(gradient, dtype)
            for gradient, dtype in zip(computed, ctx.dtypes, strict=True)
        ]
        return None, None, None, *typed


def differentiably(forward: Any, backward: Any, *inputs: Tensor | None, **settings: Any) -> Any:
    """Run an op whose gradients its implementation computes.

    Args:
        forward: `forward(*inputs, **settings)` returns the results and the tensors to save.
        backward: `backward(saved, *gradients, **settings)` returns the gradient of each input. It
            may write over the first of the saved tensors.
        inputs: The op's tensors; None for an optional one that is not given.
        settings: The op's other arguments.

    Returns:
        The results of `forward`: a tensor, or several.
    """
    return _Apply.apply(forward, backward, settings, *inputs)
