"""Words on their way to a file: counted and put by before what depends on their number is written."""

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

IN_MEMORY = 1 << 20  # bytes of words that wait in memory; more of them wait on disk
WORDS_TOGETHER = 4096  # put by at once: a sentence has too few for what that costs
BETWEEN = "\0"  # a character that words hardly have


def _cut_by_characters(token_bytes: bytes, bounds: np.ndarray) -> list[str]:
    text = token_bytes.decode("utf-8", "surrogatepass")
    if len(text) < len(token_bytes):  # a character is where a byte does not go on with another one
        is_first = (np.frombuffer(token_bytes, np.uint8) & 0xC0) != 0x80
        bounds = np.concatenate([[0], np.cumsum(is_first)])[bounds]
    return [text[begin:end] for begin, end in pairwise(bounds.tolist())]


def cut_words(token_bytes: bytes, offsets: np.ndarray) -> list[str]:
    """The words that lie end to end in `token_bytes`; `offsets`, where they begin, may count from elsewhere."""
    bounds = offsets - offsets[0]
    apart = np.insert(np.frombuffer(token_bytes, np.uint8), bounds[1:-1], ord(BETWEEN))
    words = apart.tobytes().decode("utf-8", "surrogatepass").split(BETWEEN)
    return words if len(words) == len(bounds) - 1 else _cut_by_characters(token_bytes, bounds)


def _encoded(word: str) -> bytes:
    return word.encode("utf-8", "surrogatepass")


class TokenSpool:
    """The words of sentences on their way to a part: in once, in order; out in any stretch, at any time.

    Several threads may read them once all are in. Its files are closed when nothing refers to it any more.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        """`directory` is where they lie when they are many, in files without a name."""
        self.offsets = [0]  # sentence s is the words offsets[s] : offsets[s + 1]
        self.num_words = 0
        self._waiting: list[str] = []  # the last ones, which are not put by yet
        self._bytes_put_by = 0
        folder = None if directory is None else str(directory)
        self._bytes = SpooledTemporaryFile(IN_MEMORY, dir=folder)  # noqa: SIM115  (closed below)
        self._token_offsets = SpooledTemporaryFile(IN_MEMORY, dir=folder)  # noqa: SIM115
        self._token_offsets.write(np.zeros(1, np.int64).tobytes())
        self._lock = Lock()  # between a seek and what is read or written there
        for file in (self._bytes, self._token_offsets):
            weakref.finalize(self, file.close)

    def add_sentence(self, pieces: Iterable[Sequence[str]]) -> None:
        """One sentence, whose words may come in pieces."""
        for words in pieces:
            self._waiting += words
            self.num_words += len(words)
            if len(self._waiting) >= WORDS_TOGETHER:
                with self._lock:
                    self._put_by()
        self.offsets.append(self.num_words)

    @property
    def num_bytes(self) -> int:
        with self._lock:
            self._put_by()
        return self._bytes_put_by

    def words(self, begin: int, end: int) -> list[str]:
        """Words begin : end of all that were added."""
        with self._lock:
            self._put_by()
            self._token_offsets.seek(8 * begin)
            offsets = np.frombuffer(self._token_offsets.read(8 * (end + 1 - begin)), np.int64)
            self._bytes.seek(int(offsets[0]))
            token_bytes = self._bytes.read(int(offsets[-1] - offsets[0]))
        return cut_words(token_bytes, offsets)

    def sentences(self) -> list[SpooledSentence]:
        """All sentences; their words are read when asked for."""
        return [SpooledSentence(self, begin, end) for begin, end in pairwise(self.offsets)]

    def copy_to(self, file: IO[bytes], token_offsets_at: int, token_bytes_at: int) -> None:
        """Write both tensors of words to their places in a file."""
        with self._lock:
            self._put_by()
            for source, place in ((self._token_offsets, token_offsets_at), (self._bytes, token_bytes_at)):
                source.seek(0)
                file.seek(place)
                shutil.copyfileobj(source, file)

    def _put_by(self) -> None:
        """What waits goes to its files; the lock is held."""
        joined = "".join(self._waiting)
        encoded = joined.encode("utf-8", "surrogatepass")
        words = self._waiting if len(encoded) == len(joined) else map(_encoded, self._waiting)
        sizes = np.fromiter(map(len, words), np.int64, len(self._waiting))
        for file, content in (
            (self._bytes, encoded),
            (self._token_offsets, (self._bytes_put_by + np.cumsum(sizes)).tobytes()),
        ):
            file.seek(0, 2)
            file.write(content)
        self._bytes_put_by += len(encoded)
        self._waiting.clear()


@dataclass(frozen=True)
class SpooledSentence(Sequence[str]):
    """A sentence in a spool: slices of it are read when they are asked for."""

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
    """The words of sentences that follow one another in a spool, read at once."""
    first = sentences[0].begin
    words = sentences[0].spool.words(first, sentences[-1].end)
    return [words[sentence.begin - first : sentence.end - first] for sentence in sentences]
