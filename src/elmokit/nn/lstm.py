"""The projected, clipped LSTM: a layer, a stack of layers in one direction, and two stacks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import LSTMConfig
from elmokit.nn.bidirectional import Bidirectional, BiLMState, apply_dropout
from elmokit.ops import LSTMState, Packing, lstm


def _glorot_uniform(fan_in_and_out: int, *shape: int) -> nn.Parameter:
    bound = math.sqrt(6 / fan_in_and_out)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class LSTMLayer(nn.Module):
    """One layer in one direction. Rows of the gates are i, g, f, o, as in the published files.

    i, g, f, o = W x + U h + b          input, candidate, forget and output gate, (4H,) in all
    c = clip(s(i) tanh(g) + s(f + forget_bias) c)
    h = clip(P s(o) tanh(c))            without P and its clip where D equals H

    Weights are drawn by TensorFlow's default, Glorot uniform, on the stacked kernel [W; U] as in
    bilm-tf.
    """

    def __init__(
        self,
        input_dim: int,
        cell_dim: int,
        output_dim: int,
        forget_bias: float,
        cell_clip: float | None = None,
        proj_clip: float | None = None,
    ) -> None:
        """Create a layer; its outputs are projected unless `output_dim` equals `cell_dim`."""
        super().__init__()
        self.forget_bias, self.clips = forget_bias, (cell_clip, proj_clip)
        # The kernel of bilm-tf is (input_dim + output_dim, 4 * cell_dim): its fans in and out.
        stacked = input_dim + output_dim + 4 * cell_dim
        self.input_weight = _glorot_uniform(stacked, 4 * cell_dim, input_dim)
        self.recurrent_weight = _glorot_uniform(stacked, 4 * cell_dim, output_dim)
        self.bias = nn.Parameter(torch.zeros(4 * cell_dim))
        self.projection_weight = None
        if output_dim != cell_dim:
            self.projection_weight = _glorot_uniform(output_dim + cell_dim, output_dim, cell_dim)

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        state: LSTMState,
        reset_state: LSTMState | None = None,
        index: Tensor | None = None,
    ) -> tuple[Tensor, LSTMState]:
        """Run over a packed stream.

        Args:
            x: The layer's input (N, K), in stream order.
            packing: The stream's shape, with B rows.
            state: The state that each row starts from, by rank.
            reset_state: The state of one row that a reset sets; None: zeros.
            index: The row of `x` that each slot reads, (N,); None: slot n reads row n.

        Returns:
            The outputs (N, D), float32 at least, and each row's state after its last step.
        """
        x = x if index is None else F.embedding(index, x)
        return lstm(x, state, self.weights(), packing, self.clips, reset_state)

    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The weights as the op reads them: of the input, of h, the bias, the projection.

        The forget bias is added here and never stored, so that weights survive a round trip to disk
        bit for bit.
        """
        constant = torch.zeros_like(self.bias).view(4, -1)
        constant[2] = self.forget_bias
        bias = self.bias + constant.flatten()
        return self.input_weight, self.recurrent_weight, bias, self.projection_weight


class LSTMStack(nn.Module):
    """L layers in one direction, each but the first with a skip connection if it is configured.

    Dropout is as in bilm-tf (training.py:388-424): on the input of every layer, which the skip
    connection also reads, and on the last output.
    """

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.use_skip_connections, dim = config.use_skip_connections, config.projection_dim
        settings = config.forget_bias, config.cell_clip, config.proj_clip
        self.layers = nn.ModuleList(
            LSTMLayer(dim, config.cell_dim, dim, *settings) for _ in range(config.num_layers)
        )

    def forward(
        self,
        word_vectors: Tensor,
        tokens: Tensor,
        packing: Packing,
        states: Sequence[LSTMState],
        reset_states: Sequence[LSTMState | None],
        dropout: float,
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """Run over a packed stream.

        Args:
            word_vectors: Vectors of the distinct words, (U, D).
            tokens: Index into `word_vectors` at each slot, (N,).
            packing: The stream's shape.
            states: The state that the rows of each layer start from, by rank.
            reset_states: For each layer the state that a reset sets; None: zeros.
            dropout: The probability.

        Returns:
            The token vectors, without dropout, and the outputs of each layer, (N, D) each; and the
            layers' final states.
        """
        layers, finals = [F.embedding(tokens, word_vectors)], []
        for number, layer in enumerate(self.layers):
            x = apply_dropout(layers[-1], dropout)
            # Without dropout the first layer multiplies each distinct word once, and reads the
            # product of token n at index[n]; with it, each occurrence is another input.
            source, index = (word_vectors, tokens) if number == 0 and not dropout else (x, None)
            outputs, final = layer(source, packing, states[number], reset_states[number], index)
            skips = self.use_skip_connections and number > 0
            layers.append(outputs + x if skips else outputs)
            finals.append(final)
        layers[-1] = apply_dropout(layers[-1], dropout)
        return layers, finals


class BidirectionalLSTM(Bidirectional):
    """ELMo's sequence encoder."""

    runs_on_streams = True

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config, LSTMStack)

    def forward(
        self,
        word_vectors: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState,
        reset_state: BiLMState | None,
        dropout: float,
    ) -> tuple[Tensor, BiLMState]:
        """See `BiLM.run`."""
        # The state by rank, as the kernels keep it, and back by row after the last step.
        row_order = packing.on(word_vectors.device).row_order
        more = []
        for d in range(2):
            zeros: list[LSTMState | None] = [None] * self.config.num_layers
            resets = zeros if reset_state is None else reset_state.of_direction(d)
            more.append((packing, state.of_direction(d, row_order), resets))
        layers, finals = self.run_stacks(word_vectors, tokens, more, state, dropout)
        return layers, BiLMState.of_ranks(finals, row_order)
