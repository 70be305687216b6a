"""A corpus of tokenized text files, one sentence a line: streamed, in a fixed shuffled order, resumable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np

from elmokit.fs.reading import decode_line, read_line_blocks, read_lines, refuse_pipe
from elmokit.text.characters import count_truncated

LINES_AT_ONCE, CHARACTERS_AT_ONCE = 1 << 17, 1 << 25  # of a block: about 20 MB of text, never much over 32
TEXT_SUFFIXES = (".txt", ".txt.gz", ".txt.zst")


@dataclass(frozen=True)
class CorpusReport:
    """What a corpus holds. `long_words` have more bytes than a character encoder of `max_characters` reads.

    `digest` tells corpora apart by what is in their files, not by their names or order.
    """

    files: int
    sentences: int
    words: int
    blank_lines: int
    long_words: int
    digest: str

    @property
    def stream_tokens(self) -> int:
        """Positions of a packed stream in one direction: every word and one boundary a sentence."""
        return self.words + self.sentences


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """Files as they are, directories as the text files in them, sorted.

    FileNotFoundError where there is nothing, ValueError for a pipe.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        refuse_pipe(path)
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.name.endswith(TEXT_SUFFIXES))
            if not inside:
                raise FileNotFoundError(f"{path} holds no text files ({', '.join(TEXT_SUFFIXES)})")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f"{path} is neither a file nor a directory: check the path")
    return found


def _decoded(block: list[bytes], file: Path, number: int) -> str:
    """The lines after line `number`, at once; one by one where they are not UTF-8, to name the line."""
    try:
        return b"\n".join(block).decode("utf-8")
    except UnicodeDecodeError:
        for offset, line in enumerate(block, start=1):
            decode_line(line, file, number + offset)
        raise


def check_corpus(files: Sequence[Path], max_characters: int = 50) -> CorpusReport:
    """Read everything once, before hours are spent on it.

    ValueError for invalid UTF-8 (file and line) and for empty files.
    """
    sentences = words = blank_lines = long_words = 0
    digests = []
    for file in files:
        before, number, content = sentences, 0, blake2b(digest_size=16)
        for block in read_line_blocks(file):
            text = _decoded(block, file, number)
            content.update(text.encode() + b"\n")
            number += len(block)
            real = sum(1 for line in text.split("\n") if line.strip())
            sentences, blank_lines = sentences + real, blank_lines + len(block) - real
            found = text.split()
            words += len(found)
            long_words += count_truncated(found, max_characters)
        if sentences == before:
            raise ValueError(f"{file} holds no sentence: remove it from the corpus, or fill it")
        digests.append(content.hexdigest())
    digest = blake2b("".join(sorted(digests)).encode(), digest_size=16).hexdigest()
    return CorpusReport(len(files), sentences, words, blank_lines, long_words, digest)


def _blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    """Lines in groups that are shuffled together, and so held in memory."""
    block, characters = [], 0
    for line in lines:
        block.append(line)
        characters += len(line)
        if len(block) >= LINES_AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield block
            block, characters = [], 0
    if block:
        yield block


@dataclass(frozen=True)
class Position:
    """How far a corpus was read: pass, place in that pass's order of files, block of lines, sentences taken from it."""

    epoch: int = 0
    file: int = 0
    block: int = 0
    taken: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


class SentenceReader:
    """Endless sentences of a corpus, pass after pass; `position` says where to go on.

    The order of files and, within blocks of lines, of sentences is shuffled anew in each pass, as `seed` says. With
    several workers each takes every `world`-th sentence.
    """

    def __init__(
        self, files: Sequence[Path], seed: int, position: Position = Position(), rank: int = 0, world: int = 1
    ) -> None:
        self.position = position
        self._files, self._seed, self._rank, self._world = list(files), seed, rank, world
        self._sentences = self._read()

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        return next(self._sentences)

    def _read(self) -> Iterator[list[str]]:
        while True:
            order = self._shuffled(len(self._files), self.position.epoch)
            for place in range(self.position.file, len(order)):
                self.position = replace(self.position, file=place)
                yield from self._read_file(order[place])
                self.position = Position(self.position.epoch, place + 1)
            self.position = Position(self.position.epoch + 1)

    def _read_file(self, number: int) -> Iterator[list[str]]:
        lines = (line for line in read_lines(self._files[number]) if line.strip())
        for block in islice(_blocks(lines), self.position.block, None):
            order = self._shuffled(len(block), self.position.epoch, number, self.position.block)[
                self._rank :: self._world
            ]
            for index in order[self.position.taken :]:
                self.position = replace(self.position, taken=self.position.taken + 1)
                yield block[index].split()
            self.position = replace(self.position, block=self.position.block + 1, taken=0)

    def _shuffled(self, count: int, *key: int) -> np.ndarray:
        return np.random.default_rng([self._seed, *key]).permutation(count)
