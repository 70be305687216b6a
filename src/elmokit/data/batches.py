"""Batches of sentences as packed token streams, to embed and to score."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from elmokit.ops import PackedText
from elmokit.text import BOS, EOS

T = TypeVar("T")


def _number_words(words: Iterable[str]) -> tuple[list[str], np.ndarray]:
    """The distinct words in order of first appearance, and the index of each word among them, (N,)
    int64.
    """
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # the next for a new word
    indices = np.fromiter(map(numbers.__getitem__, words), dtype=np.int64)
    return list(numbers), indices


def assign_rows(lengths: Sequence[int] | np.ndarray, num_rows: int) -> np.ndarray:
    """Assign sentences to rows of about equal total length: the longest first, each to the shortest
    row.

    Args:
        lengths: The length of each of N sentences.
        num_rows: Number of rows.

    Returns:
        The row of each sentence, (N,) int64.
    """
    # Sentences of 3, 7, 2, 4 and 3 words in two rows:
    #
    #   row 0   1 1 1 1 1 1 1 | 4 4 4       10 positions
    #   row 1   3 3 3 3 | 0 0 0 | 2 2        9 positions       rows = [1, 0, 1, 1, 0]
    rows = np.zeros(len(lengths), dtype=np.int64)
    fill = [(0, row) for row in range(num_rows)]
    for sentence in np.argsort(-np.asarray(lengths), kind="stable"):
        length, row = heapq.heappop(fill)
        rows[sentence] = row
        heapq.heappush(fill, (length + int(lengths[sentence]), row))
    return rows


@dataclass(frozen=True)
class PackedBatch:
    """Whole sentences as packed streams of both directions.

    Each sentence starts from the initial state, and rows are filled evenly. Or the state is
    carried, from `first` on: sentence `first` + i is in row (`first` + i) mod `num_rows`, and
    starts from the final state of the sentence before it there.

    Attributes:
        words: The distinct words.
        tokens: Index into `words` at each position of the streams, (2, N).
        text: The packing, which also unpacks results to the order of the sentences.
        lengths: Number of positions of each sentence.
        num_boundary_tokens: Number of boundary tokens at either end of a sentence.
    """

    words: list[str]
    tokens: Tensor
    text: PackedText
    lengths: np.ndarray
    num_boundary_tokens: int

    @classmethod
    def to_embed(
        cls,
        sentences: Sequence[Sequence[str]],
        num_rows: int,
        first: int | None = None,
        boundaries: bool = True,
    ) -> PackedBatch:
        """Sentences that both directions read completely, with <S> and </S> unless `boundaries` is
        not set.
        """
        ends = ((BOS,), (EOS,)) if boundaries else ((), ())
        texts = [[*ends[0], *sentence, *ends[1]] for sentence in sentences]
        return cls._pack(texts, texts, num_rows, first, int(boundaries))

    @classmethod
    def to_score(
        cls, sentences: Sequence[Sequence[str]], num_rows: int, first: int | None = None
    ) -> PackedBatch:
        """Sentences as in training: forward reads <S> and the words, backward </S> and the words in
        reverse.

        Unpacked, position k of a sentence (from 0) predicts word k forward (</S> at the last
        position) and word k-1 backward (<S> at the first).
        """
        forward = [[BOS, *sentence] for sentence in sentences]
        backward = [[*sentence, EOS] for sentence in sentences]
        return cls._pack(forward, backward, num_rows, first, 0)

    @classmethod
    def _pack(
        cls,
        forward: Sequence[list[str]],
        backward: Sequence[list[str]],
        num_rows: int,
        first: int | None,
        num_boundary_tokens: int,
    ) -> PackedBatch:
        # The sentences "a b" and "b" to score, where both directions have texts of their own:
        #
        #   forward    <S> a b <S> b          words     <S> a b </S>
        #   backward   a b </S> b </S>        indices    0 1 2 0 2 | 1 2 3 2 3
        #
        # Read completely, as to embed, both have the same text, whose indices serve twice.
        lengths = np.array(list(map(len, forward)), dtype=np.int64)
        if first is None:
            num_rows = max(1, min(num_rows, len(lengths)))
            rows = assign_rows(lengths, num_rows)
        else:
            rows = np.arange(first, first + len(lengths)) % num_rows
        text = PackedText.of_sentences(lengths, rows, num_rows, reset=first is None)
        sides = [forward] if forward is backward else [forward, backward]
        words, indices = _number_words(chain.from_iterable(chain.from_iterable(sides)))
        tokens = torch.from_numpy(indices.reshape(len(sides), -1)).expand(2, -1)
        return cls(words, text.to_streams(tokens), text, lengths, num_boundary_tokens)


def chunks(
    items: Iterable[T], min_size: int, size: Callable[[Any], int] = lambda words: len(words) + 2
) -> Iterator[list[T]]:
    """Yield lists of consecutive items of at least `min_size` in total; the last may be smaller.

    By default, items are sentences, and their sizes count words and both boundaries.
    """
    chunk: list[T] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size(item)
        if total >= min_size:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
