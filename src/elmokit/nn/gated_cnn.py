"""Two stacks of causal convolutions with gated linear units over packed streams (Dauphin et al.
2017).
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import GatedCNNConfig
from elmokit.nn.bidirectional import Bidirectional, Stack
from elmokit.nn.token_encoders import Projection
from elmokit.ops import LSTMState, Packing, Segments, apply_dropout


class WeightNormProjection(Projection):
    """A linear map with weight normalization (Salimans and Kingma 2016), as all linear maps of
    Dauphin et al.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.row_norms = nn.Parameter(torch.ones(out_features))
        nn.init.normal_(self.weight, std=math.sqrt(1 / in_features))
        nn.init.zeros_(self.bias)

    def effective_weight(self) -> Tensor:
        """Normalized rows times their learned lengths, (M, K)."""
        return F.normalize(self.weight, dim=1) * self.row_norms[:, None]


class ConvolutionLayout:
    """The vectors that convolutions of width k read, as indices of rows of `[inputs (N); states (B
    * (k-1)); start (k-1)]`.

    Attributes:
        windows: For each slot the rows that its convolution reads, the oldest first, (N, k).
        last_inputs: For each rank the rows that are its state afterwards, (B, k-1).
    """

    def __init__(self, packing: Packing, width: int, device: torch.device) -> None:
        segments, count, rows, history = (
            Segments.of(packing),
            packing.num_slots,
            len(packing.row_order),
            width - 1,
        )

        def rows_read(segment: np.ndarray, position: np.ndarray) -> np.ndarray:
            """The rows that are read at a position of each segment; before position 0 lie the
            states, or the start.
            """
            offsets = position[:, None] + np.arange(-history, 1)
            inside = np.minimum(np.maximum(offsets, 0), segments.lengths[segment, None] - 1)
            state = count + history * np.where(segments.continued, segments.ranks, rows)[segment]
            places = segments.firsts[segment, None] + inside
            return np.where(offsets < 0, state[:, None] + history + offsets, segments.slots[places])

        windows = np.empty((count, width), dtype=np.int64)
        segment_of = np.repeat(np.arange(len(segments.lengths)), segments.lengths)
        windows[segments.slots] = rows_read(segment_of, segments.positions())
        last_inputs = count + np.arange(rows * history).reshape(
            rows, history
        )  # rows without a slot keep their states
        is_last = np.append(
            segments.ranks[1:] != segments.ranks[:-1], [True] * bool(len(segments.ranks))
        )
        last = np.flatnonzero(is_last)
        last_inputs[segments.ranks[last]] = rows_read(last, segments.lengths[last])[:, :history]
        self.windows, self.last_inputs = (
            torch.from_numpy(windows).to(device),
            torch.from_numpy(last_inputs).to(device),
        )


class GatedConvolution(nn.Module):
    """A causal convolution with gated linear units, projected and added to its input."""

    def __init__(self, config: GatedCNNConfig) -> None:
        super().__init__()
        self.history = config.width - 1
        # Rows are the units' values, then their gates; columns are positions, the oldest first.
        self.convolution = WeightNormProjection(
            config.width * config.projection_dim, 2 * config.hidden_dim
        )
        self.projection = WeightNormProjection(config.hidden_dim, config.projection_dim)

    def forward(
        self,
        x: Tensor,
        layout: ConvolutionLayout,
        state: LSTMState,
        start: LSTMState | None,
        dropout: float,
    ) -> tuple[Tensor, LSTMState]:
        """x (N, D) -> (N, D), and the state by rank after it."""
        dim = x.shape[1]
        first = (
            x.new_zeros(self.history, dim)
            if start is None
            else start.h.detach().to(x.dtype).view(-1, dim)
        )
        rows = torch.cat([x, state.h.to(x.dtype).reshape(-1, dim), first])
        windows = rows.index_select(0, layout.windows.flatten()).view(
            len(x), layout.windows.shape[1] * dim
        )
        last_inputs = rows.index_select(0, layout.last_inputs.flatten()).view(state.h.shape)
        added = self.projection(F.glu(self.convolution(windows), dim=1))
        return x + apply_dropout(added, dropout), LSTMState(last_inputs, state.c)


class GatedConvolutionStack(Stack):
    layer_type = GatedConvolution


class BidirectionalGatedCNN(Bidirectional):
    """Gated convolutions in both directions. Dropout is on the token vectors, and on what each
    layer adds to them.

    The state of a row is the last k-1 inputs of each layer, so that a text in windows has the same
    vectors as the whole. Without a state, a text is preceded by zeros.
    """

    stack_type = GatedConvolutionStack

    def layout(self, packing: Packing, words: Tensor) -> ConvolutionLayout:
        return ConvolutionLayout(packing, self.config.width, words.device)
