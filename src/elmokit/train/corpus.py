"""A corpus of tokenized text files, one sentence per line: streamed in a reproducible shuffled
order, resumable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np

from elmokit.fs import read_lines
from elmokit.progress import ProgressBar
from elmokit.text import count_truncated

BLOCK_LINES, BLOCK_CHARACTERS = (
    1 << 17,
    1 << 25,
)  # maximum of a shuffled block, except for its last line


@dataclass(frozen=True)
class CorpusReport:
    """Statistics of a corpus.

    Attributes:
        files: Number of files.
        sentences: Number of lines that are not blank.
        words: Number of words.
        long_words: Number of words with more bytes than a character CNN reads by default.
        digest: Hash of the contents of the files, independent of their names and order.
        order: The indices of the files, sorted by the hashes of their contents.
    """

    files: int
    sentences: int
    words: int
    long_words: int
    digest: str
    order: tuple[int, ...]

    def in_order(self, files: Sequence[Path]) -> list[Path]:
        """The files in an order that depends on their contents alone, so that a run resumes
        whatever their names.
        """
        return [files[index] for index in self.order]

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
        digests = []
        for file in files:
            content = blake2b(digest_size=16)
            for line in ProgressBar(
                read_lines(file), desc=f"check {file.name}", unit=" lines", unit_scale=True
            ):
                content.update(f"{line}\n".encode())
                tokens = line.split()
                sentences += bool(tokens)
                words += len(tokens)
                long_words += count_truncated(tokens)
            digests.append(content.hexdigest())
        if not sentences:  # a single file may have none, as a shard of a small corpus
            raise ValueError(
                f"the corpus of {', '.join(map(str, files[:3]))} has no sentences: give text"
            )
        digest = blake2b("".join(sorted(digests)).encode(), digest_size=16).hexdigest()
        order = tuple(sorted(range(len(files)), key=digests.__getitem__))
        return cls(len(files), sentences, words, long_words, digest, order)


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

    def to_json(self) -> dict[str, int]:
        """The position as JSON values."""
        return asdict(self)


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
            position: `position.to_json()` of an earlier reader.
        """
        self.position = _Position(**position or {})
        self._files, self._seed = list(files), seed
        self._sentences = self._read()

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        return next(self._sentences)

    def _read(self) -> Iterator[list[str]]:
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
