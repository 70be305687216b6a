"""Two stacks of Transformer blocks with causal attention, over packed streams without padding between their products.

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
from elmokit.nn.lstm import BiLMState, check_stateless, run_directions
from elmokit.nn.token_encoders import Projection
from elmokit.ops.functional import apply_dropout, records_gradients
from elmokit.ops.packing import Packing, Segments

ROTARY_BASE = 10_000.0  # the longest wavelength of the positions, in radians
LENGTH_MULTIPLE = 16  # segments are padded to it for the attention, so that few lengths occur


def _normalized(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _attention(queries: Tensor, keys: Tensor, values: Tensor, **masks: Any) -> Tensor:
    # On a CPU the gradients of PyTorch's attention take several times as long in bfloat16 as in float32.
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(queries, keys, values, **masks)


def _causal_attention(rows: Tensor) -> Tensor:
    """Queries, keys and values (segments, T, 3, heads, d) -> (segments, heads, T, d)."""
    queries, keys, values = rows.permute(2, 0, 3, 1, 4)
    return _attention(queries, keys, values, is_causal=True)


class AttentionLayout:
    """Where the segments of a stream lie in a buffer with a few lengths, and the rotation of each position.

    Padding comes after the words of a segment, and attention looks back, so that no mask is needed. A segment longer
    than the context is a run of blocks, each of which attends to itself and to the block before it.
    """

    def __init__(self, packing: Packing, config: TransformerConfig, like: Tensor) -> None:
        segments, self.context = Segments.of(packing), config.context
        is_long = segments.lengths > self.context
        rounded = -(-segments.lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        blocks = -(-segments.lengths // self.context)
        padded = np.where(is_long, blocks * self.context, np.minimum(rounded, self.context))
        order = np.lexsort((padded, is_long))  # the short segments first, those of equal padded length together
        begins = np.empty_like(padded)
        begins[order] = np.cumsum(padded[order]) - padded[order]
        lengths, counts = np.unique(padded[~is_long], return_counts=True)
        self.size = int(padded.sum())
        self.groups = [(int(count), int(length)) for length, count in zip(lengths, counts, strict=True)]
        self.long_blocks = [int(count) for count in blocks[order][(~is_long).sum() :]]

        positions = segments.positions()
        places, position_of_slot = np.empty_like(segments.slots), np.empty_like(positions)
        places[segments.slots] = np.repeat(begins, segments.lengths) + positions
        position_of_slot[segments.slots] = positions
        self.places = torch.from_numpy(places).to(like.device)
        self.rotation = self._rotation(torch.from_numpy(position_of_slot), config, like)
        self._band: Tensor | None = None

    @staticmethod
    def _rotation(positions: Tensor, config: TransformerConfig, like: Tensor) -> Tensor:
        """exp(i p w) for each slot's position p and each pair's frequency w, (N, 1, 1, pairs), taken in float64."""
        pairs = config.projection_dim // config.num_heads // 2
        frequencies = ROTARY_BASE ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
        angles = positions[:, None].double() * frequencies
        rotation = torch.polar(torch.ones_like(angles), angles)[:, None, None]
        return rotation.to(like.device, torch.complex128 if like.dtype == torch.float64 else torch.complex64)

    def band(self) -> Tensor:
        """Which of 2 * context keys each position of a block sees, the block before it included."""
        if self._band is None:
            seen = torch.ones(self.context, 2 * self.context, dtype=torch.bool, device=self.places.device)
            self._band = seen.triu(1).tril(self.context)
        return self._band

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of every slot to its own and those before it in the segment.

        Args:
            queries: (N, heads, d); likewise keys and values.

        Returns:
            (N, heads * d).
        """
        _, heads, width = queries.shape
        dim = heads * width
        all_three = torch.cat([each.flatten(1) for each in (queries, keys, values)], dim=1)
        buffer = all_three.new_zeros(self.size, 3 * dim).index_copy(0, self.places, all_three)
        outputs, begin = [], 0
        for count, length in self.groups:
            rows = buffer[begin : begin + count * length].view(count, length, 3, heads, width)
            outputs.append(_causal_attention(rows).transpose(1, 2).reshape(-1, dim))
            begin += count * length
        for blocks in self.long_blocks:
            rows = buffer[begin : begin + blocks * self.context].view(-1, 3, heads, width)
            outputs.append(self._attend_in_blocks(rows, blocks).reshape(-1, dim))
            begin += blocks * self.context
        return torch.cat([buffer[:0, :dim], *outputs]).index_select(0, self.places)

    def _attend_in_blocks(self, rows: Tensor, blocks: int) -> Tensor:
        """Attention within a long segment (blocks * context, 3, heads, d) -> (blocks * context, heads, d)."""
        context, (_, _, heads, width) = self.context, rows.shape
        first = _causal_attention(rows[None, :context])
        queries = rows[context:, 0].view(blocks - 1, context, heads, width).transpose(1, 2)
        keys, values = (rows[:, part].unfold(0, 2 * context, context).transpose(2, 3) for part in (1, 2))
        others = _attention(queries, keys, values, attn_mask=self.band())
        return torch.cat([first, others]).transpose(1, 2).flatten(0, 1)


class TransformerLayer(nn.Module):
    """A block: attention, then a feed-forward network, each on the normalized stream, to which it is added."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dim, hidden = config.projection_dim, config.feedforward_dim
        self.num_heads = config.num_heads
        self.attention_input, self.attention_output = Projection(dim, 3 * dim), Projection(dim, dim)
        self.feedforward_input, self.feedforward_output = Projection(dim, hidden), Projection(hidden, dim)
        for linear, added in (
            (self.attention_input, False),
            (self.attention_output, True),
            (self.feedforward_input, False),
            (self.feedforward_output, True),
        ):
            # What is added 2L times to the stream begins smaller (Radford et al. 2019, section 2.3).
            nn.init.normal_(linear.weight, std=math.sqrt(1 / linear.in_features / (2 * config.num_layers) ** added))
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, layout: AttentionLayout, dropout: float) -> Tensor:
        """x (N, D) -> (N, D)."""
        x = x + apply_dropout(self._attention(_normalized(x), layout), dropout)
        hidden = F.gelu(self.feedforward_input(_normalized(x)))
        return x + apply_dropout(self.feedforward_output(hidden), dropout)

    def _attention(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        shape = (len(x), 3, self.num_heads, x.shape[1] // self.num_heads)
        projected = self.attention_input(x).to(x.dtype).view(shape)
        pairs = torch.view_as_complex(projected[:, :2].unflatten(-1, (-1, 2)))
        queries, keys = torch.view_as_real(pairs * layout.rotation).flatten(-2).unbind(1)
        return self.attention_output(layout.attend(queries, keys, projected[:, 2]))


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
        in_turn = dropout > 0 or records_gradients(words, *self.parameters())
        fwd, bwd = run_directions(tasks, words.device, in_turn)
        layers = torch.stack([layer for pair in zip(fwd, bwd, strict=True) for layer in pair])
        return layers.unflatten(0, (-1, 2)), BiLMState.zeros(self.config, len(packing.row_order), words)
