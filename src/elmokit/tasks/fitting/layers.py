"""The layers of a frozen biLM: computed once for each sentence, and stored on disk.

There is one directory for each biLM, state and dtype. It holds any number of files `segment-...`,
each of which is written at once:

    index   (S,) of (digest of a sentence, number of its words), an array of NumPy
    layers  (N, L+1, 2D) float16 of all words of these sentences, raw
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.data import chunks
from elmokit.embed import Embedder
from elmokit.fs import atomic_path
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy

Words = Sequence[str]  # a tokenized sentence

SEGMENT_BYTES = 1 << 26  # of layers that are computed, held in memory and written at a time
INDEX_DTYPE = np.dtype([("digest", "S16"), ("words", np.int64)])


def default_cache() -> Path:
    """$ELMOKIT_CACHE, or elmokit in the user's cache directory."""
    if directory := os.environ.get("ELMOKIT_CACHE"):
        return Path(directory).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elmokit"


def sentence_digest(words: Words) -> bytes:
    """A hash of a tokenized sentence, 16 bytes."""
    encoded = [word.encode() for word in words]
    digest = blake2b(
        np.fromiter(map(len, encoded), np.int32, len(encoded)).tobytes(), digest_size=16
    )
    digest.update(b"".join(encoded))
    return digest.digest()


class Stored(NamedTuple):
    """The layers of a sentence: `words` rows of an array, or of a file from a byte on."""

    segment: Path | np.ndarray
    start: int  # row of the array, or byte of the file
    words: int


class LayerCache:
    """The layers of tokenized sentences, (L+1, 2D) of each word.

    Args:
        embedder: Computes missing layers; every sentence starts from the same state.
        directory: Directory for the caches of all biLMs, created if missing; None: in memory.

    Raises:
        ValueError: A file of the cache is damaged.
    """

    dtype = np.dtype(np.float16)  # half the size of float32

    def __init__(self, embedder: Embedder, directory: str | Path | None = None) -> None:
        self.embedder = embedder
        self.state: StatePolicy = embedder.model.single_sentence_state
        self.shape = (embedder.num_layers, embedder.dim)
        self._word_bytes = self.dtype.itemsize * embedder.num_layers * embedder.dim
        self._stored = {sentence_digest(()): Stored(np.empty((0, *self.shape)), 0, 0)}
        self.directory: Path | None = None
        if directory is not None:
            dtype = str(embedder.dtype).removeprefix("torch.")
            name = f"bilm-{embedder.fingerprint()[:16]}-{self.state}-{dtype}"
            self.directory = Path(directory).expanduser() / name
            for path in self.directory.glob("segment-*"):
                with path.open("rb") as file:
                    index, start = np.load(file), file.tell()
                if path.stat().st_size != start + self._word_bytes * index["words"].sum():
                    raise ValueError(
                        f"{path} is damaged: remove it, and the vectors will be computed again"
                    )
                self._register(index, path, start, self._word_bytes)

    def add(self, sentences: Iterable[Words]) -> None:
        """Compute and store the layers of sentences that are missing. OSError on a full disk."""
        distinct = {sentence_digest(words): words for words in sentences}
        missing = [words for digest, words in distinct.items() if digest not in self._stored]
        num_words, is_hidden = sum(map(len, missing)), self.directory is None
        with ProgressBar(total=num_words, desc="vectors", unit=" words", disable=is_hidden) as bar:
            for segment in chunks(missing, max(1, SEGMENT_BYTES // self._word_bytes), len):
                index = np.array(
                    [(sentence_digest(words), len(words)) for words in segment], INDEX_DTYPE
                )
                layers = self.compute(segment)
                if self.directory is None:
                    self._register(index, layers, 0, 1)
                else:
                    name = blake2b(index.tobytes(), digest_size=16).hexdigest()
                    path = self.directory / f"segment-{name}"
                    with atomic_path(path) as partial, partial.open("wb") as file:
                        np.save(file, index)
                        start = file.tell()
                        file.write(layers.data)
                    self._register(index, path, start, self._word_bytes)
                bar.update(len(layers))

    def compute(self, sentences: Sequence[Words]) -> np.ndarray:
        """The layers of all words of the sentences, (N, L+1, 2D)."""
        layers = np.empty((sum(map(len, sentences)), *self.shape), self.dtype)
        row = 0
        with np.errstate(over="raise"):  # in float16
            for batch in self.embedder.embed_stream(sentences, "all", self.state, tokenize=False):
                for of_sentence in batch:
                    end = row + of_sentence.shape[1]
                    layers[row:end] = of_sentence.swapaxes(0, 1)
                    row = end
        return layers

    def _register(
        self, index: np.ndarray, segment: Path | np.ndarray, start: int, step: int
    ) -> None:
        """Note the sentences of a segment whose layers begin at `start`, `step` for each word."""
        for digest, words in index.tolist():
            digest = digest.ljust(16, b"\0")  # NumPy drops zero bytes at the end
            self._stored[digest] = Stored(segment, start, words)
            start += step * words

    def find(self, sentences: Iterable[Words]) -> list[Stored]:
        """Where the layers of sentences are. KeyError for one that was not added."""
        return [self._stored[sentence_digest(words)] for words in sentences]

    def read(self, stored: Sequence[Stored]) -> np.ndarray:
        """The layers of several sentences, one after the other, (N, L+1, 2D)."""
        layers = np.empty((sum(sentence.words for sentence in stored), *self.shape), self.dtype)
        row = 0
        for segment, start, words in stored:
            end = row + words
            if isinstance(segment, np.ndarray):
                layers[row:end] = segment[start : start + words]
            else:  # opened each time: there may be more files than a process may hold open
                count = words * self._word_bytes // self.dtype.itemsize
                values = np.fromfile(segment, self.dtype, count, offset=start)
                layers[row:end] = values.reshape(words, *self.shape)
            row = end
        return layers
