"""The projected, clipped LSTM: a layer, a stack of layers in one direction, and two stacks side by
side.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import LSTMConfig
from elmokit.nn.bidirectional import Bidirectional, Keep, Stack, States
from elmokit.ops import Clips, LSTMState, LSTMSteps, LSTMWeights, Packing, apply_dropout, lstm


class LSTMLayer(nn.Module):
    """One layer in one direction. Rows of the gates are i, g, f, o, as in the published files.

    Weights are drawn by TensorFlow's default, Glorot uniform, on the stacked kernel [W; U] as in
    bilm-tf.
    """

    def __init__(
        self, input_dim: int, cell_dim: int, output_dim: int, clips: Clips, forget_bias: float
    ) -> None:
        """Create a layer, with a projection after the cell unless `output_dim` equals
        `cell_dim`.
        """
        super().__init__()
        self.clips, self.forget_bias = clips, forget_bias
        bound = math.sqrt(6 / (input_dim + output_dim + 4 * cell_dim))
        self.input_weight = nn.Parameter(
            torch.empty(4 * cell_dim, input_dim).uniform_(-bound, bound)
        )
        self.recurrent_weight = nn.Parameter(
            torch.empty(4 * cell_dim, output_dim).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.zeros(4 * cell_dim))
        bound, self.projection_weight = math.sqrt(6 / (output_dim + cell_dim)), None
        if output_dim != cell_dim:
            self.projection_weight = nn.Parameter(
                torch.empty(output_dim, cell_dim).uniform_(-bound, bound)
            )

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        state: LSTMState,
        start: LSTMState | None = None,
        index: Tensor | None = None,
    ) -> tuple[Tensor, LSTMState]:
        """Run over a packed stream.

        Args:
            x: The layer's input (N, K), in stream order.
            packing: The stream's shape, with B rows.
            state: The state that each row starts from, by rank.
            start: The state of one row that a reset sets; None: zeros.
            index: The row of `x` that each slot reads, (N,); None: slot n reads row n.

        Returns:
            The outputs (N, D), float32 at least, and each row's state after its last step.
        """
        x = x if index is None else F.embedding(index, x)
        return lstm(
            x, state, self.weights(), LSTMSteps(packing, self.clips, start or state.zero_row())
        )

    def weights(self) -> LSTMWeights:
        """The weights as the op reads them.

        The forget bias is added here and never stored, so that weights survive a round trip to disk
        bit for bit.
        """
        constant = torch.zeros_like(self.bias).view(4, -1)
        constant[2] = self.forget_bias
        return LSTMWeights(
            self.input_weight,
            self.recurrent_weight,
            self.bias + constant.flatten(),
            self.projection_weight,
        )


class LSTMStack(Stack):
    """L layers in one direction, each but the first with a skip connection if the configuration
    says so.

    Dropout is as in bilm-tf (training.py:388-424): on the input of every layer, which the skip
    connection also reads, and on the last output.
    """

    def __init__(self, config: LSTMConfig) -> None:
        nn.Module.__init__(self)
        self.use_skip_connections, dim = config.use_skip_connections, config.projection_dim
        clips = Clips(config.cell_clip, config.proj_clip)
        self.layers = nn.ModuleList(
            LSTMLayer(dim, config.cell_dim, dim, clips, config.forget_bias)
            for _ in range(config.num_layers)
        )

    def forward(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        states: States,
        starts: States,
        dropout: float,
        keep: Keep,
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """See `Stack.forward`."""
        layers, finals = [keep(0, F.embedding(tokens, words))], []
        for number, (layer, state, start) in enumerate(
            zip(self.layers, states, starts, strict=True), start=1
        ):
            x = apply_dropout(layers[-1], dropout)
            # Without dropout the first layer multiplies each distinct word once.
            source, index = (words, tokens) if number == 1 and not dropout else (x, None)
            outputs, final = layer(source, packing, state, start, index)
            layers.append(
                keep(number, outputs + x if number > 1 and self.use_skip_connections else outputs)
            )
            finals.append(final)
        return [*layers[:-1], keep(-1, apply_dropout(layers[-1], dropout))], finals


class BidirectionalLSTM(Bidirectional):
    """ELMo's sequence encoder."""

    stack_type = LSTMStack
    runs_on_streams = True
