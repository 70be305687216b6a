"""A store of embeddings: a directory of index.json and shards called part-NNNNN.safetensors
(docs/formats.md).

Every shard holds the same number of sentences (the last may hold fewer):

    vectors        (N, 2D) or (N, L+1, 2D)   float32 or float16, of N words end to end
    offsets        (S+1,)                    int64, sentence s is words offsets[s] : offsets[s+1]
    token_bytes    (all bytes,)              uint8, the words in UTF-8, end to end
    token_offsets  (N+1,)                    int64, word n is bytes token_offsets[n] : [n+1]
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from elmokit.fs import atomic_path, read_json, write_lines
from elmokit.progress import ProgressBar
from elmokit.settings import Count, CountOrZero, StorageDtype, check, conform

# As safetensors and NumPy call them.
DTYPES = {"F32": "float32", "F16": "float16", "I64": "int64", "U8": "uint8"}
# Bytes per call: Linux took six times as long to write a whole batch of vectors at once.
WRITE_SIZE = 1 << 20


# --- The index ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StoreIndex:
    """The contents of index.json; everything above `num_parts` determines the bytes of the shards.

    Attributes:
        settings: What the vectors depend on: the model's fingerprint, the digest of the text, the
            layers, the state, ...
        vector_shape: That of one word: (2D,), or (L+1, 2D) for all layers.
        dtype: How the vectors are stored.
        sentences_per_part: Sentences in a shard.
        num_parts, num_sentences, num_words: Counts of a complete store, else 0.
        complete: The store may be read.
    """

    settings: dict[str, Any]
    vector_shape: tuple[Count, ...]
    dtype: StorageDtype = "float32"
    sentences_per_part: Count = 1000
    num_parts: CountOrZero = 0
    num_sentences: CountOrZero = 0
    num_words: CountOrZero = 0
    complete: bool = False

    def __post_init__(self) -> None:
        check(self)

    @staticmethod
    def read(directory: str | Path) -> StoreIndex:
        """Read the index of a store.

        Raises:
            FileNotFoundError: The directory has no index.
            ValueError: The index is damaged.
        """
        path = Path(directory) / EmbeddingStore.INDEX_NAME
        if not path.exists():
            raise FileNotFoundError(f"{directory} holds no embeddings: there is no {path.name}")
        try:
            return conform(StoreIndex, read_json(path))
        except ValueError as error:
            raise ValueError(f"{path} is not an index of embeddings: {error}") from error

    def write(self, directory: Path) -> None:
        """Write the index of a store."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        write_lines(directory / EmbeddingStore.INDEX_NAME, [text])

    def is_at(self, directory: Path) -> bool:
        """True if a directory holds a store of these settings, complete or not."""
        try:
            found = StoreIndex.read(directory)
        except (FileNotFoundError, ValueError):
            return False
        counts = {"num_parts": 0, "num_sentences": 0, "num_words": 0, "complete": False}
        return replace(found, **counts) == self


# --- Shards ---------------------------------------------------------------------------------------


