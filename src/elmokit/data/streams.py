"""Batches as packed token streams: for training (with carried state), embedding and scoring."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from elmokit.ops import PackedText
from elmokit.text import BOS, EOS, Vocab

T = TypeVar("T")

# Words outside the vocabulary that a `TrainingStream` keeps numbered, in about 200 MB.
MAX_UNKNOWN = 1 << 20


def number_words(words: Iterable[str]) -> tuple[list[str], np.ndarray]:
    """The distinct words in order of first appearance, and the index of each word among them, (N,)
    int64.
    """
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # the next for a new word
    indices = np.fromiter(map(numbers.__getitem__, words), dtype=np.int64)
    return list(numbers), indices


@dataclass(frozen=True)
class TrainingWindow:
    """The input of a training step: T time steps of B rows in each direction, in time-major order.

    Attributes:
        words: The distinct words, in order of first appearance.
        tokens: Index into `words` at each position, (2, T*B) int32.
        targets: Vocabulary id to predict at each position, (2, T*B) int32.
        begins: True where a sentence begins, (T*B,), the same for both directions. A literal <S> in
            the text counts as a beginning.
    """

    words: list[str]
    tokens: Tensor
    targets: Tensor
    begins: Tensor


class _Numbers(dict[str, int]):
    """The number of each word: its id in the vocabulary, or for others the next one after those."""

    def __init__(self, vocab: Vocab) -> None:
        super().__init__(zip(vocab.words, count()))
        self.words = list(vocab.words)

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self.words)
        self.words.append(word)
        return number


@dataclass(frozen=True)
class PendingRows:
    """The words that a `TrainingStream` has read and not yet given, as numbers: for each row (4,
    N), the forward inputs and targets and the backward inputs and targets; and the words of these
    numbers.
    """

    rows: list[np.ndarray]
    words: list[str]

    def to_words(self) -> list[list[list[str]]]:
        """For each row the same four, as words."""
        return [
            [[self.words[number] for number in column] for column in row.tolist()]
            for row in self.rows
        ]


class TrainingStream:
    """Windows over rows of concatenated sentences (bilm-tf, data.py:281-303).

    Forward rows read `<S> w1 .. wn <S> ..` to predict `w1 .. wn </S> ..`; backward rows read the
    same sentences in the same order, `</S> wn .. w1 </S> ..`, to predict `wn .. w1 <S> ..`. A row
    takes the next sentence when it runs out of words.
    """

    def __init__(
        self,
        sentences: Iterator[list[str]],
        vocab: Vocab,
        batch_size: int,
        unroll_steps: int,
        rows: list[list[list[str]]] | None = None,
    ) -> None:
        """Start a stream, or continue one.

        Args:
            sentences: Endless sentences, as lists of words.
            vocab: Vocabulary of the targets.
            batch_size: B, the number of rows.
            unroll_steps: T, the time steps of a window.
            rows: The pending words of each row, as in `PendingRows.to_words`; empty by default.
        """
        rows = [[[], [], [], []]] * batch_size if rows is None else rows
        assert len(rows) == batch_size, (len(rows), batch_size)
        self._sentences, self._vocab, self._steps = sentences, vocab, unroll_steps
        self._number(rows)

    def _number(self, rows: list[list[list[str]]]) -> None:
        """Begin numbering words anew, with those of the pending rows."""
        self._numbers, self._first = _Numbers(self._vocab), np.zeros(0, dtype=np.int32)
        number = self._numbers.__getitem__
        self._rows = [
            np.array([list(map(number, column)) for column in row], dtype=np.int32) for row in rows
        ]

    @property
    def pending(self) -> PendingRows:
        """The pending words of each row, from which a stream can be continued."""
        # Neither is changed later; more words may be appended.
        return PendingRows(self._rows, self._numbers.words)

    def __iter__(self) -> Iterator[TrainingWindow]:
        return self

    def __next__(self) -> TrainingWindow:
        return self.next_window(slice(None))

    def next_window(self, part: slice) -> TrainingWindow:
        """The next window of some rows; the others advance as well."""
        if len(self._numbers) > len(self._vocab) + MAX_UNKNOWN:
            self._number(self.pending.to_words())
        self._fill()
        window = np.stack([row[:, : self._steps] for row in self._rows])
        self._rows = [row[:, self._steps :] for row in self._rows]
        return self._window(window[part])

    def _fill(self) -> None:
        """Append the next sentences to the rows that have too few words for a window."""
        sentences: list[list[str]] = []
        ends = []  # of each row: it takes the sentences up to this one
        for row in self._rows:
            missing = self._steps - row.shape[1]
            while missing > 0:
                sentences.append(next(self._sentences))
                missing -= len(sentences[-1]) + 1
            ends.append(len(sentences))
        columns, begins = self._columns(sentences)
        bounds = begins[[0, *ends]].tolist()
        self._rows = [
            row if begin == end else np.concatenate([row, columns[:, begin:end]], axis=1)
            for row, (begin, end) in zip(self._rows, pairwise(bounds), strict=True)
        ]

    def _columns(self, sentences: Sequence[list[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Forward inputs and targets, backward inputs and targets of sentences, (4, N); the begin
        of each, and N.
        """
        # Sentences "a b" and "c"; * is a boundary, <S> in columns 0 and 3, </S> in 1 and 2:
        #   position            0 1 2 | 3 4
        #   0 forward input     * a b | * c
        #   1 forward target    a b * | c *
        #   2 backward input    * b a | * c      row 1 with each sentence reversed
        #   3 backward target   b a * | c *      row 0 with each sentence reversed
        begins = np.cumsum([0, *(len(sentence) + 1 for sentence in sentences)])
        lengths, lasts = np.diff(begins), begins[1:] - 1
        numbers = np.fromiter(
            map(self._numbers.__getitem__, chain.from_iterable(sentences)), dtype=np.int32
        )
        columns = np.empty((4, begins[-1]), dtype=np.int32)
        for column, boundaries, number in (
            (0, begins[:-1], self._vocab.bos),
            (1, lasts, self._vocab.eos),
        ):
            is_word = np.ones(begins[-1], dtype=bool)
            is_word[boundaries] = False
            columns[column, is_word], columns[column, boundaries] = numbers, number
        mirrored = np.repeat(begins[:-1] + lasts, lengths) - np.arange(begins[-1])
        columns[2:] = columns[1::-1, mirrored]
        return columns, begins

    def _window(self, rows: np.ndarray) -> TrainingWindow:
        columns = rows.transpose(1, 2, 0).reshape(4, -1)
        inputs = columns[[0, 2]].ravel()
        if len(self._first) < len(self._numbers.words):
            self._first = np.empty(2 * len(self._numbers.words), dtype=np.int32)
        positions = np.arange(len(inputs), dtype=np.int32)
        # The first position of each number: of repeated indices, the last assignment remains.
        #   inputs      7 4 7 9 4
        #   first       0 1 0 3 1
        #   is_first    1 1 0 1 0      words 7, 4, 9
        #   tokens      0 1 0 2 1      index of the word at each position
        self._first[inputs[::-1]] = positions[::-1]
        first = self._first[inputs]
        is_first = first == positions
        tokens = (np.cumsum(is_first, dtype=np.int32) - 1)[first].reshape(2, -1)
        words = [self._numbers.words[number] for number in inputs[is_first].tolist()]
        targets = columns[[1, 3]]
        targets[targets >= len(self._vocab)] = self._vocab.unk
        return TrainingWindow(
            words, *map(torch.from_numpy, (tokens, targets, columns[0] == self._vocab.bos))
        )


