"""A store of embeddings: a directory of index.json and shards called part-NNNNN.safetensors (docs/formats.md).

Every shard holds the same number of sentences (the last may hold fewer):

    vectors        (N, 2D) or (N, L+1, 2D)   float32 or float16, of N words end to end
    offsets        (S+1,)                    int64, sentence s is the words offsets[s] : offsets[s+1]
    token_bytes    (all bytes,)              uint8, the words in UTF-8, end to end
    token_offsets  (N+1,)                    int64, word n is the bytes token_offsets[n] : token_offsets[n+1]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np

from elmokit.config import check_count, check_storage_dtype
from elmokit.fs.atomic import OVERWRITE, atomic_path, remove_leftovers
from elmokit.fs.json_files import from_json, read_json
from elmokit.fs.paths import expand_user
from elmokit.progress import ProgressBar
from elmokit.storage.checksum import is_intact
from elmokit.storage.shard import Shard, ShardWriter, open_shard, shard_writer
from elmokit.storage.token_spool import TokenSpool

INDEX_NAME = "index.json"
# The other files of a store: parts, the states between them, and what killed runs left.
OWN_FILES = re.compile(r"(part|state)-[0-9]+\.safetensors|\.partial-.*")
MAX_INDEX_BYTES = 1 << 16


# --- The index ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StoreIndex:
    """The contents of index.json; everything above `num_parts` determines the bytes of the shards."""

    model: str  # its fingerprint
    layers: str  # as for Embedder.embed: "mix", "all", "top", ...
    vector_shape: tuple[int, ...]  # of one word: (2D,), or (L+1, 2D) for all layers
    dtype: str = "float32"
    sentences_per_part: int = 1000
    source_bytes: int = 0  # size of the text file
    arguments: str = ""  # all others that the vectors depend on, as text
    num_parts: int = 0
    num_sentences: int = 0
    num_words: int = 0
    complete: bool = False

    def __post_init__(self) -> None:
        check_storage_dtype(self.dtype)
        if len(self.vector_shape) not in (1, 2) or min(self.vector_shape) < 1:
            raise ValueError(f"a word's vector has shape (2D,) or (L+1, 2D), not {self.vector_shape}")
        check_count("sentences_per_part", self.sentences_per_part)
        if min(self.num_parts, self.num_sentences, self.num_words) < 0:
            raise ValueError("its counts must be 0 or more")
        if self.complete and self.num_parts != -(-self.num_sentences // self.sentences_per_part):
            raise ValueError(f"{self.num_parts} parts cannot hold {self.num_sentences} sentences")

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that must be equal for a run to resume another."""
        totals = ("num_parts", "num_sentences", "num_words", "complete")
        return {name: value for name, value in asdict(self).items() if name not in totals}

    def differences(self, stored: StoreIndex) -> str:
        """The settings in which a stored index differs from this one; empty where a run may resume it."""
        before, now = stored.identity, self.identity
        return "; ".join(f"{name} is {before[name]!r}, now {now[name]!r}" for name in now if before[name] != now[name])

    def to_json(self) -> str:
        """The index as JSON, as single-file formats hold it."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> StoreIndex:
        """Read what `to_json` wrote; ValueError or RecursionError for anything else."""
        return from_json(StoreIndex, json.loads(text))

    def write(self, directory: Path) -> None:
        """Write index.json, atomically, unless it is so already: the directory of a finished run may be read-only."""
        index, content = directory / INDEX_NAME, (json.dumps(asdict(self), indent=2) + "\n").encode()
        if not index.is_file() or index.read_bytes() != content:
            with atomic_path(index) as path:
                path.write_bytes(content)


def read_index(directory: str | Path) -> StoreIndex:
    """Read the index of a store.

    Raises:
        FileNotFoundError: The directory has no index.
        ValueError: The index is damaged.
    """
    path = Path(directory) / INDEX_NAME
    if not path.exists():
        raise FileNotFoundError(f"{directory} holds no embeddings: there is no {INDEX_NAME} in it")
    try:
        return from_json(StoreIndex, read_json(path, MAX_INDEX_BYTES))
    except ValueError as error:
        raise ValueError(
            f"{path} is not an index of embeddings ({error}): if it is that of a damaged store, remove the directory"
        ) from error


# --- Writing, shard by shard -------------------------------------------------------------------------------------


def _shard_path(directory: Path, number: int) -> Path:
    return directory / f"part-{number:05d}.safetensors"


def _readable(path: Path) -> Shard | None:
    try:
        return open_shard(path)
    except (ValueError, OSError):
        return None


def finished_shards(directory: str | Path) -> list[int]:
    """The numbers of the complete shards; damaged, truncated and foreign files do not count."""
    paths = list(Path(directory).glob("part-[0-9]*.safetensors"))
    numbers = {path.stem.removeprefix("part-"): path for path in paths}
    progress = ProgressBar(numbers.items(), "check parts", leave=False, unit=" parts", disable=not numbers)
    return sorted(
        int(number)
        for number, path in progress
        if number.isdecimal() and path == _shard_path(path.parent, int(number)) and is_intact(path) and _readable(path)
    )


def begin_store(directory: str | Path, index: StoreIndex) -> list[int]:
    """Create a store, or resume one that a run with the same arguments left incomplete.

    Args:
        directory: A new or empty directory, or that of the incomplete run.
        index: The settings of the store.

    Returns:
        The numbers of the shards that are complete.

    Raises:
        ValueError: The directory holds other embeddings, or other files.
    """
    directory = Path(directory)
    if (directory / INDEX_NAME).exists():
        if changed := index.differences(read_index(directory)):
            raise ValueError(f"{directory} holds other embeddings ({changed}): remove it, name another, or {OVERWRITE}")
    elif directory.exists() and any(not path.name.startswith(".") for path in directory.iterdir()):
        raise ValueError(f"{directory} is not empty and holds no embeddings: name another directory")
    else:
        index.write(directory)
    remove_leftovers(directory)
    return finished_shards(directory)


@contextmanager
def write_shard(directory: str | Path, index: StoreIndex, number: int, spool: TokenSpool) -> Iterator[ShardWriter]:
    """Write a shard atomically; equal input gives equal bytes.

    Args:
        directory: The store.
        index: Its settings.
        number: The number of the shard, from 0.
        spool: The words of its sentences.

    Yields:
        A writer for its vectors, in any order.

    Raises:
        ValueError: When the block ends, words have no vector.
    """
    with (
        atomic_path(_shard_path(Path(directory), number), clean=False) as path,
        shard_writer(path, spool, index.vector_shape, index.dtype) as writer,
    ):
        yield writer


def finish_store(directory: str | Path, index: StoreIndex, num_parts: int) -> StoreIndex:
    """Count sentences and words, and mark a store complete.

    Args:
        directory: The store.
        index: Its settings.
        num_parts: The number of shards.

    Returns:
        The index of the complete store.

    Raises:
        ValueError: A shard is missing, or one before the last has too few sentences.
    """
    directory = Path(directory)
    missing, num_sentences, num_words = [], 0, 0
    for number in range(num_parts):
        shard = _readable(_shard_path(directory, number))
        if shard is None:
            missing.append(number)
            continue
        if shard.num_sentences != index.sentences_per_part and number < num_parts - 1:
            raise ValueError(
                f"only the last part may be short, but part {number} of {directory} is: remove and repeat it"
            )
        num_sentences, num_words = num_sentences + shard.num_sentences, num_words + shard.num_words
    if missing:
        raise ValueError(f"{directory} lacks the parts {missing}: run the same command again to make them")
    totals = {"num_parts": num_parts, "num_sentences": num_sentences, "num_words": num_words}
    finished = replace(index, complete=True, **totals)
    finished.write(directory)
    return finished


# --- Reading -----------------------------------------------------------------------------------------------------


class EmbeddingStore:
    """The embeddings of a text file, as `embed_file` writes them: a sequence of `len(store)` lines, read on demand.

    `store[i]` is (words, vectors) of line i, `store[i:j]` a list of such pairs, and iteration yields all lines in
    order. Vectors are (T, 2D), or (T, L+1, 2D) for all layers, in the stored dtype; a blank line has T = 0. No file is
    kept open.

    Args:
        directory: The directory that `embed_file` wrote.
        verify: Check the checksum of each part before it is first read, which reads it once more.

    Raises:
        FileNotFoundError: The directory holds no embeddings.
        ValueError: They are incomplete, or damaged.
    """

    def __init__(self, directory: str | Path, verify: bool = False) -> None:
        self.directory, self.verify = expand_user(directory).absolute(), verify
        self.index = read_index(self.directory)
        self._verified: set[int] = set()
        if not self.index.complete:
            raise ValueError(f"{directory} is not complete: run the same command again, which resumes")
        self._shard = lru_cache(maxsize=64)(self._open)

    def _open(self, number: int) -> Shard:
        path, index = _shard_path(self.directory, number), self.index
        if self.verify and number not in self._verified:
            if not is_intact(path):
                raise ValueError(f"{path} is damaged: embed the text again with the same command, which repairs it")
            self._verified.add(number)
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: embed the text again with the same command, which repairs it")
        shard, stored = open_shard(path), index.sentences_per_part
        expected = min(stored, index.num_sentences - number * stored), index.vector_shape, index.dtype
        vectors = shard.tensors["vectors"]
        if (shard.num_sentences, vectors.shape[1:], vectors.dtype.name) != expected:
            raise ValueError(f"{path} is not the part {number} that {INDEX_NAME} describes: embed the text again")
        return shard

    def __repr__(self) -> str:
        index = self.index
        return (
            f"EmbeddingStore({str(self.directory)!r}: {index.num_sentences:,} sentences, {index.num_words:,} words, "
            f"layers {index.layers!r}, {index.dtype} {index.vector_shape} a word)"
        )

    def __reduce__(self) -> tuple[type[EmbeddingStore], tuple[Path, bool]]:
        """Copies and pickles, as for another process, open the directory again."""
        return EmbeddingStore, (self.directory, self.verify)

    def __len__(self) -> int:
        return self.index.num_sentences

    @overload
    def __getitem__(self, number: int) -> tuple[list[str], np.ndarray]: ...

    @overload
    def __getitem__(self, number: slice) -> list[tuple[list[str], np.ndarray]]: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        shard, begin, end = self._bounds(number)
        return shard.words(begin, end), shard.vectors(begin, end)

    def length(self, number: int) -> int:
        """The number of words of a line."""
        _, begin, end = self._bounds(number)
        return end - begin

    def words(self, number: int) -> list[str]:
        """Read the words of a line, without its vectors."""
        shard, begin, end = self._bounds(number)
        return shard.words(begin, end)

    def vectors(self, number: int, rows: slice = slice(None)) -> np.ndarray:
        """Read the vectors of a line, or of a range of its words.

        Args:
            number: The line, from 0.
            rows: The words to read; negative bounds count from the end.

        Returns:
            (n, 2D), or (n, L+1, 2D) for all layers.

        Raises:
            IndexError: There is no such line.
            ValueError: `rows` has a step.
        """
        shard, begin, end = self._bounds(number)
        first, stop, step = rows.indices(end - begin)
        if step != 1:
            raise ValueError(f"rows have a step of {step}: read them without it, and slice the array")
        return shard.vectors(begin + first, begin + max(first, stop))

    def _bounds(self, number: int) -> tuple[Shard, int, int]:
        """The shard that holds a line, and the line's first word and end there."""
        if not hasattr(number, "__index__") or np.ndim(number):
            kind = type(number).__name__
            raise TypeError(f"a line is named by an integer, not by a {kind}: read several as [store[n] for n in ...]")
        if not -len(self) <= number < len(self):
            raise IndexError(f"there is no line {number}: the store has {len(self)} lines, numbered from 0")
        shard_number, within = divmod(number % len(self), self.index.sentences_per_part)
        shard = self._shard(shard_number)
        return shard, *shard.bounds(within)

    def __iter__(self) -> Iterator[tuple[list[str], np.ndarray]]:
        return (self[number] for number in range(len(self)))
