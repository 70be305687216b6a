"""Two stacks of layers, one for each direction, and the state that they carry from one text to the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import SequenceEncoderConfig
from elmokit.ops import (
    LSTMState,
    Packing,
    allocate,
    apply_dropout,
    records_gradients,
)
from elmokit.threads import run_on_streams, run_side_by_side

Result = TypeVar("Result")
States = Sequence[LSTMState | None]  # of each layer; also the state of a gated CNN
Keep = Callable[[int, Tensor], Tensor]  # see Stack.forward


@dataclass(frozen=True)
class BiLMState:
    """The state of B rows between calls: `h` (2, L, B, D) and `c` (2, L, B, H); directions fwd,
    bwd.

    For encoders other than LSTMs the shapes differ (`state_shape` of their configuration), but rows
    are along the third axis, too: a gated CNN keeps the last inputs of each layer in `h`; an
    encoder that carries no state has no elements.
    """

    h: Tensor
    c: Tensor

    @staticmethod
    def zeros(config: SequenceEncoderConfig, rows: int, like: Tensor) -> BiLMState:
        """Zeros for `rows` rows, float32 at least, on the device of the tensor `like`."""
        wide = torch.promote_types(like.dtype, torch.float32)
        return BiLMState(
            *(like.new_zeros(shape, dtype=wide) for shape in state_shapes(config, rows))
        )

    @staticmethod
    def of_ranks(directions: Sequence[Sequence[LSTMState]], rows: Tensor) -> BiLMState:
        """The state by row, from those of each direction and layer by rank."""
        rank = torch.argsort(rows)
        h, c = (
            torch.stack([torch.stack([state[part] for state in states]) for states in directions])[
                :, :, rank
            ]
            for part in range(2)
        )
        return BiLMState(h, c)

    def check(self, config: SequenceEncoderConfig, rows: int) -> None:
        """ValueError if the state is of another number of rows, or of another model."""
        shapes, expected = (tuple(self.h.shape), tuple(self.c.shape)), state_shapes(config, rows)
        if shapes != expected:
            raise ValueError(
                f"the state of {rows} rows of this model has shapes {[*expected]}, not {[*shapes]}"
            )

    def to(self, device: torch.device) -> BiLMState:
        """The state itself, or its copy on another device."""
        return self if self.h.device == device else BiLMState(self.h.to(device), self.c.to(device))

    def repeated(self, rows: int) -> BiLMState:
        """The state of one row for each of `rows` rows."""
        return BiLMState(self.h.repeat(1, 1, rows, 1), self.c.repeat(1, 1, rows, 1))

    def of_direction(self, d: int, rows: Tensor | slice = slice(None)) -> list[LSTMState]:
        """The state of each layer of direction `d`; with `rows` of those rows, in that order."""
        return [LSTMState(h[rows], c[rows]) for h, c in zip(self.h[d], self.c[d], strict=True)]


def state_shapes(
    config: SequenceEncoderConfig, rows: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of h and c in a state of `rows` rows."""
    layers, *widths = config.state_shape
    h, c = ((2, layers, rows, width) for width in widths)
    return h, c


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether any of the modules itself has a hook on its `forward`."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def learns(encoder: nn.Module, *inputs: Tensor) -> bool:
    """Whether autograd records what an encoder computes, or a hook may use it."""
    return has_hooks(encoder.modules()) or records_gradients(*inputs, *encoder.parameters())


def run_directions(
    tasks: Sequence[Callable[[], Result]], device: torch.device, *, in_order: bool
) -> list[Result]:
    """Run a task for each direction, on threads of their own unless they must run in order on the
    caller's.

    Gradients and hooks need the thread, and dropout, which draws random numbers, the order.
    """
    return [task() for task in tasks] if in_order else run_side_by_side([*tasks], device)


class Stack(nn.Module):
    """L layers in one direction, whose outputs feed each other. Dropout is on the token vectors,
    and in the layers.
    """

    layer_type: ClassVar[
        Callable[[Any], nn.Module]
    ]  # creates a layer from the encoder's configuration

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(type(self).layer_type(config) for _ in range(config.num_layers))

    def forward(
        self,
        words: Tensor,
        tokens: Tensor,
        layout: Any,
        states: States,
        starts: States,
        dropout: float,
        keep: Keep,
    ) -> tuple[list[Tensor], list[LSTMState | None]]:
        """Run over a packed stream.

        Args:
            words: Vectors of the distinct words, (U, D).
            tokens: Index into `words` at each slot, (N,).
            layout: The stream's shape, as `Bidirectional.layout` gives it.
            states: The state that the rows of each layer start from, by rank; None: it carries
                none.
            starts: For each layer the state that a reset sets; None: zeros.
            dropout: The probability.
            keep: Called with the number and the values of each layer; returns the values where they
                are to be read.

        Returns:
            The token vectors, without dropout, and the outputs of each layer, (N, D) each, and
            their final states.
        """
        layers, finals = [keep(0, F.embedding(tokens, words))], []
        x = apply_dropout(layers[0], dropout)
        for number, (layer, state, start) in enumerate(
            zip(self.layers, states, starts, strict=True), start=1
        ):
            x, final = layer(x, layout, state, start, dropout)
            layers.append(keep(number, x))
            finals.append(final)
        return layers, finals


def _keep(out: Tensor | None, direction: int, number: int, layer: Tensor) -> Tensor:
    """The layer itself, or copied to its place in `out` (L+1, 2, N, D), so that its memory is free
    for the next.
    """
    return layer if out is None else out[number, direction].copy_(layer)


class Bidirectional(nn.Module):
    """Two stacks that never exchange information: one reads each sentence from its front, one from
    its back.
    """

    stack_type: ClassVar[type[Stack]]
    runs_on_streams: ClassVar[bool] = False  # on a GPU each direction on a stream of its own

    def __init__(self, config: SequenceEncoderConfig) -> None:
        super().__init__()
        self.config: Any = config  # of the subclass's kind
        self.stacks = nn.ModuleList(self.stack_type(config) for _ in range(2))

    def layout(self, packing: Packing, words: Tensor) -> Any:
        """What both stacks need to know about the shape of the streams."""
        return packing

    def forward(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState,
        start: BiLMState | None,
        dropout: float,
    ) -> tuple[Tensor, BiLMState]:
        """See `BiLM.run`."""
        config, rows = self.config, packing.on(words.device).row_order
        tokens = tokens.contiguous()
        is_learning = learns(self, words, state.h, state.c)
        shape = (config.num_layers + 1, 2, tokens.shape[1], words.shape[1])
        out = None if is_learning else allocate(shape, words.dtype, words.device)
        layout, tasks = self.layout(packing, words), []
        for d, stack in enumerate(self.stacks):
            states = state.of_direction(d, rows) or [None] * config.num_layers
            starts = (
                start.of_direction(d) if start and start.h.numel() else [None] * config.num_layers
            )
            tasks.append(
                partial(
                    stack, words, tokens[d], layout, states, starts, dropout, partial(_keep, out, d)
                )
            )
        if (
            words.is_cuda and self.runs_on_streams
        ):  # all that they share is in the arguments, and made before they part
            results = run_on_streams(tasks, words.device)
        else:
            results = run_directions(tasks, words.device, in_order=is_learning or dropout > 0)
        (fwd, fwd_states), (bwd, bwd_states) = results
        if out is None:
            out = torch.stack(
                [layer for pair in zip(fwd, bwd, strict=True) for layer in pair]
            ).unflatten(0, (-1, 2))
        return out, BiLMState.of_ranks(
            [fwd_states, bwd_states], rows
        ) if config.carries_state else state
