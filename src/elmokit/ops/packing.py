"""Packed streams: sentences laid end to end in rows, time-major, with no padding between or after
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elmokit.ops.transfer import upload


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
        """The packing on a device, to which it is copied once, at the first call."""
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
        begin = 0
        for rows in self.batch_sizes:
            yield slice(begin, begin + rows), rows
            begin += rows

    def windows(self, slots: int) -> Iterator[tuple[slice, Packing]]:
        """Cut the packing between steps into windows of about `slots` slots; yields the slots and
        packing of each.
        """
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


@dataclass(frozen=True)
class Segments:
    """The segments of a packed stream: the tokens of a row from one reset to the next, row after
    row.

    Attributes:
        slots: The slots of the stream, segment after segment (N,).
        firsts: The index in `slots` at which each segment begins (S,).
        lengths: The number of slots of each segment (S,).
        ranks: The rank of each segment's row (S,).
        continued: Whether a segment starts from the state of its row, because it begins the row
            without a reset (S,) bool.
    """

    slots: np.ndarray
    firsts: np.ndarray
    lengths: np.ndarray
    ranks: np.ndarray
    continued: np.ndarray

    @staticmethod
    def of(packing: Packing) -> Segments:
        """Find the segments of a stream."""
        starts = np.array(packing.starts())
        step = np.repeat(np.arange(len(starts) - 1), packing.batch_sizes)
        rank = np.arange(len(step)) - starts[step]
        slots = np.lexsort((step, rank))
        begins_row = step[slots] == 0
        is_reset = (
            np.zeros_like(begins_row)
            if packing.resets is None
            else packing.resets.cpu().numpy()[slots]
        )
        firsts = np.flatnonzero(begins_row | is_reset)
        lengths = np.diff(np.append(firsts, len(slots)))
        return Segments(slots, firsts, lengths, rank[slots[firsts]], ~is_reset[firsts])

    def positions(self) -> np.ndarray:
        """The position of each of `slots` in its segment (N,), from 0."""
        return np.arange(len(self.slots)) - np.repeat(self.firsts, self.lengths)

    def mirrored(self) -> np.ndarray:
        """For each slot, the slot of the same token in the other direction (N,)."""
        mirrored = np.empty_like(self.slots)
        lasts = np.repeat(self.firsts + self.lengths - 1, self.lengths)
        mirrored[self.slots] = self.slots[lasts - self.positions()]
        return mirrored


@dataclass(frozen=True)
class PackedText:
    """Where each token of a text lies: `slots[d, n]` is the slot of token n in direction d (0 fwd,
    1 bwd).
    """

    packing: Packing
    slots: Tensor  # (2, N) int64

    def to_streams(self, tokens: Tensor) -> Tensor:
        """The tokens that each direction reads, sentence after sentence (2, N) -> (2, N) in stream
        order.
        """
        return torch.empty_like(tokens).scatter_(1, self.slots, tokens)

    def unpack(self, streams: Tensor) -> Tensor:
        """(2, N, D) in stream order -> (N, 2D), sentence after sentence, the two directions side by
        side.
        """
        slots = self.slots.to(streams.device)
        return torch.cat([streams[d, slots[d]] for d in range(2)], dim=-1)


def pack_sentences(
    lengths: Sequence[int] | np.ndarray,
    rows: Sequence[int] | np.ndarray,
    num_rows: int,
    reset: bool,
) -> PackedText:
    """Lay sentences of the given lengths into `num_rows` rows; sentence s is appended to row
    `rows[s]`.

    The backward stream holds the same sentences in the same order, each reversed. With `reset` the
    state is reset before each sentence.
    """
    lengths, rows = np.asarray(lengths, dtype=np.int64), np.asarray(rows, dtype=np.int64)
    row_lengths = np.bincount(rows, weights=lengths, minlength=num_rows).astype(np.int64)
    row_order = np.argsort(-row_lengths, kind="stable")
    rank = np.argsort(row_order, kind="stable")
    steps = np.arange(row_lengths.max(initial=0))
    batch_sizes = num_rows - np.searchsorted(np.sort(row_lengths), steps, side="right")
    step_starts = np.concatenate([[0], np.cumsum(batch_sizes)])

    by_row = np.argsort(
        rows, kind="stable"
    )  # a sentence begins at the length of what lies in its row before it
    first_step = np.empty_like(lengths)
    first_step[by_row] = np.cumsum(lengths[by_row]) - lengths[by_row]
    first_step -= (np.cumsum(row_lengths) - row_lengths)[rows]
    token_rank = np.repeat(rank[rows], lengths)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    begin = np.repeat(first_step, lengths)
    mirrored = np.repeat(lengths, lengths) - 1 - within
    slots = np.stack(
        [step_starts[begin + within] + token_rank, step_starts[begin + mirrored] + token_rank]
    )

    resets = None
    if reset:
        resets = torch.zeros(slots.shape[1], dtype=torch.bool, device="cpu")
        resets[torch.from_numpy(slots[0][within == 0])] = True
    packing = Packing(tuple(batch_sizes.tolist()), torch.from_numpy(row_order), resets)
    return PackedText(packing, torch.from_numpy(slots))
