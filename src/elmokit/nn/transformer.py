"""Two stacks of Transformer blocks with causal attention over packed streams, padded only for the
attention itself.

Blocks are pre-norm (Radford et al. 2019), positions rotary (Su et al. 2021), and the norms have no
weights of their own, since each is followed by a linear map (Groeneveld et al. 2024).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import TransformerConfig
from elmokit.nn.bidirectional import Bidirectional, BiLMState, apply_dropout
from elmokit.nn.token_encoders import Projection
from elmokit.ops import Packing, allocate

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
    """Positions of the segments of a stream (its sentences) in a buffer, padded to a few lengths.

    Padding follows the words of a segment, and attention only looks back, so that no mask is
    needed. A segment longer than the context is cut into blocks of it, each of which attends to
    itself and to the block before it. With LENGTH_MULTIPLE 4 and a context of 8, segments of 3, 9
    and 4 words, whose groups (count, length) are (2, 4) and (1, 16):

        a a a -  c c c c  b b b b b b b b  b - - - - - - -
        0        4        8                16
    """

    def __init__(self, packing: Packing, config: TransformerConfig, like: Tensor) -> None:
        segments, device = packing.segments(), like.device
        self.heads, self.context = config.num_heads, config.context
        is_long = segments.lengths > self.context
        short_lengths = -(-segments.lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        short_lengths = np.minimum(short_lengths, self.context)
        block_lengths = -(-segments.lengths // self.context) * self.context
        padded = np.where(is_long, block_lengths, short_lengths)

        # Segments of equal padded length lie together: they are attended to at once.
        order = np.argsort(padded, kind="stable")
        begins = np.empty_like(padded)
        begins[order] = np.cumsum(padded[order]) - padded[order]
        lengths, counts = np.unique(padded, return_counts=True)
        pairs = zip(counts.tolist(), lengths.tolist(), strict=True)
        self.groups: list[tuple[int, int]] = list(pairs)

        # The row of each slot in the buffer, and the rows of no slot.
        rows = np.empty_like(segments.slots)
        is_padding = np.ones(padded.sum(), dtype=bool)
        begins_of_words = np.repeat(begins, segments.lengths)
        rows[segments.slots] = begins_of_words + segments.positions()
        is_padding[rows] = False
        self.rows = torch.from_numpy(rows).to(device)
        self.padding = torch.from_numpy(np.flatnonzero(is_padding)).to(device)

        # exp(i p w) for each position p and each pair's frequency w, (positions, 1, 1, pairs).
        pairs = config.projection_dim // config.num_heads // 2
        positions = torch.arange(padded.max(initial=0), dtype=torch.float64, device=device)
        exponents = torch.arange(pairs, dtype=torch.float64, device=device) / pairs
        angles = positions[:, None] * ROTARY_BASE**-exponents
        rotation = torch.polar(torch.ones_like(angles), angles)[:, None, None]
        self.rotation = rotation.to(like.dtype.to_complex())
        # The keys, of its block and the one before, that each position of a block sees: itself
        # and the context - 1 before it. Context 3:   . x x x . .
        #                                            . . x x x .
        #                                            . . . x x x
        if is_long.any():
            band = torch.ones(self.context, 2 * self.context, dtype=torch.bool, device=device)
            self.band = band.triu(1).tril(self.context)

    def attend(self, projected: Tensor) -> Tensor:
        """Attend from every slot to itself and to those before it in its segment.

        Args:
            projected: Queries, keys and values side by side, (N, 3D), each of them head after head.

        Returns:
            (N, D).
        """
        size = len(self.rows) + len(self.padding)
        dim = projected.shape[1] // 3
        buffer = allocate((size, 3 * dim), projected.dtype, projected.device)
        buffer.index_fill_(0, self.padding, 0)
        buffer.index_copy_(0, self.rows, projected)
        outputs, begin = [], 0
        for count, length in self.groups:
            end = begin + count * length
            group = buffer[begin:end].view(count, length, 3, self.heads, -1)
            attended = self._attend_causally(*self._rotated(group))
            outputs.append(attended.transpose(1, 2).reshape(-1, dim))
            begin = end
        attended = torch.cat([buffer[:0, :dim], *outputs])
        return attended.index_select(0, self.rows)

    def _rotated(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(count, T, 3, heads, d) -> queries and keys, rotated, and values (count, heads, T, d)."""
        # Two neighbouring dimensions x, y are one number x + iy, which turning multiplies.
        queries_and_keys = rows[:, :, :2].unflatten(-1, (-1, 2))
        pairs = torch.view_as_complex(queries_and_keys) * self.rotation[: rows.shape[1]]
        rotated = torch.view_as_real(pairs).flatten(-2)
        queries, keys = rotated.transpose(1, 3).unbind(2)
        return queries, keys, rows[:, :, 2].transpose(1, 2)

    def _attend_causally(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention within segments (count, heads, T, d), in memory linear in T."""
        count, context = len(queries), self.context
        first = _attention(
            *(part[:, :, :context] for part in (queries, keys, values)), is_causal=True
        )
        if queries.shape[2] <= context:
            return first

        def windows(part: Tensor, width: int) -> Tensor:
            """A window for each later block, (count * windows, heads, width, d)."""
            unfolded = part.unfold(2, width, context)  # (count, heads, windows, d, width)
            return unfolded.permute(0, 2, 1, 4, 3).flatten(0, 1)

        # Blocks of queries      0    1     2     3
        # see those of the keys  0   0 1   1 2   2 3
        later = windows(queries[:, :, context:], context)
        seen = [windows(part, 2 * context) for part in (keys, values)]
        outputs = _attention(later, *seen, attn_mask=self.band)
        outputs = outputs.unflatten(0, (count, -1)).transpose(1, 2)
        return torch.cat([first, outputs.flatten(2, 3)], dim=2)


def _linear(in_features: int, out_features: int, summands: int = 1) -> Projection:
    """A linear map, initialized smaller if it is one of many summands (Radford et al. 2019)."""
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
        self.attention_input = _linear(dim, 3 * dim)
        self.attention_output = _linear(dim, dim, summands)
        self.feedforward_input = _linear(dim, hidden)
        self.feedforward_output = _linear(hidden, dim, summands)

    def forward(self, x: Tensor, layout: AttentionLayout, dropout: float) -> Tensor:
        """x (N, D) -> (N, D)."""
        projected = self.attention_input(_normalized(x))
        attended = layout.attend(projected.to(x.dtype))
        x = x + apply_dropout(self.attention_output(attended), dropout)
        hidden = F.gelu(self.feedforward_input(_normalized(x)))
        return x + apply_dropout(self.feedforward_output(hidden), dropout)


class TransformerStack(nn.Module):
    """L blocks in one direction; the output of the last is normalized."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_layers))

    def forward(
        self,
        word_vectors: Tensor,
        tokens: Tensor,
        layout: AttentionLayout,
        dropout: float,
    ) -> tuple[list[Tensor], list[Any]]:
        """The token vectors and the outputs of each block, (N, D) each; there are no states."""
        layers = [F.embedding(tokens, word_vectors)]
        x = apply_dropout(layers[0], dropout)
        for layer in self.layers:
            x = layer(x, layout, dropout)
            layers.append(x)
        layers[-1] = _normalized(x)
        return layers, []


class BidirectionalTransformer(Bidirectional):
    """Transformers in both directions. Dropout is on the token vectors, and on what is added to
    them.

    There is no state to carry: a position attends to those before it in its segment, `context` of
    them at most.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, TransformerStack)

    def forward(
        self,
        word_vectors: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState,
        reset_state: BiLMState | None,
        dropout: float,
    ) -> tuple[Tensor, BiLMState]:
        """See `BiLM.run`."""
        layout = AttentionLayout(packing, self.config, word_vectors)
        layers, _ = self.run_stacks(word_vectors, tokens, [(layout,)] * 2, state, dropout)
        return layers, state
