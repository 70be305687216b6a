"""Embeddings on disk: a directory of `index.json` and `part-NNNNN.safetensors`.

Every part holds the same number of sentences (the last may hold fewer):

    vectors        (N, 2D) or (N, L+1, 2D)   float32 or float16, N words laid end to end
    offsets        (S+1,)                    int64, sentence s is the words offsets[s] : offsets[s+1]
    token_bytes    (all bytes,)              uint8, the words in UTF-8, end to end
    token_offsets  (N+1,)                    int64, word n is the bytes token_offsets[n] : token_offsets[n+1]
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from elmokit.files import atomic_path

INDEX_NAME = "index.json"
DTYPES = {"F32": "float32", "F16": "float16"}  # what safetensors calls them, what NumPy calls them


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
        if self.dtype not in DTYPES.values():
            raise ValueError(f"embeddings are stored as {' or '.join(DTYPES.values())}, not {self.dtype!r}")
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


# --- One part ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """One open part; the vectors stay in the memory-mapped file until they are asked for."""

    vectors: Any  # a slice of the file: indexing it reads
    offsets: np.ndarray
    token_bytes: bytes
    token_offsets: np.ndarray

    @property
    def num_words(self) -> int:
        return self.token_offsets.size - 1

    @property
    def num_sentences(self) -> int:
        return self.offsets.size - 1

    def sentence(self, number: int) -> tuple[list[str], np.ndarray]:
        begin, end = int(self.offsets[number]), int(self.offsets[number + 1])
        if begin == end:  # safetensors refuses to slice no rows
            return [], np.empty((0, *self.vectors.get_shape()[1:]), DTYPES[self.vectors.get_dtype()])
        bounds = pairwise(self.token_offsets[begin : end + 1].tolist())
        words = [self.token_bytes[start:stop].decode("utf-8", "surrogatepass") for start, stop in bounds]
        return words, self.vectors[begin:end]


def _part_path(directory: Path, number: int) -> Path:
    return directory / f"part-{number:05d}.safetensors"


def _open_part(path: Path) -> _Part:
    """ValueError where the file is cut short, foreign, or does not agree with itself."""
    try:
        file = safe_open(path, framework="numpy")  # refuses a file whose length its header does not explain
        offsets, token_bytes, token_offsets = map(file.get_tensor, ("offsets", "token_bytes", "token_offsets"))
        part = _Part(file.get_slice("vectors"), offsets, token_bytes.tobytes(), token_offsets)
    except SafetensorError as error:
        raise ValueError(f"{path} is no part of a directory of embeddings, or is damaged: {error}") from error
    if not part.offsets[-1] == part.num_words == part.vectors.get_shape()[0]:
        raise ValueError(f"{path} has {part.vectors.get_shape()[0]} vectors for {part.num_words} words")
    return part


def _is_readable(path: Path) -> bool:
    try:
        _open_part(path)
    except (ValueError, OSError):
        return False
    return True


def finished_parts(directory: str | Path) -> list[int]:
    """The numbers of the parts that are there and readable; a cut or foreign file does not count."""
    paths = Path(directory).glob("part-[0-9]*.safetensors")
    return sorted(int(path.stem.removeprefix("part-")) for path in paths if _is_readable(path))


# --- Writing, part by part ---------------------------------------------------------------------------------------


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


def _offsets(lengths: Iterable[int]) -> np.ndarray:
    """(n,) lengths -> (n+1,) int64 where each piece begins, and where the last one ends."""
    return np.cumsum([0, *lengths], dtype=np.int64)


def write_part(
    directory: str | Path,
    index: StoreIndex,
    number: int,
    sentences: Sequence[Sequence[str]],
    vectors: Iterable[np.ndarray],
) -> None:
    """Write one part, whole or not at all; the same input gives the same bytes.

    `vectors` are the embedder's arrays, one a sentence, (T, 2D), or (L+1, T, 2D) for all layers; they may still be
    in the making, so that the part is held once.
    """
    offsets = _offsets(len(sentence) for sentence in sentences)
    encoded = [word.encode("utf-8", "surrogatepass") for sentence in sentences for word in sentence]
    joined = np.empty((len(encoded), *index.vector_shape), dtype=index.dtype)
    for (begin, end), array in zip(pairwise(offsets), vectors, strict=True):
        words_first = np.moveaxis(array, 1, 0) if len(index.vector_shape) == 2 else array
        if words_first.shape != (end - begin, *index.vector_shape):
            raise ValueError(f"vectors of shape {array.shape} for a sentence of {end - begin} words")
        joined[begin:end] = words_first
    tensors = {
        "vectors": joined,
        "offsets": offsets,
        "token_bytes": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        "token_offsets": _offsets(map(len, encoded)),
    }
    with atomic_path(_part_path(Path(directory), number)) as path:
        save_file(tensors, path)


def finish_store(directory: str | Path, index: StoreIndex, num_parts: int) -> StoreIndex:
    """Count what the parts hold and mark the directory complete; ValueError if one of `num_parts` is missing."""
    directory = Path(directory)
    missing = sorted(set(range(num_parts)) - set(finished_parts(directory)))
    if missing:
        raise ValueError(f"{directory} lacks the parts {missing}: run the same command again to make them")
    num_sentences = num_words = 0
    for number in range(num_parts):
        part = _open_part(_part_path(directory, number))
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

    Vectors are (T, 2D), or (T, L+1, 2D) for all layers, in the stored dtype. A blank line is a sentence of length zero.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.index = read_index(directory)
        if not self.index.complete:
            raise ValueError(f"{directory} is not finished: run the same command again, it takes up where it was")
        self._part = lru_cache(maxsize=4)(lambda number: _open_part(_part_path(self.directory, number)))

    def __len__(self) -> int:
        return self.index.num_sentences

    def __getitem__(self, number: int) -> tuple[list[str], np.ndarray]:
        if not -len(self) <= number < len(self):
            raise IndexError(f"sentence {number} of {len(self)}")
        part, within = divmod(number % len(self), self.index.sentences_per_part)
        return self._part(part).sentence(within)

    def __iter__(self) -> Iterator[tuple[list[str], np.ndarray]]:
        return (self[number] for number in range(len(self)))
