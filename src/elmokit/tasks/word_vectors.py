"""Pretrained vectors of words, one for each, from a file of GloVe, fastText or word2vec.

Text has a word and its D numbers in each line; the first line may hold the number of words and D (word2vec, fastText)
or not (GloVe). In word2vec's binary format that first line is followed by words, each with a space and D float32.
"""

from __future__ import annotations

import io
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from elmokit.fs.reading import read_blocks
from elmokit.progress import ProgressBar

FASTTEXT_MAGIC = b"\xba\x16\x4f\x2f"  # of a fastText model (.bin)
BUFFER_SIZE = 1 << 18
MAX_DIM = 65_536  # more is no word vector, but another kind of file

Entry = tuple[str, "bytes | list[bytes]"]  # a word, and its vector as it is in the file


@dataclass(frozen=True)
class Coverage:
    """How many distinct words have a vector: as they are written, in lower case only, or not at all."""

    exact: int
    lowercase: int
    missing: int

    def __str__(self) -> str:
        total = max(self.exact + self.lowercase + self.missing, 1)
        exact, lowercase, missing = (100 * count / total for count in (self.exact, self.lowercase, self.missing))
        return (
            f"of {total:,} distinct words {exact:.1f} % have a vector, {lowercase:.1f} % have one in lower case, "
            f"{missing:.1f} % have none"
        )


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors (V, D) float32, in the order of the file."""

    words: tuple[str, ...]
    vectors: np.ndarray

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=1)}

    def number(self, word: str) -> int:
        """Row of a word, from 1; if it is missing, that of the word in lower case; 0 if that is missing, too."""
        return self._numbers.get(word) or self._numbers.get(word.lower(), 0)

    def coverage(self, words: Iterable[str]) -> Coverage:
        """How many of the distinct `words` have a vector."""
        distinct = set(words)
        exact = sum(word in self._numbers for word in distinct)
        covered = sum(self.number(word) > 0 for word in distinct)
        return Coverage(exact, covered - exact, len(distinct) - covered)


class _BlockStream(io.RawIOBase):
    """The decompressed blocks of a file as a binary stream."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        filled = 0  # fill the whole buffer, since the first lines decide the format
        while filled < len(buffer):
            while not self._rest:  # a block may be empty: that is not the end
                if (block := next(self._blocks, None)) is None:
                    return filled
                self._rest = block
            taken, self._rest = self._rest[: len(buffer) - filled], self._rest[len(buffer) - filled :]
            buffer[filled : filled + len(taken)] = taken
            filled += len(taken)
        return filled


def _are_numbers(fields: list[bytes]) -> bool:
    try:
        return bool(fields) and all(map(np.isfinite, map(float, fields)))
    except ValueError:
        return False


def _text_entries(stream: BinaryIO, path: Path, count: int | None, dim: int) -> Iterator[Entry]:
    number = 0
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        word, *fields = line.rstrip(b"\r\n ").rsplit(b" ", dim)  # a word of GloVe's may hold spaces
        if len(fields) != dim:
            raise ValueError(f"{path}: expected a word and {dim} numbers for word {number}, not {line[:60]!r}")
        yield word.decode("utf-8", "replace"), fields
    if count is not None and number < count:
        raise ValueError(f"{path} is truncated: it ends after word {number} of {count}")


def _binary_entries(stream: BinaryIO, path: Path, count: int, dim: int) -> Iterator[Entry]:
    for number in range(1, count + 1):
        word = bytearray()
        while (character := stream.read(1)) not in (b" ", b""):
            word += character
        vector = stream.read(4 * dim)
        if len(vector) < 4 * dim:
            raise ValueError(f"{path} is truncated: it ends in word {number} of {count}")
        yield bytes(word).lstrip(b"\n").decode("utf-8", "replace"), vector


def _read_entries(path: Path) -> tuple[int, Iterator[Entry]]:
    """The width of the vectors, and the entries of a file in any of the formats."""
    stream = io.BufferedReader(_BlockStream(read_blocks(path)), BUFFER_SIZE)
    if stream.peek(4).startswith(FASTTEXT_MAGIC):
        raise ValueError(f"{path} is a whole fastText model: give its file of vectors, .vec")
    head = stream.peek(BUFFER_SIZE).split(b"\n", 2)
    first = head[0].split()
    if len(first) == 2 and all(field.isdigit() for field in first):
        stream.readline()
        count, dim = map(int, first)
        if not 1 <= dim <= MAX_DIM:
            raise ValueError(f"{path}: vectors must have 1 to {MAX_DIM:,} numbers, not {dim}")
        is_text = len(head) > 1 and _are_numbers(head[1].rstrip(b"\r\n ").rsplit(b" ", dim)[1:])
        return dim, (_text_entries if is_text else _binary_entries)(stream, path, count, dim)
    if not _are_numbers(first[1:]):
        raise ValueError(f"{path} is not a file of word vectors: line 1 is not a word and its numbers")
    return len(first) - 1, _text_entries(stream, path, None, len(first) - 1)


def read_word_vectors(path: str | Path, words: Container[str], most_frequent: int = 0) -> WordVectors:
    """Read the vectors of chosen words from a file of any size; memory holds no others.

    Args:
        path: GloVe, fastText (.vec) or word2vec, as text or binary (plain, .gz or .zst).
        words: Words whose vectors are kept; give a word with capitals in lower case, too.
        most_frequent: Number of words at the beginning of the file, by convention the most frequent, to keep as well.

    Returns:
        The words that were found, and their vectors; the first one if a word has several.

    Raises:
        ValueError: The file is in another format, truncated, or holds none of the words.
        FileNotFoundError: The file is missing.
    """
    path = Path(path)
    dim, entries = _read_entries(path)
    vectors: dict[str, np.ndarray] = {}
    for number, (word, numbers) in enumerate(ProgressBar(entries, desc="word vectors", unit=" words")):
        if "\n" in word:  # possible in binary files; no sentence has it, and a task model could not store it
            continue
        if word not in vectors and (number < most_frequent or word in words):
            vectors[word] = _vector(numbers, path, word)
    if not vectors:
        raise ValueError(f"{path} has a vector for none of the words: are they of another language?")
    return WordVectors(tuple(vectors), np.stack(list(vectors.values())).reshape(-1, dim))


def _vector(numbers: bytes | list[bytes], path: Path, word: str) -> np.ndarray:
    try:
        vector = np.frombuffer(numbers, "<f4") if isinstance(numbers, bytes) else np.array(numbers, dtype=np.float32)
    except ValueError as error:
        raise ValueError(f"{path}: the vector of {word!r} is not made of numbers") from error
    if not np.isfinite(vector).all():
        raise ValueError(f"{path}: the vector of {word!r} holds a number that is not finite")
    return vector.astype(np.float32)
