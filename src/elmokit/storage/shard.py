"""One part of a directory of embeddings: a safetensors file that is laid out first and filled in any order.

So neither its words nor its vectors are ever held together: words wait in a `TokenSpool`, vectors go to their place
as they are made, those of some sentences or half of those of a long one at a time. The bytes are those that
safetensors' own `save_file` writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedRandom
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from elmokit.fs.atomic import to_disk
from elmokit.storage.token_spool import TokenSpool, cut_words

DTYPES = {"F32": "float32", "F16": "float16", "I64": "int64", "U8": "uint8"}  # as safetensors and NumPy call them
NAME_OF_DTYPE = {numpy_name: name for name, numpy_name in DTYPES.items()}
TENSORS = {"offsets", "token_offsets", "vectors", "token_bytes"}
WRITE_SIZE = 1 << 20  # bytes at a time: Linux took six times as long for a whole block of vectors


# --- Where tensors lie ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies in a file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def row_size(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def size(self) -> int:
        return self.shape[0] * self.row_size

    def read(self, path: Path, begin: int, end: int) -> np.ndarray:
        """Rows begin : end, read now; the file is not kept open."""
        count = (end - begin) * self.row_size // self.dtype.itemsize
        found = np.fromfile(path, self.dtype, count, offset=self.offset + begin * self.row_size)
        return found.reshape(end - begin, *self.shape[1:])


def _header(places: dict[str, _Place]) -> bytes:
    """The header of a safetensors file, behind its length; `places` lie within the data, in this order."""
    described = {
        name: {
            "dtype": NAME_OF_DTYPE[place.dtype.name],
            "shape": place.shape,
            "data_offsets": (place.offset, place.offset + place.size),
        }
        for name, place in places.items()
    }
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _laid_out(spool: TokenSpool, vector_shape: tuple[int, ...], dtype: str) -> tuple[bytes, dict[str, _Place]]:
    """Header and places of a part: widest numbers first, then by name, as safetensors has it."""
    tensors = (
        ("offsets", "int64", (len(spool.offsets),)),
        ("token_offsets", "int64", (spool.num_words + 1,)),
        ("vectors", dtype, (spool.num_words, *vector_shape)),
        ("token_bytes", "uint8", (spool.num_bytes,)),
    )
    places, offset = {}, 0
    for name, number_type, shape in tensors:
        places[name] = _Place(np.dtype(number_type), shape, offset)
        offset += places[name].size
    header = _header(places)
    return header, {name: replace(place, offset=len(header) + place.offset) for name, place in places.items()}


# --- Writing -------------------------------------------------------------------------------------------------------


@contextmanager
def nothing_overflows(dtype: np.dtype) -> Iterator[None]:
    """ValueError where a number becomes infinite only because `dtype` is too small for it."""
    try:
        with np.errstate(over="raise"):
            yield
    except FloatingPointError as error:
        raise ValueError(f"a vector has numbers that are too large for {dtype.name}: write float32") from error


def join_sentences(sentences: Sequence[np.ndarray], vector_shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """(T, 2D) of each sentence, or (L+1, T, 2D) for all layers -> the vectors of all words, as a part holds them.

    ValueError where they are of another shape than `vector_shape` says, or numbers are too large for `dtype`.
    """
    for vectors in sentences:
        if (*vectors.shape[:-2], vectors.shape[-1]) != vector_shape:
            raise ValueError(f"vectors {vectors.shape} are not those of words with {vector_shape} each")
    by_word = [vectors if vectors.ndim == 2 else vectors.swapaxes(0, 1) for vectors in sentences]
    with nothing_overflows(np.dtype(dtype)):
        return np.concatenate([np.empty((0, *vector_shape), np.float32), *by_word]).astype(dtype)


class PartWriter:
    """A part in the making: its words are there, its vectors come in any order, each once.

    ValueError where vectors do not fit their places, or numbers the type that they are stored in.
    """

    def __init__(self, file: BufferedRandom, place: _Place) -> None:
        self._file, self._place = file, place
        self._halves_missing = 2 * place.shape[0]

    def write(self, begin: int, vectors: np.ndarray) -> None:
        """Whole vectors (n, 2D), or (n, L+1, 2D) for all layers, as they are stored, of the words from `begin` on."""
        place, fits = self._place, begin + len(vectors) <= self._place.shape[0]
        if (vectors.shape[1:], vectors.dtype) != (place.shape[1:], place.dtype) or not fits:
            found, expected = (f"{array.dtype} {array.shape}" for array in (vectors, place))
            raise ValueError(f"vectors {found} do not fit words {begin} and on of {expected}")
        self._write(begin, vectors)
        self._halves_missing -= 2 * len(vectors)

    def fill(self, rows: slice, columns: slice, vectors: np.ndarray) -> None:
        """Half of the columns, those of one direction, (n, D) or (L+1, n, D), of the words `rows`."""
        found = np.empty((rows.stop - rows.start, *self._place.shape[1:]), self._place.dtype)
        self._file.seek(self._place.offset + rows.start * self._place.row_size)
        self._file.readinto(found.reshape(-1).view(np.uint8).data)
        with nothing_overflows(found.dtype):
            found[..., columns] = np.moveaxis(vectors, 1, 0) if found.ndim == 3 else vectors
        self._write(rows.start, found)
        self._halves_missing -= len(found)

    def check(self) -> None:
        """ValueError where words have no vector yet."""
        if self._halves_missing:
            raise ValueError(f"{self._halves_missing / 2:g} of {self._place.shape[0]} words have no vectors")

    def _write(self, begin: int, rows: np.ndarray) -> None:
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        self._file.seek(self._place.offset + begin * self._place.row_size)
        for at in range(0, len(data), WRITE_SIZE):
            self._file.write(data[at : at + WRITE_SIZE])


@contextmanager
def part_writer(path: Path, spool: TokenSpool, vector_shape: tuple[int, ...], dtype: str) -> Iterator[PartWriter]:
    """Lay out a part for the words of `spool`; ValueError where not all of them have a vector at the end."""
    header, places = _laid_out(spool, vector_shape, dtype)
    with path.open("w+b") as file:
        file.write(header)
        file.write(np.array(spool.offsets, np.int64).tobytes())
        spool.copy_to(file, places["token_offsets"].offset, places["token_bytes"].offset)
        file.truncate(places["token_bytes"].offset + places["token_bytes"].size)
        writer = PartWriter(file, places["vectors"])
        yield writer
        writer.check()
        to_disk(file, places["vectors"].offset, places["vectors"].size)


# --- Reading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A finished part, of which nothing but its table is held: words and vectors are read when they are asked for."""

    path: Path
    places: dict[str, _Place]
    offsets: np.ndarray

    @property
    def num_words(self) -> int:
        return self.places["vectors"].shape[0]

    @property
    def num_sentences(self) -> int:
        return self.offsets.size - 1

    def bounds(self, sentence: int) -> tuple[int, int]:
        """The words of a sentence, counted over the part."""
        return int(self.offsets[sentence]), int(self.offsets[sentence + 1])

    def words(self, begin: int, end: int) -> list[str]:
        """Words begin : end."""
        offsets = self._read("token_offsets", begin, end + 1)
        return cut_words(self._read("token_bytes", int(offsets[0]), int(offsets[-1])).tobytes(), offsets)

    def vectors(self, begin: int, end: int) -> np.ndarray:
        """(n, 2D) or (n, L+1, 2D) of the words begin : end."""
        return self._read("vectors", begin, end)

    def _read(self, name: str, begin: int, end: int) -> np.ndarray:
        return self.places[name].read(self.path, begin, end)


