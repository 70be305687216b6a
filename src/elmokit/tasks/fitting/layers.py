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

SEGMENT_BYTES = 1 << 26  # bytes of layers computed, held in memory and written at a time
INDEX_DTYPE = np.dtype([("digest", "S16"), ("words", np.int64)])


def default_cache() -> Path:
    """$ELMOKIT_CACHE, or elmokit in the user's cache directory; ValueError if there is none."""
    if directory := os.environ.get("ELMOKIT_CACHE"):
        return Path(directory).expanduser()
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        (caches / "elmokit").mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"vectors cannot be kept in the user's cache ({error}): name a directory for them "
            "(--cache, or the environment variable ELMOKIT_CACHE)"
        ) from error
    return caches / "elmokit"


def sentence_digest(words: Words) -> bytes:
    """A hash of a tokenized sentence, 16 bytes."""
    encoded = [word.encode() for word in words]
    digest = blake2b(
        np.fromiter(map(len, encoded), np.int32, len(encoded)).tobytes(), digest_size=16
    )
    digest.update(b"".join(encoded))
    return digest.digest()


class InFile(NamedTuple):
    """The location of a sentence's layers on disk."""

    segment: Path
    start: int  # byte
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
        # The layers of each sentence, (T, L+1, 2D), by its digest.
        self._stored: dict[bytes, InFile | np.ndarray] = {
            sentence_digest(()): np.empty((0, *self.shape), self.dtype)
        }
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
                self._register(index, path, start)

    def add(self, sentences: Iterable[Words]) -> None:
        """Compute and store the layers of sentences that are missing. OSError on a full disk."""
        distinct = {sentence_digest(words): words for words in sentences}
        missing = [words for digest, words in distinct.items() if digest not in self._stored]
        num_words, is_hidden = sum(map(len, missing)), self.directory is None
        with ProgressBar(total=num_words, desc="vectors", unit=" words", disable=is_hidden) as bar:
            for segment in chunks(missing, max(1, SEGMENT_BYTES // self._word_bytes), len):
                digests, lengths = list(map(sentence_digest, segment)), list(map(len, segment))
                layers = self.compute(segment)
                if self.directory is None:
                    of_sentences = np.split(layers, np.cumsum(lengths)[:-1])
                    self._stored |= zip(digests, of_sentences, strict=True)
                else:
                    index = np.array(list(zip(digests, lengths, strict=True)), INDEX_DTYPE)
                    name = blake2b(index.tobytes(), digest_size=16).hexdigest()
                    path = self.directory / f"segment-{name}"
                    with atomic_path(path) as partial, partial.open("wb") as file:
                        np.save(file, index)
                        start = file.tell()
                        file.write(layers.data)
                    self._register(index, path, start)
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

    def _register(self, index: np.ndarray, segment: Path, start: int) -> None:
        """Note the sentences of a segment, whose layers begin at the byte `start`."""
        for digest, words in index.tolist():
            digest = digest.ljust(16, b"\0")  # NumPy drops zero bytes at the end
            self._stored[digest] = InFile(segment, start, words)
            start += words * self._word_bytes

    def find(self, sentences: Iterable[Words]) -> list[InFile | np.ndarray]:
        """Locations of sentences' layers. KeyError for one that was not added."""
        return [self._stored[sentence_digest(words)] for words in sentences]

    def read(self, stored: Iterable[InFile | np.ndarray]) -> np.ndarray:
        """The layers of several sentences, one after the other, (N, L+1, 2D)."""
        parts = []
        for layers in stored:
            if isinstance(layers, InFile):
                # Opened each time: there may be more files than a process may hold open.
                count = layers.words * self._word_bytes // self.dtype.itemsize
                values = np.fromfile(layers.segment, self.dtype, count, offset=layers.start)
                layers = values.reshape(-1, *self.shape)
            parts.append(layers)
        return np.concatenate(parts)
