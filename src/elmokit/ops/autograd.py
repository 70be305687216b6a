"""One autograd function for all ops: an implementation computes results and gradients, this hands them to PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.ops.threads import run_on_own_thread
from elmokit.ops.workspace import converted

Tensors = tuple[Tensor | None, ...]


def retains_graph() -> bool:
    """Whether the running backward pass keeps its graph for another one; True where PyTorch does not tell."""
    autograd = getattr(torch._C, "_autograd", None)
    return getattr(autograd, "_get_current_graph_task_keep_graph", lambda: True)()


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, implementation: Any, settings: dict[str, Any], *inputs: Tensor | None) -> Any:
        results, saved = implementation.forward(*inputs, **settings)
        ctx.save_for_backward(*saved)
        ctx.implementation, ctx.settings = implementation, settings
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs]
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        device, last = gradients[0].device, not retains_graph()
        # A backward pass that is called under autocast computes in the number types of the forward pass all the same.
        with torch.autocast(device.type, enabled=False):
            backward = partial(ctx.implementation.backward, ctx.saved_tensors, gradients, last, **ctx.settings)
            gradients = run_on_own_thread(backward, device)
        typed = zip(gradients, ctx.dtypes, strict=True)
        return None, None, *(None if gradient is None else converted(gradient, dtype) for gradient, dtype in typed)


def differentiably(implementation: Any, *inputs: Tensor | None, **settings: Any) -> tuple[Tensor, ...]:
    """Run an op whose gradients its implementation computes.

    Args:
        implementation: A module with two functions. `forward(*inputs, **settings)` returns the results and the tensors
            to save; `backward(saved, gradients, last, **settings)` returns the gradient of each input. With `last` no
            other backward pass follows, so it may overwrite the saved tensors.
        inputs: The op's tensors; None for an optional one that is not given.
        settings: The op's other arguments.

    Returns:
        The results of `forward`.
    """
    return _Apply.apply(implementation, settings, *inputs)  # type: ignore[no-any-return]
