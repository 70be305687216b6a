"""A biLM made ready to be used and not trained, on a processor with AVX-512: its weights packed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from elmokit.config import LSTMConfig
from elmokit.nn.bilm import BiLM, BiLMOutput, BiLMState, check_state, in_row_order, run_padded
from elmokit.nn.char_cnn import CharCNN, Highway
from elmokit.nn.kernels.directions import begin_on_both_cores, on_both_cores
from elmokit.nn.kernels.fused import PackedLayer, forward_steps, has_passes, pack_layer
from elmokit.nn.kernels.passes import Run, Steps, Weights
from elmokit.nn.kernels.products import (
    PackedWeight,
    has_products,
    in_panels,
    pack,
    packed_highway,
    product,
    result_type,
    value_type,
)
from elmokit.nn.lstm import BidirectionalLSTM, LSTMState
from elmokit.nn.packing import Packing
from elmokit.nn.room import Room, Rooms

# At a time, so that what one step of a computation leaves for the next is still in cache.
WORDS_AT_ONCE = 128
SLOTS_AT_ONCE = 256

CPU = torch.device("cpu")
Result = TypeVar("Result")


class _Linear(NamedTuple):
    weight: PackedWeight
    bias: Tensor

    @staticmethod
    def of(weight: Tensor, bias: Tensor, dtype: torch.dtype, gates: int = 1) -> _Linear:
        return _Linear(pack(weight, dtype, gates).in_huge_pages(), bias.detach().float().contiguous())


class _PreparedCharCNN:
    def __init__(self, cnn: CharCNN, dim: int, dtype: torch.dtype) -> None:
        self._pooled, self._dtype, self._dim = cnn.prepared_pooled(), value_type(dtype), dim
        highways = [cast(Highway, layer).gates for layer in cnn.highways]
        self._highways = [_Linear.of(gates.weight, gates.bias, dtype, gates=2) for gates in highways]
        projection = cnn.projection
        # Not in whole numbers: a few filters are so large that, of one scale with them, the rest would be too coarse.
        fine = value_type(dtype)
        self._projection = None if projection is None else _Linear.of(projection.weight, projection.bias, fine)

    def __call__(self, ids: Tensor) -> Tensor:
        """ids (U, C), shifted by one -> (U, D) float32."""
        pooled = self._pooled(ids).to(self._dtype)
        out = torch.empty(len(ids), self._dim)
        pieces = zip(pooled.split(WORDS_AT_ONCE), out.split(WORDS_AT_ONCE), strict=True)

        def run(_: int) -> None:
            for piece in pieces:  # whoever has time takes the next one: a core may be at something else still
                self._after_pooling(*piece)

        on_both_cores(run, CPU)
        return out

    def _after_pooling(self, x: Tensor, out: Tensor) -> None:
        for gates in self._highways:
            x = packed_highway(x, *gates)
        if self._projection is None:
            out.copy_(x)
        else:
            product(x, *self._projection, out=out)


class _PreparedDirection:
    """One layer in one direction."""

    def __init__(self, layer: BidirectionalLSTM, d: int, dtype: torch.dtype) -> None:
        projection = None if layer.projection_weight is None else layer.projection_weight[d]
        # In the order of the recurrent weight's panels, so that what they make for a unit lies in one place.
        weight, bias = in_panels(layer.input_weight[d], gates=4), in_panels(layer.run_time_bias()[d], gates=4)
        self._inputs = _Linear.of(weight, bias, dtype)
        recurrent, last = pack_layer(Weights(layer.recurrent_weight[d], projection), dtype)
        self.recurrent = PackedLayer(recurrent.in_huge_pages(), None if last is None else last.in_huge_pages())
        self.cell_clip, self.proj_clip = layer.cell_clip, layer.proj_clip

    def input_products(self, x: Tensor, room: Room) -> Tensor:
        """x (M, D) -> what the gates are given before the recurrence, in panels; the room's until the next call."""
        weight = self._inputs.weight
        shape, dtype = (len(x), weight.columns), result_type(weight.panels.dtype)
        return product(x, *self._inputs, out=room.take("inputs", shape, dtype))

    def run(
        self, x: Tensor, table: Tensor | None, tokens: Tensor, packing: Packing, out: Tensor, state: LSTMState,
        start: LSTMState, room: Room
    ) -> None:  # fmt: skip
        """x (N, D) -> out (N, D), a piece of the stream at a time; `state`, that of this direction, runs on.

        With a table, the input products of distinct words, `tokens` (N,) say which one each slot takes.
        """
        for window, piece in packing.pieces(SLOTS_AT_ONCE):
            inputs = self.input_products(x[window], room) if table is None else table
            which = None if table is None else tokens[window]
            run = Run(inputs, out[window], state.h, state.c, start.h, start.c)
            forward_steps(
                Steps(piece, self.cell_clip, self.proj_clip), self.recurrent, run, None, which, inputs_in_panels=True
            )


