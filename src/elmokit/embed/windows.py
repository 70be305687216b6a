"""A sentence of any length in windows: the same vectors as of the whole, with one window in memory.

The directions never exchange information. The forward one reads the sentence from its front and the backward one from
its back, so both are streams whose state is carried from window to window. Window k holds the k-th stretch of each: the
forward halves of words near the front, the backward halves of words near the end. After the last window, every word has
both halves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elmokit.data.streams import PackedBatch, window_batch
from elmokit.text.characters import BOS, EOS


@dataclass(frozen=True)
class Window:
    """A stretch of a sentence that each direction reads.

    Attributes:
        batch: The input of both directions.
        words: The positions of the window that are words; the others are boundaries.
        forward: The words of the sentence that the forward direction reads there.
        backward: The words of the sentence that the backward direction reads there, in reverse.
    """

    batch: PackedBatch
    words: slice
    forward: slice
    backward: slice


def _positions(words: Sequence[str], begin: int, end: int) -> list[str]:
    """Positions begin : end of the sequence <S> w1 .. wn </S>."""
    first = [BOS] if begin == 0 else []
    last = [EOS] if end == len(words) + 2 else []
    return [*first, *words[max(begin - 1, 0) : min(end - 1, len(words))], *last]


def plan_windows(words: Sequence[str], positions: int) -> Iterator[Window]:
    """Windows of at most `positions` positions. Of `words` only the length is read, and slices of a window's length."""
    length = len(words) + 2
    for begin in range(0, length, positions):
        end = min(begin + positions, length)
        backward = _positions(words, length - end, length - begin)[::-1]
        inner = slice(int(begin == 0), end - begin - int(end == length))
        first, count = max(begin - 1, 0), inner.stop - inner.start
        from_end = len(words) - first
        batch = window_batch(_positions(words, begin, end), backward)
        yield Window(batch, inner, slice(first, first + count), slice(from_end - count, from_end))
