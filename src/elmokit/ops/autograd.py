"""One autograd function for all ops: an implementation computes results and gradients, this hands
them to PyTorch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.ops.functional import LSTMResult, LSTMState, LSTMSteps, LSTMWeights
from elmokit.ops.workspace import converted
from elmokit.threads import run_on_own_thread

Tensors = tuple[Tensor | None, ...]


def retains_graph() -> bool:
    """Whether the running backward pass keeps its graph for another one; True where PyTorch does
    not tell.
    """
    autograd = getattr(torch._C, "_autograd", None)
    return getattr(autograd, "_get_current_graph_task_keep_graph", lambda: True)()


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, forward: Any, backward: Any, settings: dict[str, Any], *inputs: Tensor | None
    ) -> Any:
        results, saved = forward(*inputs, **settings)
        ctx.save_for_backward(*saved)
        ctx.compute, ctx.settings = backward, settings
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs]
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        device, last = gradients[0].device, not retains_graph()
        # A backward pass that is called under autocast computes in the dtypes of the forward pass
        # all the same.
        with torch.autocast(device.type, enabled=False):
            backward = partial(ctx.compute, ctx.saved_tensors, gradients, last, **ctx.settings)
            gradients = run_on_own_thread(backward, device)
        typed = zip(gradients, ctx.dtypes, strict=True)
        return (
            None,
            None,
            None,
            *(
                None if gradient is None else converted(gradient, dtype)
                for gradient, dtype in typed
            ),
        )


def differentiably(
    forward: Any, backward: Any, *inputs: Tensor | None, **settings: Any
) -> tuple[Tensor, ...]:
    """Run an op whose gradients its implementation computes.

    Args:
        forward: `forward(*inputs, **settings)` returns the results and the tensors to save.
        backward: `backward(saved, gradients, last, **settings)` returns the gradient of each input.
            With `last` no other backward pass follows, so it may overwrite the saved tensors.
        inputs: The op's tensors; None for an optional one that is not given.
        settings: The op's other arguments.

    Returns:
        The results of `forward`.
    """
    return _Apply.apply(forward, backward, settings, *inputs)  # type: ignore[no-any-return]


def differentiable_lstm(
    forward: Any,
    backward: Any,
    x: Tensor,
    state: LSTMState,
    weights: LSTMWeights,
    steps: LSTMSteps,
    dtype: torch.dtype,
) -> LSTMResult:
    """`differentiably` with the arguments of `reference.lstm`: `forward` gets x, h, c and the
    weights one by one.
    """
    outputs, h, c = differentiably(forward, backward, x, *state, *weights, steps=steps, dtype=dtype)
    return outputs, LSTMState(h, c)
