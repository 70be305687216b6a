"""Packed token streams: the one batching, for training (state carried over), embedding and scoring (as asked)."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np
import torch
from torch import Tensor

from elmokit.ops.packing import PackedText, Packing, pack_sentences
from elmokit.text.characters import BOS, EOS
from elmokit.text.vocab import Vocab

STATES = ("zeros", "warm", "carry")


def number_words(words: Iterable[str]) -> tuple[list[str], np.ndarray]:
    """The distinct words in order of appearance, and for each word its number among them."""
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # a new word gets the next number
    which = np.fromiter(map(numbers.__getitem__, words), dtype=np.int64)
    return list(numbers), which


@dataclass(frozen=True)
class Window:
    """One training step: which of the distinct `words` stands where, `tokens` (2, T*B), and the `targets` (2, T*B).

    `begins` (T*B,): where a sentence begins, the same slots in both directions. (A literal <S> in the text counts too.)
    """

    words: list[str]
    tokens: Tensor
    targets: Tensor
    begins: Tensor


def _both_readings(words: list[str]) -> tuple[list[str], list[str], list[str], list[str]]:
    mirrored = words[::-1]
    return [BOS, *words], [*words, EOS], [EOS, *mirrored], [*mirrored, BOS]


class TrainingStream:
    """Windows of `unroll_steps` over `batch_size` rows of sentences laid end to end (bilm-tf, data.py:281-303).

    Forward rows read `<S> w1 .. wn <S> ..` to predict `w1 .. wn </S> ..`; backward rows read the same sentences in
    the same order, `</S> wn .. w1 </S> ..`, to predict `wn .. w1 <S> ..`. A row takes its next sentence when it needs
    one.
    """

    def __init__(
        self,
        sentences: Iterator[list[str]],
        vocab: Vocab,
        batch_size: int,
        unroll_steps: int,
        rows: list[list[list[str]]] | None = None,
    ) -> None:
        self._sentences, self._vocab, self._steps = sentences, vocab, unroll_steps
        self._rows = rows or [[[], [], [], []] for _ in range(batch_size)]
        # How much of each row was read: removed only when more is needed, as a row may hold a whole book.
        self._done = [0] * len(self._rows)

    @property
    def rows(self) -> list[list[list[str]]]:
        """What each row has still to read: forward inputs and targets, backward inputs and targets."""
        return [[part[done:] for part in row] for row, done in zip(self._rows, self._done, strict=True)]

    def __iter__(self) -> Iterator[Window]:
        return self

    def __next__(self) -> Window:
        columns: list[list[list[str]]] = [[], [], [], []]
        for number, row in enumerate(self._rows):
            if len(row[0]) < self._done[number] + self._steps:
                self._fill(number)
            begin, end = self._done[number], self._done[number] + self._steps
            for column, part in zip(columns, row, strict=True):
                column.append(part[begin:end])
            self._done[number] = end
        inputs, targets = ([self._time_major(columns[d]) for d in which] for which in ((0, 2), (1, 3)))
        words, tokens = number_words(chain(*inputs))
        which, target_ids = (torch.from_numpy(ids).view(2, -1) for ids in (tokens, self._vocab.ids(chain(*targets))))
        begins = which[0] == words.index(BOS) if BOS in words else torch.zeros_like(which[0], dtype=torch.bool)
        return Window(words, which, target_ids, begins)

    def _fill(self, number: int) -> None:
        """Sentences for a row that has too few words for a window."""
        row, done = self._rows[number], self._done[number]
        for part in row:
            del part[:done]
        self._done[number] = 0
        while len(row[0]) < self._steps:
            for part, more in zip(row, _both_readings(next(self._sentences)), strict=True):
                part += more

    @staticmethod
    def _time_major(rows: list[list[str]]) -> Iterator[str]:
        return chain.from_iterable(zip(*rows, strict=True))


@dataclass(frozen=True)
class Block:
    """Whole sentences, packed: distinct `words`, `tokens` (2, N) in stream order, and the way back to text order."""

    words: list[str]
    tokens: Tensor
    text: PackedText
    lengths: np.ndarray  # stream positions of each sentence
    margin: int = 0  # how many of them, at either end, are boundaries that both directions read


def embedding_block(
    sentences: Sequence[Sequence[str]], rows: np.ndarray, num_rows: int, reset: bool, boundaries: bool = True
) -> Block:
    """Sentences which both directions read whole, with both boundaries or without."""
    first, last = ([BOS], [EOS]) if boundaries else ([], [])
    words, which = number_words(chain.from_iterable(chain(first, sentence, last) for sentence in sentences))
    lengths = np.array([len(sentence) + 2 * boundaries for sentence in sentences], dtype=np.int64)
    text = pack_sentences(lengths, rows, num_rows, reset)
    tokens = text.to_streams(torch.from_numpy(np.stack([which, which])))
    return Block(words, tokens, text, lengths, margin=int(boundaries))


def one_row(forward: Sequence[str], backward: Sequence[str]) -> Block:
    """A stretch that each direction reads, each its own, as a block whose "text order" is that of the streams."""
    words, which = number_words(chain(forward, backward))
    length = len(forward)
    text = PackedText(Packing.rectangle(length, 1), torch.arange(length).expand(2, length))
    return Block(words, torch.from_numpy(which).view(2, length), text, np.array([length]))


def scoring_block(sentences: Sequence[Sequence[str]], rows: np.ndarray, num_rows: int, reset: bool) -> Block:
    """Sentences as the language model reads them in training: <S> first forward, </S> first backward.

    In text order position k of a sentence predicts word k+1 forward (the last one </S>) and word k-1 backward (the
    first <S>).
    """
    forward = chain.from_iterable((BOS, *sentence) for sentence in sentences)
    backward = chain.from_iterable((*sentence, EOS) for sentence in sentences)
    words, which = number_words(chain(forward, backward))
    lengths = np.array([len(sentence) + 1 for sentence in sentences])
    text = pack_sentences(lengths, rows, num_rows, reset)
    return Block(words, text.to_streams(torch.from_numpy(which.reshape(2, -1))), text, lengths)


def deal_evenly(lengths: Sequence[int] | np.ndarray, num_rows: int) -> np.ndarray:
    """A row for each sentence so that rows are about equally long: the longest first, each to the emptiest row."""
    rows = np.zeros(len(lengths), dtype=np.int64)
    fill = [(0, row) for row in range(num_rows)]
    for sentence in np.argsort(-np.asarray(lengths), kind="stable"):
        length, row = heapq.heappop(fill)
        rows[sentence] = row
        heapq.heappush(fill, (length + int(lengths[sentence]), row))
    return rows


def blocks_of(sentences: Iterable[Sequence[str]], words: int) -> Iterator[list[Sequence[str]]]:
    """Consecutive sentences in groups of about `words` words (boundaries counted), never cutting a sentence."""
    block: list[Sequence[str]] = []
    size = 0
    for sentence in sentences:
        block.append(sentence)
        size += len(sentence) + 2
        if size >= words:
            yield block
            block, size = [], 0
    if block:
        yield block
