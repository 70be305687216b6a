"""Two stacks of Transformer blocks with causal attention over packed streams, padded only for the attention itself.

Blocks are pre-norm (Radford et al. 2019), positions rotary (Su et al. 2021), and the norms have no weights of their
own, since each is followed by a linear map (Groeneveld et al. 2024).
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
from elmokit.nn.lstm import run_directions, stack_directions
from elmokit.nn.state import BiLMState, check_stateless
from elmokit.nn.token_encoders import Projection
from elmokit.ops.functional import apply_dropout
from elmokit.ops.packing import Packing, Segments
from elmokit.ops.workspace import allocate

ROTARY_BASE = 10_000.0  # a head's pairs rotate by 1 down to nearly 1 / base radians per position (Su et al., 3.2.2)
LENGTH_MULTIPLE = 16  # to which segments are padded for the attention, so that few lengths occur


def _normalized(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _attention(queries: Tensor, keys: Tensor, values: Tensor, **masks: Any) -> Tensor:
    # On a CPU the gradients of PyTorch's attention take several times as long in bfloat16 as in float32.
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(queries, keys, values, **masks)


class AttentionLayout:
    """The places of a stream's segments in a buffer where they are padded to a few lengths, and their rotations.

    Padding follows the words of a segment, and attention only looks back, so that no mask is needed. A segment longer
    than the context is split into blocks, each of which attends to itself and to the block before it.
    """

    def __init__(self, packing: Packing, config: TransformerConfig, like: Tensor) -> None:
        segments, self.config = Segments.of(packing), config
        is_long = segments.lengths > config.context
        rounded = -(-segments.lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        blocks = -(-segments.lengths // config.context)
        padded = np.where(is_long, blocks * config.context, np.minimum(rounded, config.context))
        order = np.lexsort((padded, is_long))  # the short segments first, those of equal padded length together
        begins = np.empty_like(padded)
        begins[order] = np.cumsum(padded[order]) - padded[order]
        lengths, counts = np.unique(padded[~is_long], return_counts=True)
        self.groups = [(int(count), int(length)) for length, count in zip(lengths, counts, strict=True)]
        self.long_lengths = padded[order][(~is_long).sum() :].tolist()

        places, is_padding = np.empty_like(segments.slots), np.ones(padded.sum(), dtype=bool)
        places[segments.slots] = np.repeat(begins, segments.lengths) + segments.positions()
        is_padding[places] = False
        self.places = torch.from_numpy(places).to(like.device)
        self.padding = torch.from_numpy(np.flatnonzero(is_padding)).to(like.device)
        self.rotation = self._rotation(int(padded.max(initial=0)), config, like)
        self._band: Tensor | None = None

    @staticmethod
    def _rotation(positions: int, config: TransformerConfig, like: Tensor) -> Tensor:
        """exp(i p w) for each position p and each pair's frequency w, (positions, 1, 1, pairs), computed in float64."""
        pairs = config.projection_dim // config.num_heads // 2
        frequencies = ROTARY_BASE ** -(torch.arange(pairs, dtype=torch.float64, device=like.device) / pairs)
        angles = torch.arange(positions, dtype=torch.float64, device=like.device)[:, None] * frequencies
        rotation = torch.polar(torch.ones_like(angles), angles)[:, None, None]
        return rotation.to(torch.complex128 if like.dtype == torch.float64 else torch.complex64)

    def band(self) -> Tensor:
        """The mask (context, 2 * context) of the keys, of its own block and the one before, that each position sees."""
        if self._band is None:
            context = self.config.context
            seen = torch.ones(context, 2 * context, dtype=torch.bool, device=self.places.device)
            self._band = seen.triu(1).tril(context)
        return self._band

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
        for count, length in [*self.groups, *((1, length) for length in self.long_lengths)]:
            rows = buffer[begin : begin + count * length].view(count, length, 3, self.config.num_heads, -1)
            attend = self._attend_whole if length <= self.config.context else self._attend_in_blocks
            outputs.append(attend(*self._rotated(rows)).transpose(1, 2).reshape(-1, dim))
            begin += count * length
        return torch.cat([buffer[:0, :dim], *outputs]).index_select(0, self.places)

    def _rotated(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (count, T, 3, heads, d) -> three (count, heads, T, d), the first two rotated."""
        pairs = torch.view_as_complex(rows[:, :, :2].unflatten(-1, (-1, 2)))
        rotated = torch.view_as_real(pairs * self.rotation[: rows.shape[1]]).flatten(-2)
        queries, keys = rotated.transpose(1, 3).unbind(2)
        return queries, keys, rows[:, :, 2].transpose(1, 2)

    @staticmethod
    def _attend_whole(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return _attention(queries, keys, values, is_causal=True)

    def _attend_in_blocks(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention within one segment (1, heads, blocks * context, d), in memory that is linear in its length."""
        context = self.config.context
        first = _attention(*(each[:, :, :context] for each in (queries, keys, values)), is_causal=True)
        later = queries[0].unfold(1, context, context)[:, 1:].permute(1, 0, 3, 2)  # (blocks - 1, heads, context, d)
        pairs = (each[0].unfold(1, 2 * context, context).permute(1, 0, 3, 2) for each in (keys, values))
        others = _attention(later, *pairs, attn_mask=self.band())
        return torch.cat([first, others.transpose(0, 1).flatten(1, 2)[None]], dim=2)


def _linear(in_features: int, out_features: int, summands: int = 1) -> Projection:
    """A linear map, initialized smaller if it is one of `summands` added up (Radford et al. 2019, section 2.3)."""
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
        self.attention_input, self.attention_output = _linear(dim, 3 * dim), _linear(dim, dim, summands)
        self.feedforward_input, self.feedforward_output = _linear(dim, hidden), _linear(hidden, dim, summands)

    def forward(self, x: Tensor, layout: AttentionLayout, dropout: float) -> Tensor:
        """x (N, D) -> (N, D)."""
        attended = layout.attend(self.attention_input(_normalized(x)).to(x.dtype))
        x = x + apply_dropout(self.attention_output(attended), dropout)
        hidden = F.gelu(self.feedforward_input(_normalized(x)))
        return x + apply_dropout(self.feedforward_output(hidden), dropout)


class TransformerStack(nn.Module):
    """L blocks in one direction."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_layers))

    def forward(self, words: Tensor, tokens: Tensor, layout: AttentionLayout, dropout: float) -> list[Tensor]:
        """The token vectors and the stream after each block, (N, D) each; that of the last one is normalized."""
        layers = [F.embedding(tokens, words)]
        x = apply_dropout(layers[0], dropout)
        for layer in self.layers:
            x = layer(x, layout, dropout)
            layers.append(x)
        layers[-1] = _normalized(x)
        return layers


class BidirectionalTransformer(nn.Module):
    """Two stacks that never exchange information: one reads each segment from its front, one from its back.

    There is no state to carry: a position attends to those before it in its segment, `context` of them at most.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.stacks = nn.ModuleList([TransformerStack(config), TransformerStack(config)])

    def forward(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState | None = None,
        start: BiLMState | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, BiLMState]:
        """See `BiLM.run`. Dropout is on the token vectors, and on what is added to them."""
        check_stateless("a Transformer", state, start)
        words = words.to(torch.promote_types(words.dtype, torch.float32))
        layout = AttentionLayout(packing, self.config, words)
        tasks = [partial(stack, words, tokens[d], layout, dropout) for d, stack in enumerate(self.stacks)]
        fwd, bwd = run_directions(self, tasks, [words], dropout)
        return stack_directions(fwd, bwd), BiLMState.zeros(self.config, len(packing.row_order), words)
