"""Embeddings on disk: a directory of `index.json` and `part-NNNNN.safetensors`.

Every part holds the same number of sentences (the last may hold fewer):

    vectors        (N, 2D) or (N, L+1, 2D)   float32 or float16, N words laid end to end
    offsets        (S+1,)                    int64, sentence s is the words offsets[s] : offsets[s+1]
    token_bytes    (all bytes,)              uint8, the words in UTF-8, end to end
    token_offsets  (N+1,)                    int64, word n is the bytes token_offsets[n] : token_offsets[n+1]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.fs.atomic import atomic_path
from elmokit.storage.shard import Part, PartWriter, open_part, part_writer
from elmokit.storage.token_spool import TokenSpool

INDEX_NAME = "index.json"
DTYPES = ("float32", "float16")


# --- The index ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StoreIndex:
    """What a directory of embeddings holds; everything above `num_parts` decides the bytes of its parts."""

    model: str  # fingerprint of the model that made the vectors
    layers: str  # as asked of the embedder: "mix", "all", "top", ...
    vector_shape: tuple[int, ...]  # of one word: (2D,), or (L+1, 2D) for all layers
    dtype: str = "float32"
    sentences_per_part: int = 1000
    source_bytes: int = 0  # size of the text file that was embedded
    arguments: str = ""  # hash of every other argument that the vectors depend on
    num_parts: int = 0
    num_sentences: int = 0
    num_words: int = 0
    complete: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"embeddings are stored as {' or '.join(DTYPES)}, not {self.dtype!r}")
        if len(self.vector_shape) not in (1, 2):
            raise ValueError(f"a word's vector has shape (2D,) or (L+1, 2D), not {self.vector_shape}")
        if self.sentences_per_part < 1:
            raise ValueError(f"a part holds at least one sentence, not {self.sentences_per_part}")

    @property
    def identity(self) -> dict[str, Any]:
        """What must agree for two runs to share a directory."""
        totals = ("num_parts", "num_sentences", "num_words", "complete")
        return {name: value for name, value in asdict(self).items() if name not in totals}

    def write(self, directory: Path) -> None:
        with atomic_path(directory / INDEX_NAME) as path:
            path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def read_index(directory: str | Path) -> StoreIndex:
    """The index of a directory of embeddings; ValueError where it is not one."""
    path = Path(directory) / INDEX_NAME
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no embeddings: there is no {INDEX_NAME} in it")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return StoreIndex(**{**content, "vector_shape": tuple(content["vector_shape"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not an index of embeddings ({error})") from error


# --- Writing, part by part ---------------------------------------------------------------------------------------


def _part_path(directory: Path, number: int) -> Path:
    return directory / f"part-{number:05d}.safetensors"


def _readable(path: Path) -> Part | None:
    try:
        return open_part(path)
    except (ValueError, OSError):
        return None


def finished_parts(directory: str | Path) -> list[int]:
    """The numbers of the parts that are there and readable; a cut or foreign file does not count."""
    paths = Path(directory).glob("part-[0-9]*.safetensors")
    numbers = {path.stem.removeprefix("part-"): path for path in paths}
    return sorted(int(number) for number, path in numbers.items() if number.isdecimal() and _readable(path))


def begin_store(directory: str | Path, index: StoreIndex) -> list[int]:
    """Create a directory of embeddings, or take up one that a killed run of the same arguments left.

    Returns the numbers of the parts that need not be made again. A directory of other vectors is a ValueError.
    """
    directory = Path(directory)
    if (directory / INDEX_NAME).exists():
        found, wanted = read_index(directory).identity, index.identity
        changed = [f"{name} is {found[name]!r}, now {wanted[name]!r}" for name in wanted if found[name] != wanted[name]]
        if changed:
            raise ValueError(f"{directory} holds other embeddings ({'; '.join(changed)}): remove it or name another")
    elif directory.exists() and any(not path.name.startswith(".") for path in directory.iterdir()):
        raise ValueError(f"{directory} is not empty and holds no embeddings: name another directory")
    else:
        index.write(directory)
    return finished_parts(directory)


@contextmanager
def new_part(directory: str | Path, index: StoreIndex, number: int, spool: TokenSpool) -> Iterator[PartWriter]:
    """Write one part, whole or not at all, with the words of `spool`; the same input gives the same bytes.

    The writer takes the vectors in any order; ValueError where words have none at the end.
    """
    with (
        atomic_path(_part_path(Path(directory), number)) as path,
        part_writer(path, spool, index.vector_shape, index.dtype) as writer,
    ):
        yield writer


def finish_store(directory: str | Path, index: StoreIndex, num_parts: int) -> StoreIndex:
    """Count what the parts hold and mark the directory complete; ValueError if one of `num_parts` is missing."""
    directory = Path(directory)
    found = {number: _readable(_part_path(directory, number)) for number in range(num_parts)}
    if missing := [number for number, part in found.items() if part is None]:
        raise ValueError(f"{directory} lacks the parts {missing}: run the same command again to make them")
    num_sentences = num_words = 0
    for number, part in found.items():
        assert part is not None
        if part.num_sentences != index.sentences_per_part and number < num_parts - 1:
            raise ValueError(f"only the last part may be short, part {number} of {directory} is: remove and repeat it")
        num_sentences, num_words = num_sentences + part.num_sentences, num_words + part.num_words
    totals = {"num_parts": num_parts, "num_sentences": num_sentences, "num_words": num_words}
    finished = replace(index, complete=True, **totals)
    finished.write(directory)
    return finished


# --- Reading -----------------------------------------------------------------------------------------------------


class EmbeddingStore:
    """The finished embeddings of a file: `store[i]` is (words, vectors) of line i, read when asked for.

    Of a long line `store.vectors(i, slice(begin, end))` reads no more than those words; no file is kept open.
    Vectors are (T, 2D), or (T, L+1, 2D) for all layers, in the stored dtype. A blank line is a sentence of length zero.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.index = read_index(directory)
        if not self.index.complete:
            raise ValueError(f"{directory} is not finished: run the same command again, it takes up where it was")
        self._part = lru_cache(maxsize=64)(lambda number: open_part(_part_path(self.directory, number)))

    def __repr__(self) -> str:
        index = self.index
        return (
            f"EmbeddingStore({str(self.directory)!r}: {index.num_sentences:,} sentences, {index.num_words:,} words, "
            f"layers {index.layers!r}, {index.dtype} {index.vector_shape} a word)"
        )

    def __reduce__(self) -> tuple[type[EmbeddingStore], tuple[Path]]:
        """A copy, as for another process, opens the directory again."""
        return EmbeddingStore, (self.directory,)

    def __len__(self) -> int:
        return self.index.num_sentences

    def __getitem__(self, number: int) -> tuple[list[str], np.ndarray]:
        part, begin, end = self._bounds(number)
        return part.words(begin, end), part.vectors(begin, end)

    def length(self, number: int) -> int:
        """How many words line `number` has."""
        _, begin, end = self._bounds(number)
        return end - begin

    def words(self, number: int) -> list[str]:
        """The words of line `number`, without its vectors."""
        part, begin, end = self._bounds(number)
        return part.words(begin, end)

    def vectors(self, number: int, rows: slice = slice(None)) -> np.ndarray:
        """The vectors of the words `rows` of line `number`; no others are read. ValueError for a slice with a step."""
        part, begin, end = self._bounds(number)
        first, stop, step = rows.indices(end - begin)
        if step != 1:
            raise ValueError(f"rows have a step of {step}: read them without, and take from the array what is wanted")
        return part.vectors(begin + first, begin + max(first, stop))

    def _bounds(self, number: int) -> tuple[Part, int, int]:
        """The part that holds a line, and the words there that are the line's."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"sentence {number} of {len(self)}")
        part_number, within = divmod(number % len(self), self.index.sentences_per_part)
        part = self._part(part_number)
        return part, *part.bounds(within)

    def __iter__(self) -> Iterator[tuple[list[str], np.ndarray]]:
        return (self[number] for number in range(len(self)))
