"""A corpus of tokenized text files, one sentence per line: streamed in a reproducible shuffled
order, and cut into batches to train on; resumable.

    files -> SentenceReader, shuffled -> TrainingStream: windows of rows whose state is carried
                                      -> SentenceStream: whole sentences
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, count, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elmokit.fs import read_lines
from elmokit.progress import ProgressBar
from elmokit.text import Vocab, count_truncated

# Maximum of a shuffled block, except for its last line.
BLOCK_LINES, BLOCK_CHARACTERS = 1 << 17, 1 << 25
# Words outside the vocabulary that a `TrainingStream` keeps numbered, in about 200 MB.
MAX_UNKNOWN = 1 << 20


# --- Files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CorpusReport:
    """Statistics of a corpus.

    Attributes:
        files: Number of files.
        sentences: Number of lines that are not blank.
        words: Number of words.
        long_words: Number of words with more bytes than a character CNN reads by default.
        digest: Hash of the contents of the files, in their order.
    """

    files: int
    sentences: int
    words: int
    long_words: int
    digest: str

    @property
    def stream_tokens(self) -> int:
        """Number of positions of one direction of the token stream: words and one boundary per
        sentence.
        """
        return self.words + self.sentences

    @classmethod
    def of(cls, files: Sequence[Path]) -> CorpusReport:
        """Read a corpus once to count its words and check it, before hours are spent on training.

        Args:
            files: Text files (plain, .gz or .zst).

        Returns:
            The statistics.

        Raises:
            ValueError: A file is not UTF-8 (the message names the line), or no file has a sentence.
        """
        sentences = words = long_words = 0
        digest = blake2b(digest_size=16)
        for file in files:
            lines, title = read_lines(file), f"check {file.name}"
            for line in ProgressBar(lines, title, unit=" lines", unit_scale=True):
                digest.update(f"{line}\n".encode())
                tokens = line.split()
                sentences += bool(tokens)
                words += len(tokens)
                long_words += count_truncated(tokens)
            digest.update(b"\0")  # a line that moves to the next file is read in another order
        if not sentences:  # a single file may have none, as a shard of a small corpus
            raise ValueError(
                f"the corpus of {', '.join(map(str, files[:3]))} has no sentences: give text"
            )
        return cls(len(files), sentences, words, long_words, digest.hexdigest())


def _blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    """Blocks of lines that are held in memory and shuffled together."""
    block, characters = [], 0
    for line in lines:
        block.append(line)
        characters += len(line)
        if len(block) >= BLOCK_LINES or characters >= BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block


@dataclass(frozen=True)
class _Position:
    """A position in a corpus.

    Attributes:
        epoch: The pass, from 0.
        file: Index in the shuffled order of files of that pass.
        block: Index of the block of lines in the file.
        taken: Number of sentences already read from the block.
    """

    epoch: int = 0
    file: int = 0
    block: int = 0
    taken: int = 0


class SentenceReader:
    """An endless stream of the sentences of a corpus, in a new order in each pass; `position` is
    where to resume.

    Each pass shuffles the files, and the sentences within blocks of lines.
    """

    def __init__(
        self, files: Sequence[Path], seed: int, position: dict[str, int] | None = None
    ) -> None:
        """Start reading.

        Args:
            files: Text files (plain, .gz or .zst) with one sentence per line, of which
                `CorpusReport.of` has found one.
            seed: Seed of the order.
            position: The fields of the `position` of an earlier reader.
        """
        self.position = _Position(**position or {})
        self._files, self._seed = list(files), seed
        self._sentences = self._read()

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        return next(self._sentences)

    def _read(self) -> Iterator[list[str]]:
        # Two files, the second of two blocks, in pass 0 of seed 7:
        #
        #   order of files                 1, 0            by (7, 0)
        #   blocks of file 1               c d e | f g     by (7, 0, 1, 0) and (7, 0, 1, 1)
        #   sentences that are given       d e c   g f   then those of file 0
        #
        # `position` is (epoch 0, file 0, block 1, taken 1) after g: each permutation can be drawn
        # again from the seed and the position, so a snapshot needs no more than these four numbers.
        while True:
            order = self._shuffled(len(self._files), self.position.epoch)
            for index in range(self.position.file, len(order)):
                self.position = replace(self.position, file=index)
                yield from self._read_file(order[index])
                self.position = _Position(self.position.epoch, index + 1)
            self.position = _Position(self.position.epoch + 1)

    def _read_file(self, number: int) -> Iterator[list[str]]:
        lines = (line for line in read_lines(self._files[number]) if line.strip())
        for block in islice(_blocks(lines), self.position.block, None):
            order = self._shuffled(len(block), self.position.epoch, number, self.position.block)
            for index in order[self.position.taken :]:
                self.position = replace(self.position, taken=self.position.taken + 1)
                yield block[index].split()
            self.position = replace(self.position, block=self.position.block + 1, taken=0)

    def _shuffled(self, count: int, *key: int) -> np.ndarray:
        return np.random.default_rng([self._seed, *key]).permutation(count)


# --- Windows of rows ------------------------------------------------------------------------------


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
    """Numbers words: by their ids in the vocabulary, other words by the ids that follow."""

    def __init__(self, vocab: Vocab) -> None:
        super().__init__(zip(vocab.words, count()))
        self.words = list(vocab.words)

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self.words)
        self.words.append(word)
        return number


class _PendingRows(NamedTuple):
    """Unconsumed token ids of each row, (4, N), and the id-to-word list.

    The four: forward inputs, forward targets, backward inputs, backward targets.
    """

    rows: list[np.ndarray]
    words: list[str]

    def to_json(self) -> list[list[list[str]]]:
        """Convert the ids of each row to words."""
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
        pending: list[list[list[str]]] | None = None,
    ) -> None:
        """Start a stream, or continue one.

        Args:
            sentences: Endless sentences, as lists of words.
            vocab: Vocabulary of the targets.
            batch_size: B, the number of rows.
            unroll_steps: T, the time steps of a window.
            pending: `pending.to_json()` of an earlier stream.
        """
        rows = pending or [[[], [], [], []]] * batch_size
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
    def pending(self) -> _PendingRows:
        """The pending words of each row, from which a stream can be continued."""
        # Neither is changed later; more words may be appended.
        return _PendingRows(self._rows, self._numbers.words)

    def __next__(self) -> TrainingWindow:
        return self.next_window(slice(None))

    def next_window(self, part: slice) -> TrainingWindow:
        """The next window of some rows; the others advance as well."""
        if len(self._numbers) > len(self._vocab) + MAX_UNKNOWN:
            self._number(self.pending.to_json())
        self._fill()
        # With T = 3, each row gives its first three columns, and keeps the rest for the next one:
        #
        #   row 0   * a b | * c d        row 1   * e f | g h *
        window = np.stack([row[:, : self._steps] for row in self._rows])
        self._rows = [row[:, self._steps :] for row in self._rows]
        return self._window(window[part])

    def _fill(self) -> None:
        """Append the next sentences to the rows that have too few words for a window."""
        # The rows in their order each take sentences until they have T positions. With T = 3:
        #
        #   row 0   c        takes  a b    -> c * a b      `missing` 2, then -1
        #   row 1   d e f    takes  none   -> d e f        `missing` 0
        #   row 2            takes  g, h i -> * g * h i    `missing` 3, then 1, then -2
        #
        # The sentences of all rows become columns at once: `ends` is 1, 1, 3.
        sentences: list[list[str]] = []
        ends = []  # for each row, the end of the sentences that it takes
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
        """Forward inputs and targets, backward inputs and targets of sentences, (4, N), and the
        start offsets of the sentences, ending with N.
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


