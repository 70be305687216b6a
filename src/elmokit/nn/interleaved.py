"""Interleaved LSTMs: each layer reads both directions of the layer below, so that a position sees both sides."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import InterleavedConfig
from elmokit.nn.lstm import NO_CLIPS, LSTMLayer, run_directions
from elmokit.nn.state import BiLMState, check_stateless
from elmokit.nn.token_encoders import Projection
from elmokit.ops.functional import LSTMState, apply_dropout
from elmokit.ops.packing import Packing, Segments


class InterleavedLSTM(nn.Module):
    """Plain LSTMs in both directions, whose outputs are projected to 2D after each layer, with a residual connection.

    Without projections it is ELMoForManyLangs' encoder `lstm` (its modules/lstm.py): layers read the 2H outputs below
    as they are, and those of the top layer are projected to D in each direction. State cannot be carried, since the
    backward direction would need the text that follows.
    """

    def __init__(self, config: InterleavedConfig) -> None:
        super().__init__()
        self.config, cells, dim = config, config.cell_dim, config.projection_dim
        inputs = [dim, *[2 * (dim if config.projects_layers else cells)] * (config.num_layers - 1)]
        layer = partial(LSTMLayer, cell_dim=cells, output_dim=cells, clips=NO_CLIPS, forget_bias=config.forget_bias)
        self.stacks = nn.ModuleList(nn.ModuleDict({"layers": nn.ModuleList(map(layer, inputs))}) for _ in range(2))
        if config.projects_layers:
            self.projections = nn.ModuleList(Projection(2 * cells, 2 * dim) for _ in inputs)
            self.mask = nn.Parameter(torch.zeros(dim))  # replaces the vector of a hidden word, which is predicted
        else:
            self.top_projection = Projection(cells, dim)
            self.mask = None

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
        check_stateless("an interleaved model", state, start)
        words = words.to(torch.promote_types(words.dtype, torch.float32))
        mirrored = torch.from_numpy(Segments.of(packing).mirrored()).to(words.device)
        run = self._projected_layers if self.config.projects_layers else self._top_layer
        layers = run(words, tokens.contiguous(), packing, mirrored, dropout)
        return layers, BiLMState.zeros(self.config, len(packing.row_order), words)

    def _projected_layers(
        self, words: Tensor, tokens: Tensor, packing: Packing, mirrored: Tensor, dropout: float
    ) -> Tensor:
        """The layers (L+1, 2, N, D) with a projection after each. `x` (N, 2D) is in the forward stream's order."""
        token_vectors = F.embedding(tokens[0], words).repeat(1, 2)
        layers, x = [token_vectors], apply_dropout(token_vectors, dropout)
        for index, projection in enumerate(self.projections):
            read = x if index else x[:, : self.config.projection_dim]
            fwd, bwd = self._outputs(index, (read, read.index_select(0, mirrored)), packing)
            x = x + apply_dropout(projection(torch.cat([fwd, bwd.index_select(0, mirrored)], dim=1)), dropout)
            layers.append(x)
        halves = [layer.chunk(2, dim=1) for layer in layers]
        return torch.stack([torch.stack([fwd, bwd.index_select(0, mirrored)]) for fwd, bwd in halves])

    def _top_layer(self, words: Tensor, tokens: Tensor, packing: Packing, mirrored: Tensor, dropout: float) -> Tensor:
        """The projected outputs of the top layer (1, 2, N, D)."""
        fwd, bwd = (apply_dropout(F.embedding(tokens[d], words), dropout) for d in range(2))
        for index in range(self.config.num_layers):
            if index:
                others = bwd.index_select(0, mirrored), fwd.index_select(0, mirrored)
                fwd, bwd = torch.cat([fwd, others[0]], dim=1), torch.cat([others[1], bwd], dim=1)
            fwd, bwd = self._outputs(index, (fwd, bwd), packing)
        top = self.top_projection(torch.cat([fwd, bwd])).to(words.dtype)
        return top.view(1, 2, len(fwd), self.config.projection_dim)

    def _outputs(self, index: int, inputs: tuple[Tensor, Tensor], packing: Packing) -> tuple[Tensor, Tensor]:
        """The outputs of a layer in both directions, each (N, H) in the order of its own stream."""
        zeros = inputs[0].new_zeros(len(packing.row_order), self.config.cell_dim)
        layers = [cast(nn.ModuleList, cast(nn.ModuleDict, stack)["layers"])[index] for stack in self.stacks]
        tasks = [partial(layer, x, packing, LSTMState(zeros, zeros)) for layer, x in zip(layers, inputs, strict=True)]
        (fwd, _), (bwd, _) = run_directions(self, tasks, inputs)
        return fwd, bwd
