"""Two stacks of causal convolutions with gated linear units over packed streams (Dauphin et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import GatedCNNConfig
from elmokit.nn.lstm import run_directions, stack_directions
from elmokit.nn.state import BiLMState, states_of_directions
from elmokit.nn.token_encoders import Projection
from elmokit.ops.functional import LSTMState, apply_dropout, linear
from elmokit.ops.packing import Packing, Segments


class WeightNormProjection(Projection):
    """A linear map with weight normalization (Salimans and Kingma 2016), as all linear maps of Dauphin et al."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.row_norms = nn.Parameter(torch.ones(out_features))
        nn.init.normal_(self.weight, std=math.sqrt(1 / in_features))
        nn.init.zeros_(self.bias)

    def normalized_weight(self) -> Tensor:
        """The effective weight (M, K): normalized rows times their learned lengths."""
        return F.normalize(self.weight, dim=1) * self.row_norms[:, None]

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.normalized_weight(), self.bias)


@dataclass(frozen=True)
class ConvolutionLayout:
    """The vectors that convolutions of width k read, as indices of rows of `[inputs (N); states (B * (k-1)); start
    (k-1)]`.

    Attributes:
        windows: For each slot the rows that its convolution reads, the oldest first, (N, k).
        last_inputs: For each rank the rows that are its state afterwards, (B, k-1).
    """

    windows: Tensor
    last_inputs: Tensor

    @staticmethod
    def of(packing: Packing, width: int, device: torch.device) -> ConvolutionLayout:
        """The layout for convolutions of width k."""
        segments, count, rows, history = Segments.of(packing), packing.num_slots, len(packing.row_order), width - 1
        before = np.arange(-history, 1)

        def rows_read(segment: np.ndarray, position: np.ndarray) -> np.ndarray:
            """The rows that are read at a position of each segment; before position 0 lie the states, or the start."""
            offsets = position[:, None] + before
            inside = np.minimum(np.maximum(offsets, 0), segments.lengths[segment, None] - 1)
            state = count + history * np.where(segments.continued, segments.ranks, rows)[segment]
            places = segments.firsts[segment, None] + inside
            return np.where(offsets < 0, state[:, None] + history + offsets, segments.slots[places])

        segment_of = np.repeat(np.arange(len(segments.lengths)), segments.lengths)
        windows = np.empty((count, width), dtype=np.int64)
        windows[segments.slots] = rows_read(segment_of, segments.positions())
        last_inputs = count + np.arange(rows * history).reshape(rows, history)  # rows without a slot keep their states
        is_last = np.append(segments.ranks[1:] != segments.ranks[:-1], [True] * bool(len(segments.ranks)))
        last = np.flatnonzero(is_last)
        last_inputs[segments.ranks[last]] = rows_read(last, segments.lengths[last])[:, :history]
        return ConvolutionLayout(torch.from_numpy(windows).to(device), torch.from_numpy(last_inputs).to(device))


class GatedConvolution(nn.Module):
    """A causal convolution with gated linear units, projected and added to its input."""

    def __init__(self, config: GatedCNNConfig) -> None:
        super().__init__()
        self.history = config.width - 1
        # Rows are the units' values, then their gates; columns are positions, the oldest first.
        self.convolution = WeightNormProjection(config.width * config.projection_dim, 2 * config.hidden_dim)
        self.projection = WeightNormProjection(config.hidden_dim, config.projection_dim)

    def forward(
        self, x: Tensor, layout: ConvolutionLayout, state: LSTMState, start: LSTMState | None, dropout: float
    ) -> tuple[Tensor, LSTMState]:
        """x (N, D) -> (N, D), and the state by rank after it."""
        dim = x.shape[1]
        first = x.new_zeros(self.history, dim) if start is None else start.h.detach().to(x.dtype).view(-1, dim)
        rows = torch.cat([x, state.h.to(x.dtype).reshape(-1, dim), first])
        windows = rows.index_select(0, layout.windows.flatten()).view(len(x), layout.windows.shape[1] * dim)
        last_inputs = rows.index_select(0, layout.last_inputs.flatten()).view(state.h.shape)
        added = self.projection(F.glu(self.convolution(windows), dim=1))
        return x + apply_dropout(added, dropout), LSTMState(last_inputs, state.c)


class GatedConvolutionStack(nn.Module):
    """L gated convolutions in one direction."""

    def __init__(self, config: GatedCNNConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GatedConvolution(config) for _ in range(config.num_layers))

    def forward(
        self,
        words: Tensor,
        tokens: Tensor,
        layout: ConvolutionLayout,
        states: Sequence[LSTMState],
        starts: Sequence[LSTMState | None],
        dropout: float,
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """The token vectors and the output of each layer, (N, D) each, and the states by rank after them."""
        layers, finals = [F.embedding(tokens, words)], []
        x = apply_dropout(layers[0], dropout)
        for layer, state, start in zip(self.layers, states, starts, strict=True):
            x, final = layer(x, layout, state, start, dropout)
            layers.append(x)
            finals.append(final)
        return layers, finals


class BidirectionalGatedCNN(nn.Module):
    """Two stacks that never exchange information: one reads each segment from its front, one from its back.

    The state of a row is the last k-1 inputs of each layer, so that a text in windows has the same vectors as the
    whole. Without a state, a text is preceded by zeros.
    """

    def __init__(self, config: GatedCNNConfig) -> None:
        super().__init__()
        self.config = config
        self.stacks = nn.ModuleList([GatedConvolutionStack(config), GatedConvolutionStack(config)])

    def forward(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState | None = None,
        start: BiLMState | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, BiLMState]:
        """See `BiLM.run`. Dropout is on the token vectors, and on what each layer adds to them."""
        words = words.to(torch.promote_types(words.dtype, torch.float32))
        rows = packing.row_order.to(words.device)
        states, starts = states_of_directions(self.config, rows, words, state, start)
        layout = ConvolutionLayout.of(packing, self.config.width, words.device)
        tasks = [
            partial(stack, words, tokens[d], layout, states[d], starts[d], dropout)
            for d, stack in enumerate(self.stacks)
        ]
        carried = [layer.h for direction in states for layer in direction]
        (fwd, fwd_states), (bwd, bwd_states) = run_directions(self, tasks, [words, *carried], dropout)
        return stack_directions(fwd, bwd), BiLMState.of_ranks([fwd_states, bwd_states], rows)
