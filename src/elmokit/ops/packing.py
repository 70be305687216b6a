"""Packed streams: sentences laid end to end in rows, time-major, without padding.

Sentences of 3 and 2 words (a, b) in one row, and one of 4 words (c) in another:

    step         0      1      2      3      4
    rank 0       a1     a2     a3     b1     b2      the longest row
    rank 1       c1     c2     c3     c4
    batch_sizes  2      2      2      2      1       rows that still have a token
    slot         0  1   2  3   4  5   6  7   8
    forward      a1 c1  a2 c2  a3 c3  b1 c4  b2
    backward     a3 c4  a2 c3  a1 c2  b2 c1  b1      each sentence reversed, in the same slots
    resets       *  *                 *              if a reset precedes each sentence
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elmokit.ops.dispatch import choose
from elmokit.ops.memory import upload


class PackingTensors(NamedTuple):
    """A packing on the device of a kernel."""

    row_order: Tensor  # (B,)
    starts: Tensor  # int32 (T+1,): the first slot of each step, and N at the end
    resets: Tensor | None  # bool (N,)


@dataclass(frozen=True)
class Packing:
    """The shape of a packed stream of N slots: step t holds one slot for each of its
    `batch_sizes[t]` rows.

    Rows are ranked longest first, so the active rows of a step are always the first ones;
    `row_order[rank]` is the caller's row index. `resets` (N,) bool marks the slots before which the
    state is reset: the first one of each such sentence (None: never).
    """

    batch_sizes: tuple[int, ...]
    row_order: Tensor
    resets: Tensor | None = None
    _copies: dict[torch.device, PackingTensors] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def on(self, device: torch.device) -> PackingTensors:
        """The packing on a device, copied at the first call."""
        if device not in self._copies:
            starts = torch.tensor(self.starts(), dtype=torch.int32, device="cpu")
            tensors = [self.row_order, starts] + ([] if self.resets is None else [self.resets])
            row_order, starts, *resets = upload(tensors, device)
            self._copies[device] = PackingTensors(row_order, starts, resets[0] if resets else None)
        return self._copies[device]

    @staticmethod
    def rectangle(steps: int, rows: int) -> Packing:
        """`steps` full steps of `rows` rows without a reset: a training window."""
        return Packing((rows,) * steps, torch.arange(rows, device="cpu"))

    @property
    def num_slots(self) -> int:
        return sum(self.batch_sizes)

    def steps(self) -> Iterator[tuple[slice, int]]:
        """Yield the slots and the number of rows of each step."""
        for begin, end in pairwise(self.starts()):
            yield slice(begin, end), end - begin

    def windows(self, slots: int) -> Iterator[tuple[slice, Packing]]:
        """Yield the slots and packing of windows of about `slots` slots, cut between steps."""
        # Of 4 slots, if batch_sizes are 2 2 2 2 1 and `starts` 0 2 4 6 8 9:
        #     slots         0 .. 3   4 .. 7   8
        #     batch_sizes   2 2      2 2      1
        starts, begin = self.starts(), 0
        for t in range(1, len(starts)):
            if starts[t] - starts[begin] >= slots or t == len(starts) - 1:
                window = slice(starts[begin], starts[t])
                resets = None if self.resets is None else self.resets[window]
                yield window, Packing(self.batch_sizes[begin:t], self.row_order, resets)
                begin = t

    def starts(self) -> list[int]:
        """The first slot of each step, and N at the end."""
        return [0, *np.cumsum(self.batch_sizes).tolist()]

    def segments(self) -> Segments:
        """Find the segments of the stream."""
        starts = np.array(self.starts())
        # The step and the rank of each slot; then all slots of one rank in a row, step by step.
        step = np.repeat(np.arange(len(starts) - 1), self.batch_sizes)
        rank = np.arange(len(step)) - starts[step]
        slots = np.lexsort((step, rank))
        is_first = step[slots] == 0
        if self.resets is not None:
            is_first |= self.resets.cpu().numpy()[slots]
        firsts = np.flatnonzero(is_first)
        lengths = np.diff(np.append(firsts, len(slots)))
        return Segments(slots, firsts, lengths)


@dataclass(frozen=True)
class Segments:
    """The tokens of a row from one reset to the next, row after row: a, b and c above.

    Attributes:
        slots: The slots of the stream, segment after segment (N,): 0 2 4  6 8  1 3 5 7.
        firsts: The index in `slots` at which each segment begins (S,): 0 3 5.
        lengths: The number of slots of each segment (S,): 3 2 4.
    """

    slots: np.ndarray
    firsts: np.ndarray
    lengths: np.ndarray

    def positions(self) -> np.ndarray:
        """The position of each of `slots` in its segment (N,), from 0: 0 1 2  0 1  0 1 2 3."""
        return np.arange(len(self.slots)) - np.repeat(self.firsts, self.lengths)

    def mirrored(self) -> np.ndarray:
        """For each slot, the slot of the same token in the other direction (N,)."""
        mirrored = np.empty_like(self.slots)
        lasts = np.repeat(self.firsts + self.lengths - 1, self.lengths)
        mirrored[self.slots] = self.slots[lasts - self.positions()]
        return mirrored


@dataclass(frozen=True)
class PackedText:
    """Sentences in packed streams, and where each of their tokens lies.

    Attributes:
        packing: The shape of both streams.
        slots: The slot of each token, in the order of the text, in each direction, fwd and bwd,
            (2, N) int64. Of the text a1 a2 a3 b1 b2 c1 c2 c3 c4 above: 0 2 4 6 8 1 3 5 7 and
            4 2 0 8 6 7 5 3 1.
    """

    packing: Packing
    slots: Tensor

    @staticmethod
    def of_sentences(
        lengths: Sequence[int] | np.ndarray,
        rows: Sequence[int] | np.ndarray,
        num_rows: int,
        reset: bool,
    ) -> PackedText:
        """Append sentence s of the given lengths to row `rows[s]` of `num_rows` rows.

        With `reset` the state is reset before each sentence.
        """
        # a, b and c of 3, 2 and 4 words in the rows 0, 0 and 1, as above:
        #
        #     row_lengths  5 4     batch_sizes  2 2 2 2 1      first_step  of a 0, of b 3, of c 0
        #     row_order    0 1     step_starts  0 2 4 6 8 9
        #
        #     token        a1 a2 a3  b1 b2  c1 c2 c3 c4
        #     begin         0  0  0   3  3   0  0  0  0
        #     position      0  1  2   0  1   0  1  2  3
        #     mirrored      2  1  0   1  0   3  2  1  0
        #     token_rank    0  0  0   0  0   1  1  1  1
        #     forward       0  2  4   6  8   1  3  5  7     step_starts[begin + position] + rank
        #     backward      4  2  0   8  6   7  5  3  1     step_starts[begin + mirrored] + rank
        lengths = np.asarray(lengths, dtype=np.int64)
        rows = np.asarray(rows, dtype=np.int64)
        row_lengths = np.bincount(rows, weights=lengths, minlength=num_rows).astype(np.int64)
        row_order = np.argsort(-row_lengths, kind="stable")
        rank = np.argsort(row_order, kind="stable")
        # A step has a slot for each row that is longer than its number.
        steps = np.arange(row_lengths.max(initial=0))
        batch_sizes = num_rows - np.searchsorted(np.sort(row_lengths), steps, side="right")
        step_starts = np.concatenate([[0], np.cumsum(batch_sizes)])

        # The step at which a sentence begins, the length of what lies in its row before it: where
        # it begins if all rows are laid end to end, minus where its row begins there.
        by_row = np.argsort(rows, kind="stable")
        first_step = np.empty_like(lengths)
        first_step[by_row] = np.cumsum(lengths[by_row]) - lengths[by_row]
        first_step -= (np.cumsum(row_lengths) - row_lengths)[rows]

        # Of each token: its sentence's first step, its position in it, and its row's rank.
        begin = np.repeat(first_step, lengths)
        position = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        mirrored = np.repeat(lengths, lengths) - 1 - position
        token_rank = np.repeat(rank[rows], lengths)
        forward = step_starts[begin + position] + token_rank
        backward = step_starts[begin + mirrored] + token_rank

        resets = None
        if reset:
            resets = torch.zeros(len(forward), dtype=torch.bool, device="cpu")
            resets[torch.from_numpy(forward[position == 0])] = True
        packing = Packing(tuple(batch_sizes.tolist()), torch.from_numpy(row_order), resets)
        return PackedText(packing, torch.from_numpy(np.stack([forward, backward])))

    @staticmethod
    def of_mask(mask: Tensor) -> PackedText:
        """The words of a padded batch, mask (B, T): a row each, and no reset."""
        lengths = mask.sum(dim=1).cpu().numpy()
        return PackedText.of_sentences(lengths, range(len(mask)), len(mask), reset=False)

    def without(self, tokens: np.ndarray) -> PackedText:
        """The text without some tokens, whose slots stay as they are."""
        kept = np.delete(np.arange(self.slots.shape[1]), tokens)
        return PackedText(self.packing, self.slots[:, kept])

    def to_streams(self, tokens: Tensor) -> Tensor:
        """The tokens that each direction reads, (2, N) -> (2, N) in stream order."""
        return torch.empty_like(tokens).scatter_(1, self.slots, tokens)

    def unpack(self, streams: Tensor) -> Tensor:
        """(..., 2, N, D) in stream order -> (..., N, 2D), the two directions side by side."""
        (slots,) = upload([self.slots], streams.device)
        fwd, bwd = streams.unbind(-3)
        return torch.cat([fwd.index_select(-2, slots[0]), bwd.index_select(-2, slots[1])], dim=-1)

    def write_sentences(
        self,
        streams: Tensor,
        begins: np.ndarray,
        outs: Sequence[np.ndarray],
    ) -> None:
        """Write each sentence's vectors to a separate array.

        Args:
            streams: (K, 2, N, D), in stream order.
            begins: The index of each sentence's first token, of 0..N-1.
            outs: For each sentence, an array (K, T, 2D) float32 to fill.
        """
        unpack = choose("unpack", streams.device, streams.dtype)
        unpack.unpack_sentences(streams, self.slots, begins, outs)

    def write_words(self, streams: Tensor, out: np.ndarray) -> None:
        """Write the vectors of all tokens end to end, as they are stored.

        Args:
            streams: (K, 2, N, D), in stream order.
            out: The array to fill (N, K, 2D), float32 or float16.

        Raises:
            FloatingPointError: If a finite number is too large for float16.
        """
        unpack = choose("unpack", streams.device, streams.dtype)
        if unpack.unpack_words(streams, self.slots, out):
            raise FloatingPointError("finite numbers have become infinite")
