"""The words of a shard, collected on disk: their number must be known before the file is allocated."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import SpooledTemporaryFile
from threading import Lock
from typing import IO, overload

import numpy as np

IN_MEMORY = 1 << 20  # bytes of words that are held in memory; beyond, they go to disk
BUFFERED_WORDS = 4096  # that are written at once, since a sentence has too few to be worth a write
SEPARATOR = "\0"  # a character that words hardly ever contain


def _split_by_characters(token_bytes: bytes, bounds: np.ndarray) -> list[str]:
    text = token_bytes.decode("utf-8", "surrogatepass")
    if len(text) < len(token_bytes):  # a byte begins a character unless it is a continuation byte
        is_first = (np.frombuffer(token_bytes, np.uint8) & 0xC0) != 0x80
        bounds = np.concatenate([[0], np.cumsum(is_first)])[bounds]
    return [text[begin:end] for begin, end in pairwise(bounds.tolist())]


def cut_words(token_bytes: bytes, offsets: np.ndarray) -> list[str]:
    """Split the concatenated bytes of n words.

    Args:
        token_bytes: The words in UTF-8, one after the other.
        offsets: The byte at which each word begins, and the end of the last, (n+1,); the first need not be 0.
    """
    bounds = offsets - offsets[0]
    separated = np.insert(np.frombuffer(token_bytes, np.uint8), bounds[1:-1], ord(SEPARATOR))
    words = separated.tobytes().decode("utf-8", "surrogatepass").split(SEPARATOR)
    return words if len(words) == len(bounds) - 1 else _split_by_characters(token_bytes, bounds)


def _encoded(word: str) -> bytes:
    return word.encode("utf-8", "surrogatepass")


class TokenSpool:
    """The words of a shard's sentences, added in order and read by range at any time.

    Several threads may read once all words are added. Its temporary files are closed when it is freed.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        """`directory` is where the nameless temporary files go if there are many words; None: the system's default."""
        self.offsets = [0]  # sentence s is the words offsets[s] : offsets[s + 1]
        self.num_words = 0
        self._buffered: list[str] = []  # the last words, not written yet
        self._bytes_written = 0
        folder = None if directory is None else str(directory)
        self._bytes = SpooledTemporaryFile(IN_MEMORY, dir=folder)  # noqa: SIM115  (closed below)
        self._token_offsets = SpooledTemporaryFile(IN_MEMORY, dir=folder)  # noqa: SIM115
        self._token_offsets.write(np.zeros(1, np.int64).tobytes())
        self._lock = Lock()  # held from a seek to the read or write
        for file in (self._bytes, self._token_offsets):
            weakref.finalize(self, file.close)

    def add_sentence(self, chunks: Iterable[Sequence[str]]) -> None:
        """Add a sentence, whose words come in one or more chunks."""
        for words in chunks:
            self._buffered += words
            self.num_words += len(words)
            if len(self._buffered) >= BUFFERED_WORDS:
                with self._lock:
                    self._flush()
        self.offsets.append(self.num_words)

    @property
    def num_bytes(self) -> int:
        with self._lock:
            self._flush()
        return self._bytes_written

    def words(self, begin: int, end: int) -> list[str]:
        """Read the words begin : end of all that were added."""
        with self._lock:
            self._flush()
            self._token_offsets.seek(8 * begin)
            offsets = np.frombuffer(self._token_offsets.read(8 * (end + 1 - begin)), np.int64)
            self._bytes.seek(int(offsets[0]))
            token_bytes = self._bytes.read(int(offsets[-1] - offsets[0]))
        return cut_words(token_bytes, offsets)

    def sentences(self) -> list[SpooledSentence]:
        """All sentences; their words are read when needed."""
        return [SpooledSentence(self, begin, end) for begin, end in pairwise(self.offsets)]

    def copy_to(self, file: IO[bytes], token_offsets_at: int, token_bytes_at: int) -> None:
        """Write the words' two tensors, `token_offsets` and `token_bytes`, at the given offsets of a file."""
        with self._lock:
            self._flush()
            for source, place in ((self._token_offsets, token_offsets_at), (self._bytes, token_bytes_at)):
                source.seek(0)
                file.seek(place)
                shutil.copyfileobj(source, file)

    def _flush(self) -> None:
        """Write the buffered words to the files; the caller holds the lock."""
        joined = "".join(self._buffered)
        encoded = joined.encode("utf-8", "surrogatepass")
        words = self._buffered if len(encoded) == len(joined) else map(_encoded, self._buffered)
        sizes = np.fromiter(map(len, words), np.int64, len(self._buffered))
        for file, content in (
            (self._bytes, encoded),
            (self._token_offsets, (self._bytes_written + np.cumsum(sizes)).tobytes()),
        ):
            file.seek(0, 2)
            file.write(content)
        self._bytes_written += len(encoded)
        self._buffered.clear()


@dataclass(frozen=True)
class SpooledSentence(Sequence[str]):
    """A sentence in a spool, whose words and slices are read when needed."""

    spool: TokenSpool
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...
    def __getitem__(self, which: int | slice) -> str | list[str]:
        chosen = range(self.begin, self.end)[which]
        if isinstance(chosen, int):
            return self.spool.words(chosen, chosen + 1)[0]
        first, last = sorted((chosen[0], chosen[-1])) if chosen else (self.begin, self.begin - 1)
        return self.spool.words(first, last + 1)[:: chosen.step]


def read_together(sentences: Sequence[SpooledSentence]) -> list[list[str]]:
    """Read the words of consecutive sentences of a spool at once."""
    first = sentences[0].begin
    words = sentences[0].spool.words(first, sentences[-1].end)
    return [words[sentence.begin - first : sentence.end - first] for sentence in sentences]