@dataclass
class PendingText:
    """The text that a `SentenceStream` holds between two batches.

    Attributes:
        rest: The remaining words of a sentence that is being cut.
        excess: Positions by which the batches so far exceed their size; less than one batch.
    """

    rest: list[str] = field(default_factory=list)
    excess: int = 0


class SentenceStream:
    """Batches of whole sentences, for encoders that carry no state from one sentence to the next.

    A batch has `size` positions on average: the words, and one boundary per sentence, which is what
    each direction predicts. It ends with the sentence that reaches its size, and the next batch
    makes up for the excess. A sentence that is longer than a batch is cut into several.
    """

    def __init__(
        self, sentences: Iterator[list[str]], size: int, pending: PendingText | None = None
    ) -> None:
        """Start a stream, or continue one.

        Args:
            sentences: Endless sentences, as lists of words.
            size: Positions of a batch.
            pending: `SentenceStream.pending` of an earlier stream.

        Raises:
            ValueError: `size` is below 2, too small for a word and a boundary.
        """
        if size < 2:
            raise ValueError(
                "a batch of whole sentences needs 2 positions or more: raise batch_size or "
                "unroll_steps"
            )
        self._sentences, self._size = sentences, size
        pending = pending or PendingText()
        self._excess = pending.excess
        # Number of words read from a sentence that is being cut, which is kept whole: it may be a
        # whole book.
        self._sentence, self._done = pending.rest, 0

    @property
    def pending(self) -> PendingText:
        """The held text, from which a stream can be continued."""
        return PendingText(self._sentence[self._done :], self._excess)

    def __iter__(self) -> Iterator[list[list[str]]]:
        return self

    def __next__(self) -> list[list[str]]:
        batch, positions = [], self._excess
        while positions < self._size:
            batch.append(self._next_sentence())
            positions += len(batch[-1]) + 1
        self._excess = positions - self._size
        return batch

    def _next_sentence(self) -> list[str]:
        """The next sentence, or the next piece of one that is being cut, with at most as many
        positions as a batch.
        """
        longest = self._size - 1
        if self._done >= len(self._sentence):
            self._sentence, self._done = next(self._sentences), 0
        begin = self._done
        self._done += longest
        return self._sentence[begin : self._done]


