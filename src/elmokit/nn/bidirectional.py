"""Shared by sequence encoders: two stacks of layers, one for each direction, the state that they
carry between texts, and dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from elmokit.config import SequenceEncoderConfig
from elmokit.ops import LSTMState, allocate
from elmokit.runtime import accumulation_dtype, needs_grad
from elmokit.threads import run_on_streams, run_side_by_side

Result = TypeVar("Result")
LEVELS = 1 << 16  # 16 random bits decide whether dropout drops a value


@dataclass(frozen=True)
class BiLMState:
    """The state of B rows between calls; empty for an encoder that carries none."""

    h: Tensor  # (2, L, B, D), directions fwd and bwd
    c: Tensor  # (2, L, B, H)

    @staticmethod
    def shapes(config: SequenceEncoderConfig, rows: int) -> dict[str, tuple[int, ...]]:
        """The shapes of h and c in a state of `rows` rows."""
        layers, width, cells = config.state_shape
        return {"h": (2, layers, rows, width), "c": (2, layers, rows, cells)}

    @staticmethod
    def zeros(config: SequenceEncoderConfig, rows: int, like: Tensor) -> BiLMState:
        """Zeros for `rows` rows, float32 at least, on the device of the tensor `like`."""
        dtype = accumulation_dtype(like.dtype)
        h, c = BiLMState.shapes(config, rows).values()
        return BiLMState(like.new_zeros(h, dtype=dtype), like.new_zeros(c, dtype=dtype))

    @staticmethod
    def of_ranks(directions: Sequence[Sequence[LSTMState]], row_order: Tensor) -> BiLMState:
        """Convert states of each direction and layer from ranks to rows."""
        # Kernels keep the longest rows first. Rows of 2, 9 and 5 words have row_order 1 2 0, the
        # row at each rank, and so the ranks 2 0 1.
        rank = torch.argsort(row_order)
        h = torch.stack([torch.stack([state.h for state in states]) for states in directions])
        c = torch.stack([torch.stack([state.c for state in states]) for states in directions])
        return BiLMState(h[:, :, rank], c[:, :, rank])

    def check(self, config: SequenceEncoderConfig, rows: int) -> None:
        """ValueError if the state is of another number of rows, or of another model."""
        expected = self.shapes(config, rows)
        shapes = {"h": tuple(self.h.shape), "c": tuple(self.c.shape)}
        if shapes != expected:
            raise ValueError(
                f"the state of {rows} rows of this model has shapes {expected}, not {shapes}"
            )

    def to(self, device: torch.device) -> BiLMState:
        """The state itself, or its copy on another device."""
        if self.h.device == device:
            return self
        return BiLMState(self.h.to(device), self.c.to(device))

    def repeated(self, rows: int) -> BiLMState:
        """The state of one row for each of `rows` rows."""
        return BiLMState(self.h.repeat(1, 1, rows, 1), self.c.repeat(1, 1, rows, 1))

    def of_direction(self, d: int, rows: Tensor | slice = slice(None)) -> list[LSTMState]:
        """The state of each layer of direction `d`; with `rows` of those rows, in that order."""
        layers = zip(self.h[d], self.c[d], strict=True)
        return [LSTMState(h[rows], c[rows]) for h, c in layers]


def apply_dropout(x: Tensor, probability: float) -> Tensor:
    """Set each value to 0 with a given probability, and scale the others to the same mean.

    PyTorch's own dropout draws a random number for each value; this draws one for four, from
    PyTorch's default generator of the device.

    Args:
        x: Of any shape.
        probability: Of a value to be dropped, rounded to a multiple of 1/65,536; with 0, x itself
            is returned.

    Returns:
        A tensor like x.

    Raises:
        ValueError: If the probability is below 0, or 1 or more.
    """
    if not 0 <= probability < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, not {probability}")
    if probability == 0:
        return x
    kept = round((1 - probability) * LEVELS)
    kept = min(max(kept, 1), LEVELS - 1)
    count = -(-x.numel() // 4)
    numbers = torch.empty(count, dtype=torch.int64, device=x.device)
    numbers.random_(-(1 << 63), None)
    # Four draws of 16 bits in each number of 64 bits. The lowest `kept` of the LEVELS keep a value:
    #
    #     draw    -LEVELS / 2 ..  kept - LEVELS / 2 ..  LEVELS / 2 - 1
    #             kept            dropped
    draws = numbers.view(torch.int16)[: x.numel()].view(x.shape)
    is_kept = draws < kept - LEVELS // 2
    return x * is_kept.to(x.dtype).mul_(LEVELS / kept)


def has_hooks(module: nn.Module) -> bool:
    """Whether the module or one inside it has a hook on its `forward`."""
    return any(inner._forward_hooks or inner._forward_pre_hooks for inner in module.modules())


def is_observed(encoder: nn.Module, *inputs: Tensor) -> bool:
    """Whether autograd or a hook records the encoder's computation."""
    return has_hooks(encoder) or needs_grad(*inputs, *encoder.parameters())


