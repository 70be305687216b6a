"""The projected, clipped LSTM: a layer, a stack of layers in one direction, and two stacks side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import LSTMConfig, SequenceEncoderConfig
from elmokit.ops.functional import Clips, LSTMState, LSTMWeights, apply_dropout, lstm, records_gradients
from elmokit.ops.packing import Packing
from elmokit.ops.threads import run_side_by_side
from elmokit.ops.workspace import allocate

NO_CLIPS = Clips(None, None)

Result = TypeVar("Result")


class LSTMLayer(nn.Module):
    """One layer in one direction. Rows of the gates are i, g, f, o, as in the published files."""

    def __init__(self, input_dim: int, cell_dim: int, output_dim: int, clips: Clips, forget_bias: float) -> None:
        """Create a layer, with a projection after the cell unless `output_dim` equals `cell_dim`."""
        super().__init__()
        self.clips, self.forget_bias = clips, forget_bias
        self.input_weight = nn.Parameter(torch.empty(4 * cell_dim, input_dim))
        self.recurrent_weight = nn.Parameter(torch.empty(4 * cell_dim, output_dim))
        self.bias = nn.Parameter(torch.zeros(4 * cell_dim))
        projected = output_dim != cell_dim
        self.projection_weight = nn.Parameter(torch.empty(output_dim, cell_dim)) if projected else None
        self.reset_parameters()

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        state: LSTMState,
        start: LSTMState | None = None,
        index: Tensor | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, LSTMState]:
        """Run over a packed stream.

        Args:
            x: The layer's input (N, K), in stream order.
            packing: The stream's shape, with B rows.
            state: The state that each row starts from, by rank.
            start: The state of one row that a reset sets; None: zeros.
            index: The row of `x` that each slot reads, (N,); None: slot n reads row n.
            out: A tensor for the outputs; only without gradients.

        Returns:
            The outputs (N, D), float32 at least, and each row's state after its last step.
        """
        x = x if index is None else F.embedding(index, x)
        outputs, state = lstm(x, packing, state, self.weights(), self.clips, start)
        return outputs if out is None else out.copy_(outputs), state

    def weights(self) -> LSTMWeights:
        """The weights as the op reads them.

        The forget bias is added here and never stored, so that weights survive a round trip to disk bit for bit.
        """
        constant = torch.zeros_like(self.bias).view(4, -1)
        constant[2] = self.forget_bias
        return LSTMWeights(
            self.input_weight, self.recurrent_weight, self.bias + constant.flatten(), self.projection_weight
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """TensorFlow's default, Glorot uniform, on the stacked kernel [W; U] as in bilm-tf; biases are zero."""
        bound = math.sqrt(6 / (self.input_weight.shape[1] + self.recurrent_weight.shape[1] + len(self.bias)))
        self.input_weight.uniform_(-bound, bound)
        self.recurrent_weight.uniform_(-bound, bound)
        self.bias.zero_()
        if self.projection_weight is not None:
            bound = math.sqrt(6 / sum(self.projection_weight.shape))
            self.projection_weight.uniform_(-bound, bound)