@contextmanager
def write_shard(
    path: Path, sentences: Sequence[Sequence[str]], vector_shape: tuple[int, ...], dtype: str
) -> Iterator[Callable[[np.ndarray], None]]:
    """Create a shard with the words of `sentences`; yields the function that writes their vectors,
    in order.
    """
    # The sentences "I like", "" and "naïve", with vectors (3, 4) in float32:
    #
    #   8 bytes              the length of the header, H
    #   H bytes              JSON, which describes the tensors, padded with spaces to 8 bytes
    #   offsets              0 2 2 3            int64
    #   token_offsets        0 1 5 11           int64
    #   vectors              12 numbers         written as they are computed
    #   token_bytes          Ilikenaïve
    words = [word.encode() for sentence in sentences for word in sentence]
    offsets = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
    token_offsets = np.cumsum([0, *map(len, words)], dtype=np.int64)
    token_bytes = b"".join(words)
    shape = len(words), *vector_shape
    described = {}
    end = 0
    for name, kind, of_tensor in (  # widest dtype first, then by name, as safetensors has it
        ("offsets", "I64", offsets.shape),
        ("token_offsets", "I64", token_offsets.shape),
        ("vectors", "F32" if dtype == "float32" else "F16", shape),
        ("token_bytes", "U8", (len(token_bytes),)),
    ):
        begin = end
        end += np.dtype(DTYPES[kind]).itemsize * int(np.prod(of_tensor))
        described[name] = {"dtype": kind, "shape": of_tensor, "data_offsets": (begin, end)}
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)

    with path.open("wb") as file:
        file.write(
            len(header).to_bytes(8, "little") + header + offsets.tobytes() + token_offsets.tobytes()
        )

        def write(vectors: np.ndarray) -> None:
            assert vectors.shape[1:] == shape[1:] and vectors.dtype == dtype
            data = np.ascontiguousarray(vectors).reshape(-1).view(np.uint8).data
            for at in range(0, len(data), WRITE_SIZE):
                file.write(data[at : at + WRITE_SIZE])

        yield write
        file.write(token_bytes)
        assert file.tell() == 8 + len(header) + end
        # Otherwise gigabytes of vectors fill the page cache, and a virtual machine is slow to get
        # more memory: with this, Linux wrote a gigabyte in shards of 96 MB in a third of the time.
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Shard:
    """A complete shard. Memory holds its sentence offsets; words and vectors are read when needed.

    ValueError where the file is truncated or no shard; FileNotFoundError where it is missing.
    """

    def __init__(self, path: Path) -> None:
        try:
            with safe_open(
                path, framework="numpy"
            ):  # refuses a file whose length does not match its header
                pass
            data = np.memmap(path, np.uint8, "r")
            begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
            described = json.loads(data[8:begin].tobytes())

            def tensor(name: str) -> np.ndarray:
                first, last = described[name]["data_offsets"]
                dtype = DTYPES[described[name]["dtype"]]
                return (
                    np.asarray(data[begin + first : begin + last])
                    .view(dtype)
                    .reshape(described[name]["shape"])
                )

            self.offsets = tensor("offsets").copy()
            self._token_offsets = tensor("token_offsets")
            self._token_bytes = tensor("token_bytes")
            self._vectors = tensor("vectors")
            is_sorted = (np.diff(self.offsets, prepend=0) >= 0).all()
            if not is_sorted or self.offsets[-1] != len(self._vectors):
                raise ValueError("its sentences do not fit its words")
        except (SafetensorError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is not a shard of a store, or damaged: {error}") from error

    def words(self, begin: int, end: int) -> list[str]:
        """Read the words begin : end."""
        bounds = self._token_offsets[begin : end + 1].tolist()
        start = bounds[0]
        text = self._token_bytes[start : bounds[-1]].tobytes()
        ends = [bound - start for bound in bounds]
        return [text[begin:end].decode() for begin, end in pairwise(ends)]

    def lines_with(self, words: Collection[str]) -> np.ndarray:
        """The numbers of the lines in the shard that have one of some words, in lower case or any
        other.
        """
        # Of the words  I | like | Like | unlikely  and `words` = {"like"}:
        #
        #   lengths   {4}     has_length   1 and 2     found, in lower case: both
        #
        # Only words of a length in bytes that one of them has in either case are read.
        lengths = {len(cased.encode()) for word in words for cased in (word, word.upper())}
        has_length = np.isin(np.diff(self._token_offsets), list(lengths))
        text = self._token_bytes.tobytes()
        bounds = self._token_offsets.tolist()
        found = []
        for number in np.flatnonzero(has_length).tolist():
            word = text[bounds[number] : bounds[number + 1]].decode()
            if word.lower() in words:
                found.append(number)
        return np.unique(np.searchsorted(self.offsets, found, side="right") - 1)

    def vectors(self, begin: int, end: int) -> np.ndarray:
        """Read the vectors (n, 2D) or (n, L+1, 2D) of the words begin : end."""
        return self._vectors[begin:end].copy()


# --- Writing, shard by shard ----------------------------------------------------------------------


def _shard_path(directory: Path, number: int) -> Path:
    return directory / f"part-{number:05d}.safetensors"


class StoreWriter:
    """A store that is written, shard by shard: a new one, or one of the same settings that a run
    left incomplete. Whatever else is in its directory is removed.
    """

    def __init__(self, directory: Path, index: StoreIndex) -> None:
        self.directory, self.index = directory, index
        if not index.is_at(directory):
            directory.mkdir(parents=True, exist_ok=True)
            for path in directory.iterdir():  # not the directory, which may be locked
                path.unlink() if path.is_file() else shutil.rmtree(path)
            index.write(directory)

    def read_shards(self) -> dict[int, Shard]:
        """The complete shards by their number; damaged and truncated files do not count."""
        shards = {}
        paths = sorted(self.directory.glob("part-*.safetensors"))
        bar = ProgressBar(paths, "check parts", leave=False, unit=" parts", disable=not paths)
        for path in bar:
            with suppress(ValueError):
                shards[int(path.stem.removeprefix("part-"))] = Shard(path)
        return shards

    @contextmanager
    def shard(
        self, number: int, sentences: Sequence[Sequence[str]]
    ) -> Iterator[Callable[[np.ndarray], None]]:
        """Write a shard atomically; equal input gives equal bytes.

        Args:
            number: The number of the shard, from 0.
            sentences: The words of its sentences.

        Yields:
            The function that writes the vectors (n, 2D), or (n, L+1, 2D) for all layers, of the
            next n words.
        """
        shape = self.index.vector_shape
        target = _shard_path(self.directory, number)
        with (
            atomic_path(target) as path,
            write_shard(path, sentences, shape, self.index.dtype) as write,
        ):
            yield write

    def finish(self, num_parts: int) -> None:
        """Count sentences and words, and mark the store complete."""
        shards = self.read_shards()
        offsets = [shards[number].offsets for number in range(num_parts)]
        finished = replace(
            self.index,
            complete=True,
            num_parts=num_parts,
            num_sentences=sum(len(of_shard) - 1 for of_shard in offsets),
            num_words=sum(int(of_shard[-1]) for of_shard in offsets),
        )
        # The directory of a finished run may be read-only.
        if finished != StoreIndex.read(self.directory):
            finished.write(self.directory)


# --- Reading --------------------------------------------------------------------------------------


class EmbeddingStore:
    """The embeddings of a text file, as `embed_file` writes them: a sequence of `len(store)` lines,
    read on demand.

    `store[i]` is (words, vectors) of line i, `store[i:j]` a list of such pairs, and iteration
    yields all lines in order. Vectors are (T, 2D), or (T, L+1, 2D) for all layers, in the stored
    dtype; a blank line has T = 0.

    Args:
        directory: The directory that `embed_file` wrote.

    Raises:
        FileNotFoundError: The directory holds no embeddings.
        ValueError: They are incomplete, or damaged.
    """

    INDEX_NAME = "index.json"
    # The other files of a store: parts, the states between them, and what killed runs left.
    OTHER_FILES = re.compile(r"(part|state)-[0-9]+\.safetensors|\.partial-.*")

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).expanduser().absolute()
        self.index = StoreIndex.read(self.directory)
        if not self.index.complete:
            raise ValueError(
                f"{directory} is not complete: run the same command again, which resumes"
            )
        self._shard = lru_cache(maxsize=64)(self._open_shard)

    def _open_shard(self, number: int) -> Shard:
        return Shard(_shard_path(self.directory, number))

    def __repr__(self) -> str:
        index = self.index
        counts = f"{index.num_sentences:,} sentences, {index.num_words:,} words"
        vectors = f"layers {index.settings.get('layers')!r}, {index.dtype} {index.vector_shape}"
        return f"EmbeddingStore({str(self.directory)!r}: {counts}, {vectors} a word)"

    def __reduce__(self) -> tuple[type[EmbeddingStore], tuple[Path]]:
        """Copies and pickles, as for another process, open the directory again."""
        return EmbeddingStore, (self.directory,)

    def __len__(self) -> int:
        return self.index.num_sentences

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self[line] for line in range(len(self))[number]]
        return self.words(number), self.vectors(number)

    def words(self, number: int) -> list[str]:
        """Read the words of a line, without its vectors."""
        shard, begin, end = self._bounds(number)
        return shard.words(begin, end)

    def vectors(self, number: int) -> np.ndarray:
        """Read the vectors of a line, (T, 2D), or (T, L+1, 2D) for all layers."""
        shard, begin, end = self._bounds(number)
        return shard.vectors(begin, end)

    def lines_with(self, words: Collection[str]) -> Iterator[int]:
        """The numbers of the lines that have one of some words, whatever the case of its
        letters.
        """
        lowered = {word.lower() for word in words}
        for part in range(self.index.num_parts):
            lines = self._shard(part).lines_with(lowered) + part * self.index.sentences_per_part
            yield from lines.tolist()

    def lengths(self) -> np.ndarray:
        """The number of words of each line."""
        return np.concatenate(
            [np.diff(self._shard(part).offsets) for part in range(self.index.num_parts)]
        )

    def blocks(self, words: int) -> Iterator[np.ndarray]:
        """Read the vectors of all words, up to `words` at a time."""
        for shard in map(self._shard, range(self.index.num_parts)):
            for begin in range(0, int(shard.offsets[-1]), words):
                yield shard.vectors(begin, begin + words)

    def _bounds(self, number: int) -> tuple[Shard, int, int]:
        """The shard that holds a line, and the line's first word and end there."""
        shard_number, within = divmod(range(len(self))[number], self.index.sentences_per_part)
        shard = self._shard(shard_number)
        if within + 1 >= len(shard.offsets):
            raise ValueError(
                f"{self.directory} is damaged: its index counts more sentences than there are"
            )
        return shard, int(shard.offsets[within]), int(shard.offsets[within + 1])

    def __iter__(self) -> Iterator[tuple[list[str], np.ndarray]]:
        return (self[number] for number in range(len(self)))


class VectorBatch(NamedTuple):
    """B sentences, the longest of T words: vectors (B, T, 2D), or (B, T, L+1, 2D), mask (B, T)."""

    words: list[list[str]]
    vectors: Tensor
    mask: Tensor


def collate(sentences: Sequence[tuple[Sequence[str], np.ndarray]]) -> VectorBatch:
    """Pad the vectors of sentences with zeros: `DataLoader(store, batch_size=32,
    collate_fn=elmokit.collate)`.

    Args:
        sentences: Pairs of words and their vectors, (T, 2D) or (T, L+1, 2D), as `EmbeddingStore`
            yields; at least one.

    Returns:
        The batch, its vectors in float32.
    """
    #   a1 a2 a3     True  True  True
    #   b1 0  0      True  False False
    vectors = [torch.from_numpy(of_words.astype(np.float32)) for _, of_words in sentences]
    padded = pad_sequence(vectors, batch_first=True)
    lengths = torch.tensor(list(map(len, vectors)))
    mask = torch.arange(padded.shape[1]) < lengths[:, None]
    return VectorBatch([list(words) for words, _ in sentences], padded, mask)