class PreparedBiLM:
    """A copy of a biLM's weights, packed for products of one type; its methods are as BiLM's, without gradients."""

    def __init__(self, bilm: BiLM, dtype: torch.dtype) -> None:
        self.config = bilm.config
        has_cnn, dim = bilm.config.char_cnn is not None, bilm.config.lstm.projection_dim
        # Another token encoder than characters alone is used as it is.
        self._token_encoder = _PreparedCharCNN(bilm.char_cnn, dim, dtype) if has_cnn else bilm.token_encoder()
        layers = [cast(BidirectionalLSTM, layer) for layer in bilm.layers]
        self._layers = [[_PreparedDirection(layer, d, dtype) for d in range(2)] for layer in layers]
        self._rooms = Rooms()  # of the directions that are computed at the same time

    @torch.no_grad()
    def forward(self, ids: Tensor, state: BiLMState | None = None) -> BiLMOutput:
        """A padded batch, as `BiLM.forward` takes it."""
        return run_padded(self, ids, state=state)

    @torch.no_grad()
    def encode_words(self, ids: Tensor) -> Tensor:
        """Ids of U words, as `BiLM.encode_words` takes them -> token vectors (U, D) float32."""
        return self._token_encoder(ids).float()

    @property
    def device(self) -> torch.device:
        return CPU

    def initial_state(self, rows: int) -> BiLMState:
        lstm = self.config.lstm
        return BiLMState(
            *(torch.zeros(2, lstm.num_layers, rows, width) for width in (lstm.projection_dim, lstm.cell_dim))
        )

    def run_packed(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState | None = None,
        start: BiLMState | None = None,
    ) -> tuple[Tensor, BiLMState]:
        """The engine: see `BiLM.run_packed`."""
        return self.begin_packed(words, tokens, packing, state, start, Room(), lambda *found: found)()

    @torch.no_grad()
    def begin_packed(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState | None,
        start: BiLMState | None,
        room: Room,
        then: Callable[[Tensor, BiLMState], Result],
    ) -> Callable[[], Result]:
        """`run_packed`, begun: a function that waits for `then` of its result. The layers lie in the room."""
        rows, words, tokens = packing.row_order, words.float(), tokens.contiguous()
        state = self.initial_state(len(rows)) if state is None else state.float()
        start = self.initial_state(1) if start is None else start.float()
        check_state(state, self.config.lstm, len(rows))
        check_state(start, self.config.lstm, 1)
        shape = (self.config.num_representations, *tokens.shape, words.shape[1])
        layers = room.take("layers", shape, torch.float32)
        finals = [state.layer(index, rows).copy() for index in range(len(self._layers))]

        def run_direction(d: int) -> None:
            torch.index_select(words, 0, tokens[d], out=layers[0, d])
            with self._rooms.one() as own_room:
                for index, directions in enumerate(self._layers):
                    x, out, layer = layers[index, d], layers[index + 1, d], directions[d]
                    table = layer.input_products(words, own_room) if index == 0 else None
                    begin = start.layer(index).copy().direction(d)
                    layer.run(x, table, tokens[d], packing, out, finals[index].direction(d), begin, own_room)
                    if self.config.lstm.use_skip_connections and index > 0:
                        out += x

        return begin_on_both_cores(run_direction, CPU, lambda: then(layers, in_row_order(finals, rows)))


def _fits(lstm: LSTMConfig, dtype: torch.dtype) -> bool:
    return not lstm.joins_directions and has_passes(dtype, torch.float32, CPU, lstm.projection_dim, lstm.cell_dim)


def prepare(bilm: BiLM, dtype: torch.dtype, device: torch.device) -> PreparedBiLM | None:
    """The same biLM with packed weights, or None where this machine, or the model, has no use for them."""
    char_cnn = bilm.config.char_cnn
    if device.type != "cpu" or next(bilm.parameters()).device.type != "cpu" or not _fits(bilm.config.lstm, dtype):
        return None
    if char_cnn is not None and not has_products(dtype, CPU, char_cnn.num_filters):
        return None
    return PreparedBiLM(bilm, dtype)