def run_directions(
    tasks: Sequence[Callable[[], Result]],
    device: torch.device,
    *,
    in_order: bool,
) -> list[Result]:
    """Run a task for each direction, side by side unless they must run in order on this thread.

    Gradients and hooks need the thread, and dropout, which draws random numbers, the order.
    """
    if in_order:
        return [task() for task in tasks]
    return run_side_by_side([*tasks], device)


class Bidirectional(nn.Module):
    """Two stacks that never exchange information: one reads each sentence from its front, one from
    its back.

    A stack is called with (word_vectors, tokens, *more, dropout). It returns L + 1 layers, (N, D)
    each, and the final states of the L layers above the first.
    """

    runs_on_streams = False  # whether directions use separate streams on a GPU

    def __init__(self, config: Any, stack_type: Callable[[Any], nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.stacks = nn.ModuleList(stack_type(config) for _ in range(2))

    def run_stacks(
        self,
        word_vectors: Tensor,
        tokens: Tensor,
        more: Sequence[tuple[Any, ...]],
        state: BiLMState,
        dropout: float,
    ) -> tuple[Tensor, list[Any]]:
        """The layers (L+1, 2, N, D), and the final states of each direction.

        Args:
            word_vectors: Vectors of the distinct words, (U, D).
            tokens: Index into `word_vectors` at each slot of each direction, (2, N).
            more: For each direction the further arguments of its stack.
            state: The state that the stacks start from, which is among their arguments.
            dropout: The probability.
        """
        # Where autograd or a hook follows, layers are not written in place.
        observed = is_observed(self, word_vectors, state.h, state.c)
        tokens = tokens.contiguous()
        shape = (self.config.num_layers + 1, 2, tokens.shape[1], word_vectors.shape[1])
        out = None if observed else allocate(shape, word_vectors.dtype, word_vectors.device)

        def run(d: int) -> tuple[Any, Any]:
            layers, states = self.stacks[d](word_vectors, tokens[d], *more[d], dropout)
            if out is None:
                return layers, states
            # Copied, so that both directions lie in one tensor, and the layers are freed.
            for number, layer in enumerate(layers):
                out[number, d].copy_(layer)
            return None, states

        tasks = [partial(run, d) for d in range(2)]
        # All that the streams of a GPU share is in the arguments, and made before they part.
        if word_vectors.is_cuda and self.runs_on_streams:
            results = run_on_streams(tasks, word_vectors.device)
        else:
            results = run_directions(tasks, word_vectors.device, in_order=observed or dropout > 0)
        (fwd, fwd_states), (bwd, bwd_states) = results
        if out is None:
            pairs = [torch.stack(pair) for pair in zip(fwd, bwd, strict=True)]
            out = torch.stack(pairs)
        return out, [fwd_states, bwd_states]