@dataclass(frozen=True)
class PackedBatch:
    """Whole sentences as packed streams of both directions.

    Attributes:
        words: The distinct words.
        tokens: Index into `words` at each position of the streams, (2, N).
        text: The packing, which also unpacks results to the order of the sentences.
        lengths: Number of positions of each sentence.
        margin: Number of boundary tokens at either end of a sentence.
    """

    words: list[str]
    tokens: Tensor
    text: PackedText
    lengths: np.ndarray
    margin: int = 0


def embedding_batch(
    sentences: Sequence[Sequence[str]],
    rows: np.ndarray,
    num_rows: int,
    reset: bool,
    boundaries: bool = True,
) -> PackedBatch:
    """Pack sentences that both directions read completely.

    Args:
        sentences: Lists of words.
        rows: Row of each sentence in the streams.
        num_rows: Number of rows.
        reset: Whether each sentence starts from the initial state instead of the final state of the
            sentence before.
        boundaries: Whether to add <S> and </S>.

    Returns:
        The batch.
    """
    first, last = ([BOS], [EOS]) if boundaries else ([], [])
    words, indices = number_words(
        chain.from_iterable(chain(first, sentence, last) for sentence in sentences)
    )
    lengths = np.array([len(sentence) + 2 * boundaries for sentence in sentences], dtype=np.int64)
    text = PackedText.of_sentences(lengths, rows, num_rows, reset)
    tokens = text.to_streams(torch.from_numpy(np.stack([indices, indices])))
    return PackedBatch(words, tokens, text, lengths, margin=int(boundaries))


def scoring_batch(
    sentences: Sequence[Sequence[str]], rows: np.ndarray, num_rows: int, reset: bool
) -> PackedBatch:
    """Pack sentences as in training: forward reads <S> and the words, backward </S> and the words
    in reverse.

    Unpacked, position k of a sentence (from 0) predicts word k forward (</S> at the last position)
    and word k-1 backward (<S> at the first).

    Args:
        sentences: Lists of words.
        rows: Row of each sentence in the streams.
        num_rows: Number of rows.
        reset: Whether each sentence starts from the initial state instead of the final state of the
            sentence before.

    Returns:
        The batch.
    """
    forward = chain.from_iterable((BOS, *sentence) for sentence in sentences)
    backward = chain.from_iterable((*sentence, EOS) for sentence in sentences)
    words, indices = number_words(chain(forward, backward))
    lengths = np.array([len(sentence) + 1 for sentence in sentences])
    text = PackedText.of_sentences(lengths, rows, num_rows, reset)
    return PackedBatch(
        words, text.to_streams(torch.from_numpy(indices.reshape(2, -1))), text, lengths
    )


def assign_rows(lengths: Sequence[int] | np.ndarray, num_rows: int) -> np.ndarray:
    """Assign sentences to rows of about equal total length: the longest first, each to the shortest
    row.

    Args:
        lengths: The length of each of N sentences.
        num_rows: Number of rows.

    Returns:
        The row of each sentence, (N,) int64.
    """
    rows = np.zeros(len(lengths), dtype=np.int64)
    fill = [(0, row) for row in range(num_rows)]
    for sentence in np.argsort(-np.asarray(lengths), kind="stable"):
        length, row = heapq.heappop(fill)
        rows[sentence] = row
        heapq.heappush(fill, (length + int(lengths[sentence]), row))
    return rows


def chunks(items: Iterable[T], size: Callable[[T], int], least: int) -> Iterator[list[T]]:
    """Lists of consecutive items, whose sizes add up to `least`, or somewhat more; the last may be
    smaller.
    """
    chunk: list[T] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size(item)
        if total >= least:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def sentence_batches(
    sentences: Iterable[Sequence[str]], words: int
) -> Iterator[list[Sequence[str]]]:
    """Group consecutive sentences into batches.

    Args:
        sentences: Lists of words.
        words: Size of a batch in words and boundaries, two per sentence; it ends with the sentence
            that reaches it.

    Returns:
        The batches; the last may have fewer words.
    """
    return chunks(sentences, lambda sentence: len(sentence) + 2, words)
