"""A store of embeddings: a directory of index.json and shards called part-NNNNN.safetensors
(docs/formats.md).

Every shard holds the same number of sentences (the last may hold fewer):

    vectors        (N, 2D) or (N, L+1, 2D)   float32 or float16, of N words end to end
    offsets        (S+1,)                    int64, sentence s is words offsets[s] : offsets[s+1]
    token_bytes    (all bytes,)              uint8, the words in UTF-8, end to end
    token_offsets  (N+1,)                    int64, word n is bytes token_offsets[n] : [n+1]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np

from elmokit.fs import OVERWRITE, atomic_path, read_json, remove_leftovers, write_json
from elmokit.progress import ProgressBar
from elmokit.settings import Count, CountOrZero, StorageDtype, check, conform
from elmokit.storage.shard import Shard, write_shard_file

INDEX_NAME = "index.json"
# The other files of a store: parts, the states between them, and what killed runs left.
OWN_FILES = re.compile(r"(part|state)-[0-9]+\.safetensors|\.partial-.*")


# --- The index ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StoreIndex:
    """The contents of index.json; everything above `num_parts` determines the bytes of the
    shards.
    """

    model: str  # its fingerprint
    layers: str  # as for Embedder.embed: "mix", "all", "top", ...
    vector_shape: (
        tuple[Count] | tuple[Count, Count]
    )  # of one word: (2D,), or (L+1, 2D) for all layers
    dtype: StorageDtype = "float32"
    sentences_per_part: Count = 1000
    source_bytes: CountOrZero = 0  # size of the text file
    arguments: str = ""  # all others that the vectors depend on, as text
    num_parts: CountOrZero = 0
    num_sentences: CountOrZero = 0
    num_words: CountOrZero = 0
    complete: bool = False

    def __post_init__(self) -> None:
        check(self)

    def differences(self, stored: StoreIndex) -> str:
        """What a stored index has other than this one, for a message; empty where a run may resume
        it.
        """
        before, now = asdict(stored), asdict(self)
        names = ("model", "layers", "vector_shape", "dtype", "sentences_per_part")
        told = [
            f"{name} {before[name]}, now {now[name]}" for name in names if before[name] != now[name]
        ]
        told += sorted(({*stored.arguments.split(", ")} ^ {*self.arguments.split(", ")}) - {""})
        # Digests tell nobody anything.
        return "; ".join(
            dict.fromkeys(re.sub(r"^(model|text|names) .*", r"another \1", each) for each in told)
        )


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
        return conform(StoreIndex, read_json(path))
    except ValueError as error:
        raise ValueError(f"{path} is not an index of embeddings: {error}") from error


# --- Writing, shard by shard ----------------------------------------------------------------------


def _shard_path(directory: Path, number: int) -> Path:
    return directory / f"part-{number:05d}.safetensors"


def _shards(directory: Path) -> dict[int, Shard]:
    """The complete shards by their number; damaged and truncated files do not count."""
    shards = {}
    paths = sorted(directory.glob("part-*.safetensors"))
    for path in ProgressBar(paths, "check parts", leave=False, unit=" parts", disable=not paths):
        with suppress(ValueError):
            shards[int(path.stem.removeprefix("part-"))] = Shard(path)
    return shards


def begin_store(directory: Path, index: StoreIndex) -> set[int]:
    """Create a store, or resume one that a run with the same arguments left incomplete.

    Args:
        directory: A new or empty directory, or that of the incomplete run.
        index: The settings of the store.

    Returns:
        The numbers of the shards that are complete.

    Raises:
        ValueError: The directory holds other embeddings, or other files.
    """
    if (directory / INDEX_NAME).exists():
        if changed := index.differences(read_index(directory)):
            raise ValueError(
                f"{directory} holds other embeddings ({changed}): remove it, name another, or "
                f"{OVERWRITE}"
            )
    elif directory.exists() and any(not path.name.startswith(".") for path in directory.iterdir()):
        raise ValueError(
            f"{directory} is not empty and holds no embeddings: name another directory"
        )
    else:
        write_json(directory / INDEX_NAME, asdict(index))
    remove_leftovers(directory)
    return set(_shards(directory))


@contextmanager
def write_shard(
    directory: Path, index: StoreIndex, number: int, sentences: Sequence[Sequence[str]]
) -> Iterator[Callable[[np.ndarray], None]]:
    """Write a shard atomically; equal input gives equal bytes.

    Args:
        directory: The store.
        index: Its settings.
        number: The number of the shard, from 0.
        sentences: The words of its sentences.

    Yields:
        The function that writes the vectors (n, 2D), or (n, L+1, 2D) for all layers, of the next n
        words.
    """
    with (
        atomic_path(_shard_path(directory, number)) as path,
        write_shard_file(path, sentences, index.vector_shape, index.dtype) as write,
    ):
        yield write


def finish_store(directory: Path, index: StoreIndex, num_parts: int) -> StoreIndex:
    """Count sentences and words, and mark a store complete.

    Args:
        directory: The store.
        index: Its settings.
        num_parts: The number of shards.

    Returns:
        The index of the complete store.

    Raises:
        ValueError: A shard is missing.
    """
    shards = _shards(directory)
    if missing := sorted(set(range(num_parts)) - set(shards)):
        raise ValueError(
            f"{directory} lacks the parts {missing}: run the same command again to make them"
        )
    offsets = [shards[number].offsets for number in range(num_parts)]
    sentences, words = (
        sum(len(each) - 1 for each in offsets),
        sum(int(each[-1]) for each in offsets),
    )
    finished = replace(
        index, complete=True, num_parts=num_parts, num_sentences=sentences, num_words=words
    )
    if finished != read_index(directory):  # the directory of a finished run may be read-only
        write_json(directory / INDEX_NAME, asdict(finished))
    return finished


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

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).expanduser().absolute()
        self.index = read_index(self.directory)
        if not self.index.complete:
            raise ValueError(
                f"{directory} is not complete: run the same command again, which resumes"
            )
        self._shard = lru_cache(maxsize=64)(
            lambda number: Shard(_shard_path(self.directory, number))
        )

    def __repr__(self) -> str:
        index = self.index
        counts = (
            f"{index.num_sentences:,} sentences, {index.num_words:,} words, layers {index.layers!r}"
        )
        return (
            f"EmbeddingStore({str(self.directory)!r}: {counts}, {index.dtype} "
            f"{index.vector_shape} a word)"
        )

    def __reduce__(self) -> tuple[type[EmbeddingStore], tuple[Path]]:
        """Copies and pickles, as for another process, open the directory again."""
        return EmbeddingStore, (self.directory,)

    def __len__(self) -> int:
        return self.index.num_sentences

    @overload
    def __getitem__(self, number: int) -> tuple[list[str], np.ndarray]: ...

    @overload
    def __getitem__(self, number: slice) -> list[tuple[list[str], np.ndarray]]: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        return self.words(number), self.vectors(number)

    def words(self, number: int) -> list[str]:
        """Read the words of a line, without its vectors."""
        shard, begin, end = self._bounds(number)
        return shard.words(begin, end)

    def vectors(self, number: int) -> np.ndarray:
        """Read the vectors of a line, (T, 2D), or (T, L+1, 2D) for all layers."""
        shard, begin, end = self._bounds(number)
        return shard.vectors(begin, end)

    def word_vectors(self, lines: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Read the vectors of N words, (N, 2D) or (N, L+1, 2D), by their lines and their positions
        in these.
        """
        parts, within = np.divmod(lines, self.index.sentences_per_part)
        vectors = np.empty((len(lines), *self.index.vector_shape), self.index.dtype)
        for part in np.unique(parts).tolist():
            in_part, shard = parts == part, self._shard(part)
            vectors[in_part] = shard.take(shard.offsets[within[in_part]] + positions[in_part])
        return vectors

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
                f"{self.directory} is damaged: {INDEX_NAME} counts more sentences than there are"
            )
        return shard, int(shard.offsets[within]), int(shard.offsets[within + 1])

    def __iter__(self) -> Iterator[tuple[list[str], np.ndarray]]:
        return (self[number] for number in range(len(self)))
