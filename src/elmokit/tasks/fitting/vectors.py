"""Pretrained vectors of words, one for each, from a file of GloVe, fastText or word2vec.

Text has a word and its D numbers in each line; the first line may hold the number of words and D (word2vec, fastText)
or not (GloVe). In word2vec's binary format, files named .bin, that line is followed by words, each with a space and D
float32.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from elmokit.fs.reading import read_blocks, read_line_blocks, suffixes_of
from elmokit.progress import ProgressBar


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


def _read_text(path: Path) -> Iterator[tuple[bytes, list[bytes]]]:
    lines = (line for block in read_line_blocks(path) for line in block if line.strip())
    dim = count = number = 0
    for number, line in enumerate(lines):
        fields = line.split()
        if number == 0:
            if len(fields) == 2 and all(field.isdigit() for field in fields):
                count, dim = map(int, fields)
                continue
            dim = len(fields) - 1
        word, *numbers = line.rstrip(b"\r ").rsplit(b" ", dim)  # a word of GloVe's may hold spaces
        if len(numbers) != dim or not numbers:
            raise ValueError(f"{path}: line {number + 1} is not a word and {dim or 'its'} numbers: {line[:60]!r}")
        yield word, numbers
    if number < count:
        raise ValueError(f"{path} is truncated: it ends after word {number} of {count}")


def _read_binary(path: Path) -> Iterator[tuple[bytes, np.ndarray]]:
    blocks = read_blocks(path)
    head, _, rest = next(blocks, b"").partition(b"\n")
    count, dim = map(int, head.split())
    for block in chain([b""], blocks):
        rest, position = rest + block, 0
        while (space := rest.find(b" ", position)) >= 0 and (end := space + 1 + 4 * dim) <= len(rest):
            yield rest[position:space].lstrip(b"\n"), np.frombuffer(rest, "<f4", dim, space + 1)
            position, count = end, count - 1
        rest = rest[position:]
    if count > 0:
        raise ValueError(f"{path} is truncated: it lacks {count} words")


def read_word_vectors(path: str | Path, words: Container[str], most_frequent: int = 0) -> WordVectors:
    """Read the vectors of chosen words from a file of any size; memory holds no others.

    Args:
        path: GloVe, fastText (.vec) or word2vec, as text or, if named .bin, binary (plain, .gz or .zst).
        words: Words whose vectors are kept; give a word with capitals in lower case, too.
        most_frequent: Number of words at the beginning of the file, by convention the most frequent, to keep as well.

    Returns:
        The words that were found, and their vectors; the first one if a word has several.

    Raises:
        ValueError: The file is in another format, truncated, or holds none of the words.
        FileNotFoundError: The file is missing.
    """
    path = Path(path)
    read = _read_binary if suffixes_of(path).kind == ".bin" else _read_text
    vectors: dict[str, np.ndarray] = {}
    for number, (encoded, numbers) in enumerate(ProgressBar(read(path), desc="word vectors", unit=" words")):
        word = encoded.decode("utf-8", "replace")
        if word not in vectors and (number < most_frequent or word in words):
            vectors[word] = np.array(numbers, np.float32)
    if not vectors:
        raise ValueError(f"{path} has a vector for none of the words: are they of another language?")
    return WordVectors(tuple(vectors), np.stack(list(vectors.values())))
