"""The projected, clipped LSTM in both directions: the readable reference, and the layer that chooses a kernel for it.

Everything is stacked over the two directions (0 fwd, 1 bwd), which never exchange information. Gates lie in the order
of the published files: i, g (TensorFlow's j), f, o.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.config import LSTMConfig
from elmokit.nn.kernels.both_linear import both_linear
from elmokit.nn.kernels.packed import joins_products, packed_lstm, packed_lstm_in_pieces
from elmokit.nn.kernels.products import product_type
from elmokit.nn.packing import Packing

# Without gradients a layer's input products are made for about this many slots at a time: enough for the speed of a
# large product, few enough that they stay in cache until the steps have used them. A GPU has no such cache.
SLOTS_AT_ONCE, SLOTS_AT_ONCE_ON_GPU = 512, 16_384


@dataclass(frozen=True)
class LSTMState:
    """What one layer carries from step to step: its (projected) output `h` (2, B, D) and its cell `c` (2, B, H)."""

    h: Tensor
    c: Tensor

    def direction(self, d: int) -> LSTMState:
        """The part of one direction: `h` (B, D), `c` (B, H), sharing memory with the whole."""
        return LSTMState(self.h[d], self.c[d])

    def copy(self) -> LSTMState:
        return LSTMState(*(part.clone(memory_format=torch.contiguous_format) for part in (self.h, self.c)))


def lstm_reference(
    inputs: Tensor,
    packing: Packing,
    state: LSTMState,
    recurrent_weight: Tensor,
    projection_weight: Tensor | None,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
    start: LSTMState | None = None,
) -> tuple[Tensor, LSTMState]:
    """The specification, a step and a direction at a time (bilm-tf; AllenNLP, lstm_cell_with_projection.py:207-231).

    inputs (2, N, 4H): the input products with all biases, in stream order. recurrent_weight (2, 4H, D);
    projection_weight (2, D, H) or None. `state` has a row for each rank of the packing; `start` (2, 1, .) is the
    state that a reset sets, zeros where None. Returns the outputs (2, N, D) and the state after each row's last step.
    """
    starts = packing.starts()
    outputs, finals = [], []
    for d in range(2):
        h, c, steps = state.h[d], state.c[d], []
        for t, rows in enumerate(packing.batch_sizes):
            window = slice(starts[t], starts[t + 1])
            h_rows, c_rows = h[:rows], c[:rows]
            if packing.resets is not None:
                fresh = packing.resets[window].unsqueeze(1).to(h.device)
                h_rows = torch.where(fresh, torch.zeros_like(h_rows) if start is None else start.h[d], h_rows)
                c_rows = torch.where(fresh, torch.zeros_like(c_rows) if start is None else start.c[d], c_rows)
            i, g, f, o = (inputs[d, window] + h_rows @ recurrent_weight[d].T).chunk(4, dim=1)
            c_rows = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * c_rows
            if cell_clip is not None:
                c_rows = c_rows.clamp(-cell_clip, cell_clip)
            h_rows = torch.sigmoid(o) * torch.tanh(c_rows)
            if projection_weight is not None:
                h_rows = h_rows @ projection_weight[d].T
                if proj_clip is not None:  # TensorFlow clips projections only
                    h_rows = h_rows.clamp(-proj_clip, proj_clip)
            steps.append(h_rows)
            h, c = torch.cat([h_rows, h[rows:]]), torch.cat([c_rows, c[rows:]])
        outputs.append(torch.cat(steps) if steps else inputs.new_zeros(0, h.shape[1]))
        finals.append((h, c))
    return torch.stack(outputs), LSTMState(*(torch.stack(part) for part in zip(*finals, strict=True)))


class BidirectionalLSTM(nn.Module):
    """One layer of both stacks: input products, then the recurrence, or both in one."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        dim, cell_dim = config.projection_dim, config.cell_dim
        self.cell_clip, self.proj_clip, self.forget_bias = config.cell_clip, config.proj_clip, config.forget_bias
        self.input_weight = nn.Parameter(torch.empty(2, 4 * cell_dim, dim))
        self.recurrent_weight = nn.Parameter(torch.empty(2, 4 * cell_dim, dim))
        self.bias = nn.Parameter(torch.zeros(2, 4 * cell_dim))
        self.projection_weight = nn.Parameter(torch.empty(2, dim, cell_dim)) if config.has_projection else None
        self.reset_parameters()

    def input_products(self, x: Tensor) -> Tensor:
        """x (2, M, D) -> (2, M, 4H): one product over all of them, biases (and the forget gate's constant) added."""
        return both_linear(x, self.input_weight, self.run_time_bias())

    def forward(
        self,
        inputs: Tensor,
        packing: Packing,
        state: LSTMState,
        start: LSTMState | None = None,
        overwrite: bool = False,
        beside: Tensor | None = None,
    ) -> tuple[Tensor, LSTMState]:
        """Input products (2, N, 4H) in stream order -> outputs (2, N, D) and the final state; see `lstm_reference`.

        With `overwrite` the inputs' values may be lost, which saves memory; a forward hook does not find them then.
        With x (2, N, K) as `beside` the products of x are made in the recurrence, and inputs (2, 1, 4H) are the biases.
        """
        states, settings = (state.h, state.c), self._settings(start)
        both = None if beside is None else (beside, self.input_weight)
        outputs, h, c = packed_lstm(
            inputs, packing, *states, *self._weights(), **settings, overwrite=overwrite, beside=both
        )
        return outputs, LSTMState(h, c)

    def run(
        self,
        x: Tensor,
        packing: Packing,
        state: LSTMState,
        start: LSTMState | None = None,
        inputs: Callable[[slice], Tensor] | None = None,
    ) -> tuple[Tensor, LSTMState]:
        """A stream x (2, N, K) through the layer: outputs (2, N, D) and the final state.

        Without gradients input products are made for a slice of the slots at a time, so that few of them are in memory;
        by `inputs`, where the caller has a faster way to those of a slice.
        """
        if self._learns(x, state, start):
            assert inputs is None
            return self._run_with_gradients(x, packing, state, start)
        make = inputs or (lambda window: self.input_products(x[:, window]))
        slots = SLOTS_AT_ONCE if x.device.type == "cpu" else SLOTS_AT_ONCE_ON_GPU
        pieces = ((make(window), piece) for window, piece in packing.pieces(slots))
        outputs, h, c = packed_lstm_in_pieces(pieces, state.h, state.c, *self._weights(), **self._settings(start))
        return outputs, LSTMState(h, c)

    def _run_with_gradients(
        self, x: Tensor, packing: Packing, state: LSTMState, start: LSTMState | None
    ) -> tuple[Tensor, LSTMState]:
        dtype, hidden = product_type(self.input_weight), state.c.shape[2]
        if not joins_products(dtype, x, state.h.shape[2], hidden):
            return self(self.input_products(x), packing, state, start, overwrite=True)
        return self(self.run_time_bias()[:, None].to(dtype), packing, state, start, beside=x)

    def _learns(self, x: Tensor, state: LSTMState, start: LSTMState | None) -> bool:
        """Whether a gradient of a run can be asked for."""
        states = [state.h, state.c, *(() if start is None else (start.h, start.c))]
        return torch.is_grad_enabled() and any(each.requires_grad for each in (x, *states, *self.parameters()))

    def _weights(self) -> tuple[Tensor, Tensor | None]:
        return self.recurrent_weight, self.projection_weight

    def _settings(self, start: LSTMState | None) -> dict[str, Any]:
        pair = None if start is None else (start.h, start.c)
        return {"cell_clip": self.cell_clip, "proj_clip": self.proj_clip, "start": pair}

    def run_time_bias(self) -> Tensor:
        """The forget gate's constant is added here and never stored: so weights survive any round trip bit for bit."""
        constant = torch.zeros_like(self.bias).view(2, 4, -1)
        constant[:, 2] = self.forget_bias
        return self.bias + constant.view_as(self.bias)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """TensorFlow's default, glorot uniform, on the stacked kernel [W; U] as bilm-tf had it; biases zero."""
        four_h, dim = self.input_weight.shape[1:]
        bound = math.sqrt(6 / (2 * dim + four_h))
        self.input_weight.uniform_(-bound, bound)
        self.recurrent_weight.uniform_(-bound, bound)
        self.bias.zero_()
        if self.projection_weight is not None:
            bound = math.sqrt(6 / sum(self.projection_weight.shape[1:]))
            self.projection_weight.uniform_(-bound, bound)
