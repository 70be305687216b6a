"""The vectors of a frozen encoder, computed once for each distinct sentence and stored on disk.

There is one directory for each encoder. It holds any number of segments, each of two files:

segment-XXXXXXXX.vectors.npy   (N, L, D), the vectors of all words, concatenated
segment-XXXXXXXX.index.npy     (S,) of (digest of the sentence, first word, number of words)

A segment is valid once its index exists, which is renamed last: a killed run loses only the segment that it was
writing. All runs share the directory; a sentence is computed twice only if two of them need it at the same time.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np

from elmokit.config import StatePolicy
from elmokit.embed.embedder import Embedder
from elmokit.fs.atomic import atomic_path, remove_leftovers
from elmokit.fs.paths import expand_user
from elmokit.progress import ProgressBar
from elmokit.storage.shard import nothing_overflows
from elmokit.text.characters import TruncationWarning

Words = Sequence[str]  # a tokenized sentence

SEGMENT_BYTES = 1 << 26  # of vectors that are computed, held in memory and written at a time
INDEX_DTYPE = np.dtype([("digest", "S16"), ("first", np.int64), ("words", np.int64)])


class FrozenEncoder(Protocol):
    """An encoder whose vectors of a sentence never change."""

    name: str  # identifies its vectors; part of a file name
    shape: tuple[int, int]  # of one word's vectors, (L, D)

    def vectors(self, sentences: Sequence[Words], dtype: str) -> np.ndarray:
        """The vectors of all words of the sentences, concatenated, (N, L, D) in `dtype`."""
        ...


class BiLMLayers:
    """The layers of a biLM as a frozen encoder, (L+1, 2D) per word; every sentence starts from the same state."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._state: StatePolicy = embedder.model.single_sentence_state
        dtype = str(embedder.dtype).removeprefix("torch.")
        self.name = f"bilm-{embedder.fingerprint()[:16]}-{self._state}-{dtype}"
        self.shape = (embedder.num_layers, embedder.dim)

    def vectors(self, sentences: Sequence[Words], dtype: str) -> np.ndarray:
        vectors = np.empty((sum(map(len, sentences)), *self.shape), dtype)
        row = 0
        with nothing_overflows(vectors.dtype):
            for batch in self._embedder.embed_stream(sentences, "all", self._state, tokenize=False):
                for layers in batch:
                    vectors[row : row + layers.shape[1]] = layers.swapaxes(0, 1)
                    row += layers.shape[1]
        return vectors

    def warn_of_truncated(self, sentences: Iterable[Words]) -> None:
        """Warn if words are longer than the biLM reads, whether or not their vectors have been computed before."""
        count = self._embedder.count_truncated
        if truncated := [word for word in {word for words in sentences for word in words} if count([word])]:
            kinds = "1 distinct word is" if len(truncated) == 1 else f"{len(truncated)} distinct words are"
            message = f"{kinds} longer than the biLM reads and truncated, such as {min(truncated)[:60]!r}"
            warnings.warn(message, TruncationWarning, stacklevel=3)


def default_cache() -> Path:
    """$ELMOKIT_CACHE, or elmokit in the user's cache directory."""
    own = os.environ.get("ELMOKIT_CACHE")
    return expand_user(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elmokit"


def sentence_digest(words: Words) -> bytes:
    """A hash of a tokenized sentence, 16 bytes."""
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    digest = blake2b(np.fromiter(map(len, encoded), np.int32, len(encoded)).tobytes(), digest_size=16)
    digest.update(b"".join(encoded))
    return digest.digest()


@dataclass(frozen=True)
class Place:
    """The position of a sentence's vectors: rows `first : first + words` of a segment."""

    segment: int
    first: int
    words: int


class _FileSegment:
    """A file of vectors, read without a memory map, whose pages would count as memory of the process."""

    def __init__(self, path: Path) -> None:
        vectors = np.load(path, mmap_mode="r")
        self.shape, self.dtype = vectors.shape, vectors.dtype
        self._path, self._offset, self._row_bytes = path, vectors.offset, vectors[:1].nbytes

    def read_into(self, rows: np.ndarray, first: int) -> None:
        # Opened anew each time: a large cache has more segments than a process may hold open files.
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._offset + first * self._row_bytes)
            if file.readinto(rows.reshape(-1).view(np.uint8).data) != rows.nbytes:
                raise ValueError(f"{self._path} is truncated: remove its directory; the vectors will be computed again")


