"""One layer of projected, clipped LSTM over a packed stream, in one direction."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from elmokit.ops.autograd import product_dtype, records_gradients
from elmokit.ops.dispatch import choose
from elmokit.ops.packing import Packing


class LSTMState(NamedTuple):
    """What a layer carries from step to step: its output `h` (B, D) and its cell `c` (B, H)."""

    h: Tensor
    c: Tensor


class Clips(NamedTuple):
    """Bounds of the cell and of the projection; None: no bound."""

    cell: float | None
    projection: float | None


class LSTMWeights(NamedTuple):
    """Rows of the gates in the order of the published files: i, g (TensorFlow's j), f, o."""

    input: Tensor  # (4H, K)
    recurrent: Tensor  # (4H, D)
    bias: Tensor  # (4H,)
    projection: Tensor | None  # (D, H); None: D = H

    def copied(self, dtype: torch.dtype) -> LSTMWeights:
        """Copies in another number type, without gradients; the bias stays as it is."""
        projection = None if self.projection is None else self.projection.detach().to(dtype, copy=True)
        input, recurrent = (weight.detach().to(dtype, copy=True) for weight in (self.input, self.recurrent))
        return LSTMWeights(input, recurrent, self.bias.detach().clone(), projection)


class PrepackedLSTM(Protocol):
    """Weights in the form in which an implementation reads them; runs without gradients."""

    def __call__(
        self,
        x: Tensor,
        packing: Packing,
        state: LSTMState,
        clips: Clips,
        start: LSTMState,
        index: Tensor | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, LSTMState]:
        """As `lstm`. With `index` (N,) slot n reads x[index[n]]; the outputs are written to `out` where it is given."""
        ...


def lstm(
    x: Tensor,
    packing: Packing,
    state: LSTMState,
    weights: LSTMWeights,
    clips: Clips,
    start: LSTMState | None = None,
) -> tuple[Tensor, LSTMState]:
    """Run a layer over a packed stream; see `reference.lstm`.

    Products run in the number type of the weights, or that of autocast; state and outputs are float32 at least.

    Args:
        x: The layer's input (N, K), in stream order.
        packing: The stream's shape, with B rows.
        state: What each row starts from, by rank.
        weights: See `LSTMWeights`.
        clips: See `Clips`.
        start: The state that a reset sets, of one row; None: zeros.

    Returns:
        The outputs (N, D) and each row's state after its last step.
    """
    dtype = product_dtype(weights.recurrent)
    wide = torch.promote_types(dtype, torch.float32)
    state = LSTMState(state.h.to(wide), state.c.to(wide))
    start = LSTMState(*(part.new_zeros(1, part.shape[1]) for part in state)) if start is None else start
    start = LSTMState(start.h.to(wide), start.c.to(wide))
    with torch.autocast(x.device.type, enabled=False):
        if records_gradients(x, *state, *start, *weights):
            implementation = choose("lstm", x.device, dtype, *_depths(weights))
            return implementation.lstm(x.to(wide), packing, state, weights, clips, start, dtype)
        return prepack_lstm(weights, dtype)(x.to(wide), packing, state, clips, start)


def prepack_lstm(weights: LSTMWeights, dtype: torch.dtype) -> PrepackedLSTM:
    """The weights prepacked for products of one number type.

    Raises:
        ValueError: where nothing here multiplies that type.
    """
    with torch.no_grad():
        return choose("lstm", weights.recurrent.device, dtype, *_depths(weights)).prepack_lstm(weights, dtype)


def _depths(weights: LSTMWeights) -> tuple[int, int, int]:
    return weights.input.shape[1], weights.recurrent.shape[1], len(weights.recurrent) // 4
