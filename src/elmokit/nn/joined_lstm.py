"""Plain LSTMs whose directions join after each layer: ELMoForManyLangs' encoder called lstm (its modules/lstm.py)."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.config import LSTMConfig
from elmokit.nn.lstm import BidirectionalLSTM, LSTMState
from elmokit.nn.packing import Packing


def joined_layers(config: LSTMConfig) -> nn.ModuleList:
    """The lowest layer reads tokens (D), each other one both directions of the one below (2H); none projects."""
    width = config.cell_dim
    plain = LSTMConfig(1, width, width, cell_clip=None, proj_clip=None, forget_bias=config.forget_bias)
    layers = nn.ModuleList(BidirectionalLSTM(plain) for _ in range(config.num_layers))
    for index, layer in enumerate(layers):
        layer = cast(BidirectionalLSTM, layer)
        input_dim = 2 * width if index else config.projection_dim
        layer.input_weight = nn.Parameter(torch.empty(2, 4 * width, input_dim))
        layer.reset_parameters()
    return layers


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


def _run_layer(layer: BidirectionalLSTM, x: Tensor, packing: Packing) -> Tensor:
    """(2, N, .) in stream order -> (2, N, H), each sentence from zeros."""
    zeros = x.new_zeros(2, len(packing.row_order), layer.recurrent_weight.shape[2])
    outputs, _ = layer.run(x, packing, LSTMState(zeros, zeros))
    return outputs


def run_joined(layers: nn.ModuleList, projection: nn.Linear, x: Tensor, packing: Packing) -> Tensor:
    """Token vectors (2, N, D) in stream order -> the top layer of each direction, projected, (2, N, D)."""
    mirrored = mirrored_slots(packing).to(x.device)
    for index, layer in enumerate(layers):
        if index:
            fwd, bwd = x
            x = torch.stack([torch.cat([fwd, bwd[mirrored]], dim=1), torch.cat([fwd[mirrored], bwd], dim=1)])
        x = _run_layer(cast(BidirectionalLSTM, layer), x, packing)
    return projection(x.to(projection.weight.dtype)).to(x.dtype)