class _MemorySegment:
    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors = vectors

    def read_into(self, rows: np.ndarray, first: int) -> None:
        rows[:] = self._vectors[first : first + len(rows)]


def _vectors_of(index: Path) -> Path:
    """The file of vectors of the segment with this index."""
    return index.with_name(index.name.replace(".index.", ".vectors."))


def _save(array: np.ndarray, path: Path) -> None:
    """As np.save, whose error on a full disk does not say that it is full."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(np.ascontiguousarray(array).data)


def _split_into_segments(sentences: Iterable[Words], max_words: int) -> Iterator[list[Words]]:
    """Lists of sentences, each with `max_words` words, or somewhat more."""
    segment: list[Words] = []
    words = 0
    for sentence in sentences:
        segment.append(sentence)
        words += len(sentence)
        if words >= max_words:
            yield segment
            segment, words = [], 0
    if segment:
        yield segment


class _Places:
    """The places of sentences by digest: sorted arrays, which take a fifth of the memory of a dictionary."""

    def __init__(self) -> None:
        self._digests, self._places = np.empty(0, "S16"), np.empty((0, 3), np.int64)
        self._new: list[tuple[np.ndarray, np.ndarray]] = []  # merged at the next search

    def __len__(self) -> int:
        return len(self._digests) + sum(len(digests) for digests, _ in self._new)

    def add(self, segment: int, index: np.ndarray) -> None:
        """Add the sentences of a segment's index."""
        numbers = np.full(len(index), segment)
        self._new.append((index["digest"], np.stack([numbers, index["first"], index["words"]], axis=1)))

    def find(self, digests: Sequence[bytes]) -> list[Place | None]:
        """The place of each sentence; None for one that is missing."""
        if self._new:
            all_digests, all_places = zip((self._digests, self._places), *self._new, strict=True)
            joined = np.concatenate(all_digests)
            order = np.argsort(joined, kind="stable")
            self._digests, self._places = joined[order], np.concatenate(all_places)[order]
            self._new.clear()
        if not len(self._digests):
            return [None] * len(digests)
        keys = np.array(digests, "S16")  # drops trailing zero bytes, as the index does
        rows = np.searchsorted(self._digests, keys).clip(max=len(self._digests) - 1)
        is_equal = (self._digests[rows] == keys).tolist()
        places = self._places[rows].tolist()
        return [Place(*place) if exists else None for place, exists in zip(places, is_equal, strict=True)]


