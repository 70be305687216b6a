"""The state that sequence encoders carry from one text to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elmokit.config import SequenceEncoderConfig
from elmokit.ops.functional import LSTMState


@dataclass(frozen=True, repr=False)
class BiLMState:
    """The state of B rows between calls: `h` (2, L, B, D) and `c` (2, L, B, H); directions fwd, bwd.

    For encoders other than LSTMs the shapes differ (`state_shape` of their configuration), but rows are along the third
    axis, too: a gated CNN keeps the last inputs of each layer in `h`; an encoder that carries no state has no elements.
    """

    h: Tensor
    c: Tensor

    @staticmethod
    def zeros(config: SequenceEncoderConfig, rows: int, like: Tensor) -> BiLMState:
        """Zeros for `rows` rows, float32 at least, on the device of the tensor `like`."""
        wide = torch.promote_types(like.dtype, torch.float32)
        return BiLMState(*(like.new_zeros(shape, dtype=wide) for shape in state_shapes(config, rows)))

    def __repr__(self) -> str:
        return f"BiLMState(h {tuple(self.h.shape)}, c {tuple(self.c.shape)}, {self.h.dtype} on {self.h.device})"

    def to(self, device: torch.device) -> BiLMState:
        """The state itself, or its copy on another device."""
        return self if self.h.device == device else BiLMState(self.h.to(device), self.c.to(device))

    def float(self) -> BiLMState:
        return BiLMState(self.h.float(), self.c.float())

    def row(self, row: int) -> BiLMState:
        """The state of one row."""
        return BiLMState(self.h[:, :, row : row + 1], self.c[:, :, row : row + 1])

    def repeated(self, rows: int) -> BiLMState:
        """The state of one row for each of `rows` rows."""
        return BiLMState(self.h.repeat(1, 1, rows, 1), self.c.repeat(1, 1, rows, 1))

    def with_row(self, row: int, of_row: BiLMState) -> BiLMState:
        """The state with that of `row` replaced by the only row of `of_row`."""
        h, c = self.h.clone(), self.c.clone()
        h[:, :, row], c[:, :, row] = of_row.h[:, :, 0], of_row.c[:, :, 0]
        return BiLMState(h, c)

    def of_direction(self, d: int, rows: Tensor | None = None) -> list[LSTMState]:
        """The state of each layer of direction `d`; with `rows` of those rows, in that order."""
        pairs = zip(self.h[d], self.c[d], strict=True)
        return [LSTMState(h, c) if rows is None else LSTMState(h[rows], c[rows]) for h, c in pairs]

    @staticmethod
    def of_ranks(directions: Sequence[Sequence[LSTMState]], rows: Tensor) -> BiLMState:
        """The state by row, from those of each direction and layer by rank."""
        rank = torch.argsort(rows)
        h, c = (
            torch.stack([torch.stack([state[part] for state in states]) for states in directions])[:, :, rank]
            for part in range(2)
        )
        return BiLMState(h, c)


def state_shapes(config: SequenceEncoderConfig, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of h and c in a state of `rows` rows."""
    layers, *widths = config.state_shape
    h, c = ((2, layers, rows, width) for width in widths)
    return h, c


def check_state_shapes(state: BiLMState, config: SequenceEncoderConfig, rows: int) -> None:
    """ValueError if the state is of another number of rows, or of another model."""
    shapes, expected = (tuple(state.h.shape), tuple(state.c.shape)), state_shapes(config, rows)
    if shapes != expected:
        raise ValueError(f"the state of {rows} rows of this model has shapes {[*expected]}, not {[*shapes]}")


def states_of_directions(
    config: SequenceEncoderConfig, rows: Tensor, words: Tensor, state: BiLMState | None, start: BiLMState | None
) -> tuple[list[list[LSTMState]], list[list[LSTMState] | list[None]]]:
    """The states of each direction and layer, by rank, and the start states.

    Args:
        config: The configuration of a sequence encoder that carries state.
        rows: The row of each rank, (B,).
        words: A tensor with the device and dtype of the states.
        state: The state by row; None: zeros.
        start: The state of one row that a reset sets; None: zeros, which are None in the result.

    Returns:
        For each direction and layer the states (B, ...), and the start states (1, ...).

    Raises:
        ValueError: A state is of another number of rows, or of another model.
    """
    state = BiLMState.zeros(config, len(rows), words) if state is None else state
    check_state_shapes(state, config, len(rows))
    if start is not None:
        check_state_shapes(start, config, 1)
    starts = [[None] * config.num_layers if start is None else start.of_direction(d) for d in range(2)]
    return [state.of_direction(d, rows) for d in range(2)], starts


def check_stateless(kind: str, state: BiLMState | None, start: BiLMState | None) -> None:
    """ValueError if a sequence encoder that carries no state is given one; `kind` names it in the message."""
    if state is not None or start is not None:
        raise ValueError(f"{kind} has no state to carry or to start from: use zeros")