def _places_in(path: Path) -> dict[str, _Place]:
    with safe_open(path, framework="numpy"):  # refuses a file whose length its header does not explain
        pass
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        described = json.loads(file.read(length))
    missing = TENSORS - described.keys()
    if missing:
        raise SafetensorError(f"it has no {' and no '.join(sorted(missing))}")
    return {
        name: _Place(
            np.dtype(DTYPES[described[name]["dtype"]]),
            tuple(described[name]["shape"]),
            8 + length + described[name]["data_offsets"][0],
        )
        for name in TENSORS
    }


def open_part(path: Path) -> Part:
    """ValueError where the file is cut short, foreign, or does not agree with itself."""
    try:
        places = _places_in(path)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is no part of a directory of embeddings, or is damaged: {error}") from error
    num_words, num_bytes = places["vectors"].shape[0], places["token_bytes"].shape[0]
    if places["token_offsets"].shape != (num_words + 1,):
        raise ValueError(f"{path} has {num_words} vectors for {places['token_offsets'].shape[0] - 1} words")
    part = Part(path, places, places["offsets"].read(path, 0, places["offsets"].shape[0]))
    bytes_told = int(places["token_offsets"].read(path, num_words, num_words + 1)[0])
    if part.offsets[-1:].tolist() != [num_words] or bytes_told != num_bytes:
        raise ValueError(f"{path} does not agree with itself about its {num_words} words: remove it and run again")
    return part
