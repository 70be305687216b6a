"""Other sequence encoders than two independent stacks of LSTMs."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import LSTMConfig
from elmokit.nn.lstm import NO_CLIPS, BiLMState, LSTMLayer
from elmokit.nn.token_encoders import Projection
from elmokit.ops.functional import LSTMState
from elmokit.ops.packing import Packing


def mirrored_slots(packing: Packing) -> Tensor:
    """For each slot (N,) the one where the other direction has the same token.

    A sentence is what lies in a row from one reset to the next, or all of a row.
    """
    starts = np.array(packing.starts())
    step = np.repeat(np.arange(len(starts) - 1), packing.batch_sizes)
    rank = np.arange(len(step)) - starts[step]
    in_rows = np.lexsort((step, rank))  # slots, row after row
    begins = step[in_rows] == 0
    if packing.resets is not None:
        begins |= packing.resets.cpu().numpy()[in_rows]
    sentence = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(begins)) - 1
    mirrored = np.empty(len(step), dtype=np.int64)
    mirrored[in_rows] = in_rows[(first + last)[sentence] - np.arange(len(begins))]
    return torch.from_numpy(mirrored)


class InterleavedLSTM(nn.Module):
    """Plain LSTMs of which each layer reads both directions of the one below (ELMoForManyLangs, modules/lstm.py).

    The lowest layer reads tokens (D), the others 2H values; none projects, but the outputs of the top one are projected
    to D. There is no state to carry: the backward direction would have to know what comes after.
    """

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config, width = config, config.cell_dim
        inputs = [config.projection_dim, *[2 * width] * (config.num_layers - 1)]
        self.stacks = nn.ModuleList(
            nn.ModuleDict(
                {"layers": nn.ModuleList(LSTMLayer(dim, width, width, NO_CLIPS, config.forget_bias) for dim in inputs)}
            )
            for _ in range(2)
        )
        self.projection = Projection(width, config.projection_dim)

    def forward(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState | None = None,
        start: BiLMState | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, BiLMState]:
        """See `BiLM.run`: the top layer (1, 2, N, D), and zeros for a state."""
        if state is not None or start is not None:
            raise ValueError("an interleaved model has no state to carry or to start from: use zeros")
        if dropout:
            raise ValueError("an interleaved model predicts no words, so it is not pretrained: use no dropout")
        mirrored, wide = mirrored_slots(packing).to(words.device), torch.promote_types(words.dtype, torch.float32)
        fwd, bwd = (F.embedding(tokens[d], words).to(wide) for d in range(2))
        layers = [cast(nn.ModuleDict, stack)["layers"] for stack in self.stacks]
        for index in range(self.config.num_layers):
            if index:
                fwd, bwd = torch.cat([fwd, bwd[mirrored]], dim=1), torch.cat([fwd[mirrored], bwd], dim=1)
            zeros = fwd.new_zeros(len(packing.row_order), self.config.cell_dim)
            fwd, bwd = (
                cast(nn.ModuleList, layers[d])[index](x, packing, LSTMState(zeros, zeros))[0]
                for d, x in enumerate((fwd, bwd))
            )
        top = torch.stack([fwd, bwd])
        projected = self.projection(top.flatten(0, 1)).to(wide)
        return projected.view(1, 2, len(fwd), self.config.projection_dim), BiLMState.zeros(
            self.config, len(packing.row_order), words
        )