class LayerCache:
    """A cache of the vectors of tokenized sentences.

    Args:
        encoder: Computes missing vectors.
        directory: Directory for the caches of all encoders, created if missing; None: keep the vectors in memory.
        storage_dtype: "float16" (half the size) or "float32".
    """

    def __init__(
        self, encoder: FrozenEncoder, directory: str | Path | None = None, storage_dtype: str = "float16"
    ) -> None:
        self.encoder, self.storage_dtype = encoder, storage_dtype
        self._segments: list[_FileSegment | _MemorySegment] = []
        self._places = _Places()
        self.directory = None if directory is None else expand_user(directory) / f"{encoder.name}-{storage_dtype}"
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.directory)
            for index in sorted(self.directory.glob("segment-*.index.npy")):
                self._open(index)

    def __repr__(self) -> str:
        return f"LayerCache({len(self._places)} sentences in {self.directory or 'memory'})"

    def __contains__(self, sentence: Words) -> bool:
        return self._places.find([sentence_digest(sentence)]) != [None]

    def add(self, sentences: Iterable[Words], progress: bool = True) -> None:
        """Compute and store the vectors of the sentences that are missing.

        Raises:
            OSError: The disk has less free space than they take; or it cannot be written.
        """
        missing = {sentence_digest(words): words for words in sentences if words}
        places = self._places.find(list(missing))
        missing = {digest: words for (digest, words), place in zip(missing.items(), places, strict=True) if not place}
        total = sum(map(len, missing.values()))
        word_bytes = np.dtype(self.storage_dtype).itemsize * int(np.prod(self.encoder.shape))
        self._check_free_space(total, total * word_bytes)
        with ProgressBar(total=total, desc="vectors", unit=" words", unit_scale=True, disable=not progress) as bar:
            for segment in _split_into_segments(missing.values(), max(1, SEGMENT_BYTES // word_bytes)):
                self._add_segment(segment)
                bar.update(sum(map(len, segment)))

    def places(self, sentences: Sequence[Words]) -> list[Place]:
        """The positions of sentences' vectors. KeyError if one was not added."""
        places = self._places.find([sentence_digest(words) for words in sentences])
        if lacking := [words for words, place in zip(sentences, places, strict=True) if words and place is None]:
            raise KeyError(tuple(lacking[0]))
        return [place or Place(0, 0, 0) for place in places]

    def read(self, places: Sequence[Place]) -> np.ndarray:
        """Read the vectors of sentences, concatenated, (N, L, D) in the storage dtype."""
        vectors = np.empty((sum(place.words for place in places), *self.encoder.shape), self.storage_dtype)
        row = 0
        for place in places:
            if place.words:
                self._segments[place.segment].read_into(vectors[row : row + place.words], place.first)
                row += place.words
        return vectors

    def _check_free_space(self, words: int, size: int) -> None:
        """OSError if the vectors of `words` words, `size` bytes, do not fit the disk: it would be full in an hour."""
        if self.directory is None or size <= (free := shutil.disk_usage(self.directory).free):
            return
        smaller = ", store float16" if self.storage_dtype == "float32" else ""
        raise OSError(
            errno.ENOSPC,
            f"the vectors of {words:,} words take {size / 1e9:.1f} GB, and {self.directory} has {free / 1e9:.1f} GB "
            f"free: choose another directory for the cache{smaller}, or train on fewer examples",
        )

    def _add_segment(self, sentences: list[Words]) -> None:
        index = np.empty(len(sentences), INDEX_DTYPE)
        index["words"] = [len(words) for words in sentences]
        index["first"] = np.cumsum(index["words"]) - index["words"]
        index["digest"] = [sentence_digest(words) for words in sentences]
        vectors = self.encoder.vectors(sentences, self.storage_dtype)
        if self.directory is None:
            self._register(_MemorySegment(vectors), index)
            return
        path = self.directory / f"segment-{uuid.uuid4().hex[:8]}.index.npy"
        with atomic_path(path, clean=False) as partial_index:
            _save(index, partial_index)
            with atomic_path(_vectors_of(path), clean=False) as partial_vectors:
                _save(vectors, partial_vectors)
        self._open(path)

    def _open(self, path: Path) -> None:
        """Open the segment of an index file. ValueError if one of its files is damaged."""
        try:
            segment, index = _FileSegment(_vectors_of(path)), np.load(path)
            if segment.shape[1:] != self.encoder.shape or segment.dtype != self.storage_dtype:
                raise ValueError(f"its vectors are {segment.dtype} of shape {segment.shape}")
            if index.dtype != INDEX_DTYPE or ((index["first"] + index["words"]) > segment.shape[0]).any():
                raise ValueError("its index does not fit its vectors")
        except (ValueError, FileNotFoundError, EOFError) as error:  # other OSErrors are no damage
            raise ValueError(
                f"{path} is damaged ({error}): remove its directory; the vectors will be computed again"
            ) from error
        self._register(segment, index)

    def _register(self, segment: _FileSegment | _MemorySegment, index: np.ndarray) -> None:
        self._places.add(len(self._segments), index)
        self._segments.append(segment)
