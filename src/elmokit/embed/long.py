"""Sentences of any length, in windows: exactly the vectors of the whole, of which a window is held.

The directions never exchange information. The forward one reads the sentence from its front and the backward one from
its back, so both are streams whose state runs on from window to window. Window k holds the k-th stretch of each: the
forward halves of words near the front, the backward halves of words near the end. After the last one all are whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np

from elmokit.data.streams import Block, blocks_of, one_row
from elmokit.nn.bilm import BiLMState
from elmokit.text.characters import BOS, EOS

POSITIONS_AT_ONCE = 4096  # of each direction

# Runs one row of a block from a state: (n, 2D) or (L+1, n, 2D) in stream order, and the state after.
Run = Callable[[Block, BiLMState | None], tuple[np.ndarray, BiLMState]]
# Receives the vectors of one direction, (n, D) or (L+1, n, D): which words, which columns, the vectors in text order.
Put = Callable[[slice, slice, np.ndarray], None]


def long_apart(
    sentences: Iterable[Sequence[str]], longest: int, words: int | None = None
) -> Iterator[tuple[list[Sequence[str]], bool]]:
    """Consecutive sentences in groups of about `words` (`longest` when not given), as those of `blocks_of`.

    A sentence with more than `longest` positions is alone, and True.
    """
    for is_long, together in groupby(sentences, key=lambda sentence: len(sentence) + 2 > longest):
        for group in ([sentence] for sentence in together) if is_long else blocks_of(together, words or longest):
            yield group, is_long


def _positions(words: Sequence[str], begin: int, end: int) -> list[str]:
    """Positions begin : end of <S> w1 .. wn </S>."""
    first = [BOS] if begin == 0 else []
    last = [EOS] if end == len(words) + 2 else []
    return [*first, *words[max(begin - 1, 0) : min(end - 1, len(words))], *last]


def embed_in_windows(words: Sequence[str], run: Run, state: BiLMState | None, put: Put, positions: int) -> BiLMState:
    """One sentence from `state` on (one row; None: zeros); `put` receives every half vector once.

    Of `words` only the length is asked for, and slices of `positions` words. Returns the state after the sentence.
    """
    length = len(words) + 2
    for begin in range(0, length, positions):
        end = min(begin + positions, length)
        backward = _positions(words, length - end, length - begin)[::-1]
        vectors, state = run(one_row(_positions(words, begin, end), backward), state)
        inner = slice(int(begin == 0), end - begin - int(end == length))  # without the boundaries
        first, count, dim = max(begin - 1, 0), inner.stop - inner.start, vectors.shape[-1] // 2
        from_end = len(words) - first
        put(slice(first, first + count), slice(0, dim), vectors[..., inner, :dim])
        put(slice(from_end - count, from_end), slice(dim, 2 * dim), vectors[..., inner, dim:][..., ::-1, :])
    assert state is not None
    return state


class WholeArray:
    """(T, 2D), or (L+1, T, 2D), filled half by half."""

    def __init__(self, words: int, dim: int) -> None:
        self._shape, self._array = (words, dim), np.empty(0, np.float32)

    def put(self, rows: slice, columns: slice, vectors: np.ndarray) -> None:
        """The vectors of one direction, as `embed_in_windows` gives them."""
        if not self._array.size:
            self._array = np.empty((*vectors.shape[:-2], *self._shape), np.float32)
        self._array[..., rows, columns] = vectors

    def vectors(self) -> np.ndarray:
        return self._array


def row_of(state: BiLMState, row: int) -> BiLMState:
    """The state of one row of several."""
    return BiLMState(state.h[:, :, row : row + 1], state.c[:, :, row : row + 1])


def with_row(state: BiLMState, row: int, of_row: BiLMState) -> BiLMState:
    """The state of several rows, with another one for `row`."""
    h, c = state.h.clone(), state.c.clone()
    h[:, :, row], c[:, :, row] = of_row.h[:, :, 0], of_row.c[:, :, 0]
    return BiLMState(h, c)
