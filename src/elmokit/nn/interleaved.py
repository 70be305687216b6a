"""Interleaved LSTMs: each layer reads both directions of the layer below."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import InterleavedConfig
from elmokit.nn.bidirectional import BiLMState, apply_dropout, is_observed, run_directions
from elmokit.nn.lstm import LSTMLayer
from elmokit.nn.token_encoders import Projection
from elmokit.ops import LSTMState, Packing


class InterleavedLSTM(nn.Module):
    """Plain LSTMs in both directions, whose outputs are projected to 2D after each layer, with a
    residual connection.

    Without projections it is ELMoForManyLangs' encoder `lstm` (its modules/lstm.py): layers read
    the 2H outputs below as they are, and those of the top layer are projected to D in each
    direction. State cannot be carried, since the backward direction would need the text that
    follows.
    """

    def __init__(self, config: InterleavedConfig) -> None:
        super().__init__()
        self.config, cells, dim = config, config.cell_dim, config.projection_dim
        # The first layer reads token vectors, which have no direction; the others read both.
        above = 2 * (dim if config.projects_layers else cells)
        inputs = [dim] + [above] * (config.num_layers - 1)
        self.stacks = nn.ModuleList()
        for _ in range(2):
            layers = [LSTMLayer(width, cells, cells, config.forget_bias) for width in inputs]
            stack = {"layers": nn.ModuleList(layers)}
            self.stacks.append(nn.ModuleDict(stack))
        self.mask = None
        if config.projects_layers:
            self.projections = nn.ModuleList(Projection(2 * cells, 2 * dim) for _ in inputs)
            # replaces the vector of a masked word, which is predicted
            self.mask = nn.Parameter(torch.zeros(dim))
        else:
            self.top_projection = Projection(cells, dim)

    def forward(
        self,
        word_vectors: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState,
        reset_state: BiLMState | None,
        dropout: float,
    ) -> tuple[Tensor, BiLMState]:
        """See `BiLM.run`. Dropout is on the token vectors, and on what each layer adds to them."""
        config, stacks = self.config, [stack["layers"] for stack in self.stacks]  # type: ignore
        # The slot of the same token in the other stream: from one order to the other and back.
        mirrored = torch.from_numpy(packing.segments().mirrored()).to(word_vectors.device)
        in_order = is_observed(self, word_vectors)
        # All layers (N, 2D) are in the order of the forward stream.
        vectors = F.embedding(tokens[0], word_vectors)
        layers = [vectors.repeat(1, 2)]
        x = apply_dropout(layers[0], dropout)
        zeros = x.new_zeros(len(packing.row_order), config.cell_dim)
        for number in range(config.num_layers):
            inputs = x if number > 0 else x[:, : config.projection_dim]
            start = LSTMState(zeros, zeros)
            tasks: list[Any] = [
                partial(stacks[0][number], inputs, packing, start),
                partial(stacks[1][number], inputs.index_select(0, mirrored), packing, start),
            ]
            (fwd, _), (bwd, _) = run_directions(tasks, word_vectors.device, in_order=in_order)
            outputs = torch.cat([fwd, bwd.index_select(0, mirrored)], dim=1)
            if config.projects_layers:
                x = x + apply_dropout(self.projections[number](outputs), dropout)
                layers.append(x)
            else:
                x = outputs
        if not config.projects_layers:
            top = self.top_projection(x.view(-1, config.cell_dim))
            layers = [top.to(word_vectors.dtype).view(-1, 2 * config.projection_dim)]
        # Halves of the directions (N, 2D) -> each in the order of its stream (2, N, D).
        pairs = []
        for layer in layers:
            fwd, bwd = layer.chunk(2, dim=1)
            pairs.append(torch.stack([fwd, bwd.index_select(0, mirrored)]))
        return torch.stack(pairs), state