class LSTMStack(nn.Module):
    """L layers in one direction, each but the first with a skip connection if the configuration says so."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.use_skip_connections, dim = config.use_skip_connections, config.projection_dim
        clips = Clips(config.cell_clip, config.proj_clip)
        self.layers = nn.ModuleList(
            LSTMLayer(dim, config.cell_dim, dim, clips, config.forget_bias) for _ in range(config.num_layers)
        )

    def forward(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        states: Sequence[LSTMState],
        starts: Sequence[LSTMState | None],
        dropout: float = 0.0,
        out: Tensor | None = None,
    ) -> tuple[Tensor, list[LSTMState]]:
        """Run over a packed stream.

        Args:
            words: Vectors of the distinct words, (U, D).
            tokens: Index into `words` at each slot, (N,).
            packing: The stream's shape.
            states: The state that the rows of each layer start from, by rank.
            starts: For each layer the state that a reset sets; None: zeros.
            dropout: As in bilm-tf (training.py:388-424): on the input of every layer, which the skip connection also
                reads, and on the last output. The token layer that is returned is without dropout.
            out: A tensor for the layers; only without gradients.

        Returns:
            The layers (L+1, N, D), the token vectors first, and the final state of each layer.
        """
        x = F.embedding(tokens, words) if out is None else torch.index_select(words, 0, tokens, out=out[0])
        layers, finals = [x], []
        for index, layer in enumerate(self.layers):
            x = apply_dropout(x, dropout)
            place = None if out is None else out[index + 1]
            if index == 0 and out is not None and not dropout:  # each distinct word is multiplied once
                outputs, final = layer(words, packing, states[0], starts[0], index=tokens, out=place)
            else:
                outputs, final = layer(x, packing, states[index], starts[index], out=place)
            if self.use_skip_connections and index > 0:
                outputs = outputs + x if out is None else outputs.add_(x)
            x = apply_dropout(outputs, dropout) if index + 1 == len(self.layers) else outputs
            if out is not None and x is not place:
                x = out[index + 1].copy_(x)
            layers.append(x)
            finals.append(final)
        return torch.stack(layers) if out is None else out, finals


def state_shapes(config: SequenceEncoderConfig, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of h and c in a state of `rows` rows."""
    layers, *widths = config.state_shape
    h, c = ((2, layers, rows, width) for width in widths)
    return h, c


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


def check_state_shapes(state: BiLMState, config: SequenceEncoderConfig, rows: int) -> None:
    """ValueError if the state is of another number of rows, or of another model."""
    shapes, expected = (tuple(state.h.shape), tuple(state.c.shape)), state_shapes(config, rows)
    if shapes == expected:
        return
    if state.h.dim() == 4 and state.h.shape[2] != rows:
        raise ValueError(f"the state has {state.h.shape[2]} rows, the batch {rows}: give one row for each")
    raise ValueError(f"the state is of another model: its h and c are {[*shapes]}, those of this one {[*expected]}")


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


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether any of the modules itself has a hook on its `forward`."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def runs_in_turn(encoder: nn.Module, *inputs: Tensor, dropout: float = 0.0) -> bool:
    """Whether the directions run one after the other on the caller's thread, for gradients, dropout or hooks.

    A hook may add parameters that learn although the encoder does not, and may keep tensors, which must then not be
    overwritten.
    """
    return dropout > 0 or has_hooks(encoder.modules()) or records_gradients(*inputs, *encoder.parameters())


def run_directions(tasks: Sequence[Callable[[], Result]], device: torch.device, in_turn: bool) -> list[Result]:
    """Run a task for each direction: in turn, or without gradients on threads of their own."""
    return [task() for task in tasks] if in_turn else run_side_by_side([*tasks], device)


class BidirectionalLSTM(nn.Module):
    """Two stacks that never exchange information: one reads each sentence from its front, one from its back."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.stacks = nn.ModuleList([LSTMStack(config), LSTMStack(config)])

    def forward(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState | None = None,
        start: BiLMState | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, BiLMState]:
        """See `BiLM.run`. The stacks run on threads of their own, unless `runs_in_turn`."""
        rows, wide = packing.on(words.device).row_order, torch.promote_types(words.dtype, torch.float32)
        words, tokens = words.to(wide), tokens.contiguous()
        states, starts = states_of_directions(self.config, rows, words, state, start)
        carried = [part for direction in states for layer in direction for part in layer]
        in_turn = runs_in_turn(self, words, *carried, dropout=dropout)
        shape = (self.config.num_layers + 1, *tokens.shape, words.shape[1])
        layers = None if in_turn else allocate(shape, wide, words.device)
        outs = [None if layers is None else layers[:, d] for d in range(2)]
        tasks = [
            partial(stack, words, tokens[d], packing, states[d], starts[d], dropout, outs[d])
            for d, stack in enumerate(self.stacks)
        ]
        (fwd, fwd_states), (bwd, bwd_states) = run_directions(tasks, words.device, in_turn)
        layers = torch.stack([fwd, bwd], dim=1) if layers is None else layers
        return layers, BiLMState.of_ranks([fwd_states, bwd_states], rows)
