"""Interleaved LSTMs: each layer reads both directions of the layer below, so that a position sees
both sides.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import InterleavedConfig
from elmokit.nn.bidirectional import BiLMState, learns, run_directions
from elmokit.nn.lstm import LSTMLayer
from elmokit.nn.token_encoders import Projection
from elmokit.ops import Clips, LSTMState, Packing, Segments, apply_dropout

NO_CLIPS = Clips(None, None)


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
        inputs = [dim, *[2 * (dim if config.projects_layers else cells)] * (config.num_layers - 1)]
        layer = partial(
            LSTMLayer,
            cell_dim=cells,
            output_dim=cells,
            clips=NO_CLIPS,
            forget_bias=config.forget_bias,
        )
        self.stacks = nn.ModuleList(
            nn.ModuleDict({"layers": nn.ModuleList(map(layer, inputs))}) for _ in range(2)
        )
        if config.projects_layers:
            self.projections = nn.ModuleList(Projection(2 * cells, 2 * dim) for _ in inputs)
            self.mask = nn.Parameter(
                torch.zeros(dim)
            )  # replaces the vector of a hidden word, which is predicted
        else:
            self.top_projection = Projection(cells, dim)
            self.mask = None

    def forward(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState,
        start: BiLMState | None,
        dropout: float,
    ) -> tuple[Tensor, BiLMState]:
        """See `BiLM.run`. Dropout is on the token vectors, and on what each layer adds to them."""
        config = self.config
        mirrored = torch.from_numpy(Segments.of(packing).mirrored()).to(words.device)
        layers = [
            F.embedding(tokens[0], words).repeat(1, 2)
        ]  # (N, 2D) in the order of the forward stream
        x = apply_dropout(layers[0], dropout)
        stacks: Any = self.stacks
        for number, pair in enumerate(zip(*(stack["layers"] for stack in stacks), strict=True)):
            read = x if number else x[:, : config.projection_dim]
            zeros = x.new_zeros(len(packing.row_order), config.cell_dim)
            inputs = zip(pair, (read, read.index_select(0, mirrored)), strict=True)
            tasks = [
                partial(layer, each, packing, LSTMState(zeros, zeros)) for layer, each in inputs
            ]
            (fwd, _), (bwd, _) = run_directions(tasks, read.device, in_order=learns(self, read))
            both = torch.cat([fwd, bwd.index_select(0, mirrored)], dim=1)
            if config.projects_layers:
                x = x + apply_dropout(self.projections[number](both), dropout)
                layers.append(x)
            else:
                x = both
        if not config.projects_layers:
            layers = [
                self.top_projection(x.view(-1, config.cell_dim))
                .to(words.dtype)
                .view(-1, 2 * config.projection_dim)
            ]
        halves = [layer.chunk(2, dim=1) for layer in layers]
        return torch.stack(
            [torch.stack([fwd, bwd.index_select(0, mirrored)]) for fwd, bwd in halves]
        ), state
