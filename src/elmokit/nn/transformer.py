"""Two stacks of Transformer blocks with causal attention over packed streams, padded only for the
attention itself.

Blocks are pre-norm (Radford et al. 2019), positions rotary (Su et al. 2021), and the norms have no
weights of their own, since each is followed by a linear map (Groeneveld et al. 2024).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import TransformerConfig
from elmokit.nn.bidirectional import Bidirectional, Stack
from elmokit.nn.token_encoders import Projection
from elmokit.ops import Packing, Segments, allocate, apply_dropout

# a head's pairs rotate by 1 down to nearly 1 / base radians per position (Su et al., 3.2.2)
ROTARY_BASE = 10_000.0
LENGTH_MULTIPLE = 16  # to which segments are padded for the attention, so that few lengths occur


def _normalized(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _attention(queries: Tensor, keys: Tensor, values: Tensor, **masks: Any) -> Tensor:
    # On a CPU the gradients of PyTorch's attention take several times as long in bfloat16 as in
    # float32.
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(queries, keys, values, **masks)


class AttentionLayout:
    """The places of a stream's segments in a buffer where they are padded to a few lengths, and
    their rotations.

    Padding follows the words of a segment, and attention only looks back, so that no mask is
    needed. A segment longer than the context is split into blocks, each of which attends to itself
    and to the block before it.
    """

    def __init__(self, packing: Packing, config: TransformerConfig, like: Tensor) -> None:
        segments, self.config = Segments.of(packing), config
        is_long = segments.lengths > config.context
        rounded = -(-segments.lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        blocks = -(-segments.lengths // config.context)
        padded = np.where(is_long, blocks * config.context, np.minimum(rounded, config.context))
        order = np.lexsort(
            (padded, is_long)
        )  # the short segments first, those of equal padded length together
        begins = np.empty_like(padded)
        begins[order] = np.cumsum(padded[order]) - padded[order]
        lengths, counts = np.unique(padded[~is_long], return_counts=True)
        long_lengths = padded[order][(~is_long).sum() :].tolist()
        # The number of segments that are attended to at once, and their padded length.
        self.groups = [
            *zip(counts.tolist(), lengths.tolist(), strict=True),
            *((1, each) for each in long_lengths),
        ]

        places, is_padding = np.empty_like(segments.slots), np.ones(padded.sum(), dtype=bool)
        places[segments.slots] = np.repeat(begins, segments.lengths) + segments.positions()
        is_padding[places] = False
        self.places = torch.from_numpy(places).to(like.device)
        self.padding = torch.from_numpy(np.flatnonzero(is_padding)).to(like.device)
        # exp(i p w) for each position p and each pair's frequency w, (positions, 1, 1, pairs),
        # computed in float64.
        arange = partial(torch.arange, dtype=torch.float64, device=like.device)
        pairs = config.projection_dim // config.num_heads // 2
        angles = arange(padded.max(initial=0))[:, None] * ROTARY_BASE ** -(arange(pairs) / pairs)
        rotation = torch.polar(torch.ones_like(angles), angles)[:, None, None]
        self.rotation = rotation.to(
            torch.complex128 if like.dtype == torch.float64 else torch.complex64
        )
        if (
            long_lengths
        ):  # the keys, of its own block and the one before, that each position of a block sees
            seen = torch.ones(
                config.context, 2 * config.context, dtype=torch.bool, device=like.device
            )
            self.band = seen.triu(1).tril(config.context)

    def attend(self, projected: Tensor) -> Tensor:
        """Attend from every slot to itself and to those before it in its segment.

        Args:
            projected: Queries, keys and values side by side, (N, 3D), each of them head after head.

        Returns:
            (N, D).
        """
        size, dim = len(self.places) + len(self.padding), projected.shape[1] // 3
        buffer = allocate((size, 3 * dim), projected.dtype, projected.device)
        buffer.index_fill_(0, self.padding, 0)
        buffer.index_copy_(0, self.places, projected)
        outputs, begin = [], 0
        for count, length in self.groups:
            end = begin + count * length
            rows = buffer[begin:end].view(count, length, 3, self.config.num_heads, -1)
            outputs.append(
                self._attend_causally(*self._rotated(rows)).transpose(1, 2).reshape(-1, dim)
            )
            begin = end
        return torch.cat([buffer[:0, :dim], *outputs]).index_select(0, self.places)

    def _rotated(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (count, T, 3, heads, d) -> three (count, heads, T, d), the first
        two rotated.
        """
        pairs = torch.view_as_complex(rows[:, :, :2].unflatten(-1, (-1, 2)))
        rotated = torch.view_as_real(pairs * self.rotation[: rows.shape[1]]).flatten(-2)
        queries, keys = rotated.transpose(1, 3).unbind(2)
        return queries, keys, rows[:, :, 2].transpose(1, 2)

    def _attend_causally(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention within segments (count, heads, T, d); a long one, alone, in memory that is
        linear in its length.
        """
        context = self.config.context
        if queries.shape[2] <= context:
            return _attention(queries, keys, values, is_causal=True)
        first = _attention(
            *(each[:, :, :context] for each in (queries, keys, values)), is_causal=True
        )
        later = (
            queries[0].unfold(1, context, context)[:, 1:].permute(1, 0, 3, 2)
        )  # (blocks - 1, heads, context, d)
        pairs = (
            each[0].unfold(1, 2 * context, context).permute(1, 0, 3, 2) for each in (keys, values)
        )
        others = _attention(later, *pairs, attn_mask=self.band)
        return torch.cat([first, others.transpose(0, 1).flatten(1, 2)[None]], dim=2)


def _linear(in_features: int, out_features: int, summands: int = 1) -> Projection:
    """A linear map, initialized smaller if it is one of `summands` added up (Radford et al. 2019,
    section 2.3).
    """
    linear = Projection(in_features, out_features)
    nn.init.normal_(linear.weight, std=math.sqrt(1 / in_features / summands))
    nn.init.zeros_(linear.bias)
    return linear


class TransformerLayer(nn.Module):
    """A pre-norm block: attention, then a feed-forward network, each with a residual connection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dim, hidden = config.projection_dim, config.feedforward_dim
        summands = 2 * config.num_layers
        self.attention_input, self.attention_output = (
            _linear(dim, 3 * dim),
            _linear(dim, dim, summands),
        )
        self.feedforward_input, self.feedforward_output = (
            _linear(dim, hidden),
            _linear(hidden, dim, summands),
        )

    def forward(
        self, x: Tensor, layout: AttentionLayout, state: None, start: None, dropout: float
    ) -> tuple[Tensor, None]:
        """x (N, D) -> (N, D)."""
        attended = layout.attend(self.attention_input(_normalized(x)).to(x.dtype))
        x = x + apply_dropout(self.attention_output(attended), dropout)
        hidden = F.gelu(self.feedforward_input(_normalized(x)))
        return x + apply_dropout(self.feedforward_output(hidden), dropout), None


class TransformerStack(Stack):
    """The output of the last block is normalized."""

    layer_type = TransformerLayer

    def forward(self, *inputs: Any) -> tuple[list[Tensor], Any]:
        """See `Stack.forward`."""
        layers, finals = super().forward(*inputs)
        *_, keep = inputs
        return [*layers[:-1], keep(-1, _normalized(layers[-1]))], finals


class BidirectionalTransformer(Bidirectional):
    """Transformers in both directions. Dropout is on the token vectors, and on what is added to
    them.

    There is no state to carry: a position attends to those before it in its segment, `context` of
    them at most.
    """

    stack_type = TransformerStack

    def layout(self, packing: Packing, words: Tensor) -> AttentionLayout:
        return AttentionLayout(packing, self.config, words)
