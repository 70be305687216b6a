"""The projected, clipped LSTM: a layer, a stack of layers in one direction, and two stacks side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import LSTMConfig
from elmokit.nn.state import BiLMState, states_of_directions
from elmokit.ops.functional import Clips, LSTMState, LSTMWeights, apply_dropout, lstm, records_gradients
from elmokit.ops.packing import Packing
from elmokit.ops.threads import run_on_streams, run_side_by_side
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
        return lstm(x, packing, state, self.weights(), self.clips, start)

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
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """Run over a packed stream.

        Args:
            words: Vectors of the distinct words, (U, D).
            tokens: Index into `words` at each slot, (N,).
            packing: The stream's shape.
            states: The state that the rows of each layer start from, by rank.
            starts: For each layer the state that a reset sets; None: zeros.
            dropout: As in bilm-tf (training.py:388-424): on the input of every layer, which the skip connection also
                reads, and on the last output. The token layer that is returned is without dropout.

        Returns:
            The token vectors and the outputs of each layer, (N, D) each, and the final state of each layer.
        """
        token_vectors = F.embedding(tokens, words)
        x, first, *others = apply_dropout(token_vectors, dropout), *self.layers
        # Without dropout each distinct word is multiplied once.
        source, index = (x, None) if dropout else (words, tokens)
        outputs, final = first(source, packing, states[0], starts[0], index)
        layers, finals = [token_vectors, outputs], [final]
        for layer, state, start in zip(others, states[1:], starts[1:], strict=True):
            x = apply_dropout(layers[-1], dropout)
            outputs, final = layer(x, packing, state, start)
            layers.append(outputs + x if self.use_skip_connections else outputs)
            finals.append(final)
        return [*layers[:-1], apply_dropout(layers[-1], dropout)], finals


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether any of the modules itself has a hook on its `forward`."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def run_directions(
    encoder: nn.Module, tasks: Sequence[Callable[[], Result]], inputs: Sequence[Tensor], dropout: float = 0.0
) -> list[Result]:
    """Run a task for each direction, on threads of their own where the caller's thread is not needed.

    It is needed for gradients, for dropout, which draws random numbers in order, and for hooks, which may learn.
    """
    if dropout > 0 or has_hooks(encoder.modules()) or records_gradients(*inputs, *encoder.parameters()):
        return [task() for task in tasks]
    return run_side_by_side([*tasks], inputs[0].device)


def stack_directions(fwd: Sequence[Tensor], bwd: Sequence[Tensor]) -> Tensor:
    """The layers of each direction, (N, D) each -> (L+1, 2, N, D)."""
    layers = [layer for pair in zip(fwd, bwd, strict=True) for layer in pair]
    out = None if records_gradients(*layers) else allocate((len(layers), *fwd[0].shape), fwd[0].dtype, fwd[0].device)
    return torch.stack(layers, out=out).unflatten(0, (-1, 2))


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
        """See `BiLM.run`."""
        rows, wide = packing.on(words.device).row_order, torch.promote_types(words.dtype, torch.float32)
        words, tokens = words.to(wide), tokens.contiguous()
        states, starts = states_of_directions(self.config, rows, words, state, start)
        tasks = [
            partial(stack, words, tokens[d], packing, states[d], starts[d], dropout)
            for d, stack in enumerate(self.stacks)
        ]
        if words.is_cuda:  # all that the directions share is in the arguments, and made before they part
            (fwd, fwd_states), (bwd, bwd_states) = run_on_streams(tasks, words.device)
        else:
            carried = [part for direction in states for layer in direction for part in layer]
            (fwd, fwd_states), (bwd, bwd_states) = run_directions(self, tasks, [words, *carried], dropout)
        return stack_directions(fwd, bwd), BiLMState.of_ranks([fwd_states, bwd_states], rows)