# --- Whole sentences ------------------------------------------------------------------------------


class _PendingText(NamedTuple):
    """The text that a `SentenceStream` holds between two batches.

    Attributes:
        rest: The remaining words of a sentence that is being cut.
        excess: Positions by which the batches so far exceed their size; less than one batch.
    """

    rest: list[str]
    excess: int

    def to_json(self) -> dict[str, Any]:
        """Convert the pending text to JSON values."""
        return self._asdict()


class SentenceStream:
    """Batches of whole sentences, for encoders that carry no state from one sentence to the next.

    A batch has `size` positions on average: the words, and one boundary per sentence, which is what
    each direction predicts. It ends with the sentence that reaches its size, and the next batch
    makes up for the excess. A sentence that is longer than a batch is cut into several.
    """

    def __init__(
        self, sentences: Iterator[list[str]], size: int, pending: dict[str, Any] | None = None
    ) -> None:
        """Start a stream, or continue one.

        Args:
            sentences: Endless sentences, as lists of words.
            size: Positions of a batch.
            pending: `pending.to_json()` of an earlier stream.

        Raises:
            ValueError: `size` is below 2, too small for a word and a boundary.
        """
        if size < 2:
            raise ValueError(
                "a batch of whole sentences needs 2 positions or more: raise batch_size or "
                "unroll_steps"
            )
        self._sentences, self._size = sentences, size
        held = _PendingText(**pending or {"rest": [], "excess": 0})
        # Number of words read from a sentence that is being cut, which is kept whole: it may be a
        # whole book.
        self._sentence, self._done, self._excess = held.rest, 0, held.excess

    @property
    def pending(self) -> _PendingText:
        """The held text, from which a stream can be continued."""
        return _PendingText(self._sentence[self._done :], self._excess)

    def __next__(self) -> list[list[str]]:
        # With size 10, sentences of 4, 3, 5 and 6 positions:
        #
        #   batch 0   4 + 3 + 5 = 12     `excess` 2, by which the next batch is shorter
        #   batch 1   2 + 6 + ...
        batch, positions = [], self._excess
        while positions < self._size:
            if self._done >= len(self._sentence):
                self._sentence, self._done = next(self._sentences), 0
            begin = self._done
            self._done += self._size - 1  # words, which with one boundary are a batch
            batch.append(self._sentence[begin : self._done])
            positions += len(batch[-1]) + 1
        self._excess = positions - self._size
        return batch
