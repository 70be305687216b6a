"""A shard of a store: a safetensors file that is allocated first and then filled in any order.

Its words and vectors are never all in memory: words are collected in a `TokenSpool`, vectors are written to their
offsets as they are computed, a few sentences or one direction of a window at a time. The bytes are those that
`safetensors.save_file` would write, with the checksum of the file as metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedRandom
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from elmokit.fs.disk import flush_and_drop_pages
from elmokit.fs.reading import open_regular
from elmokit.storage.checksum import UNSEALED, seal
from elmokit.storage.token_spool import TokenSpool, cut_words

DTYPES = {"F32": "float32", "F16": "float16", "I64": "int64", "U8": "uint8"}  # as safetensors and NumPy call them
NAME_OF_DTYPE = {numpy_name: name for name, numpy_name in DTYPES.items()}
NAMES = {"offsets": ("I64",), "token_offsets": ("I64",), "vectors": ("F32", "F16"), "token_bytes": ("U8",)}
WRITE_SIZE = 1 << 20  # bytes per call: Linux took six times as long to write a whole batch of vectors at once


# --- Layout --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _StoredTensor:
    """A tensor in a file."""

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
        """Read the numbers of rows begin : end, flat; the file is not kept open."""
        count = (end - begin) * self.row_size // self.dtype.itemsize
        return np.fromfile(path, self.dtype, count, offset=self.offset + begin * self.row_size)


def _header(tensors: dict[str, _StoredTensor]) -> bytes:
    """The length and the header of a safetensors file; offsets are within the data."""
    described: dict[str, object] = {"__metadata__": UNSEALED}
    described |= {
        name: {
            "dtype": NAME_OF_DTYPE[tensor.dtype.name],
            "shape": tensor.shape,
            "data_offsets": (tensor.offset, tensor.offset + tensor.size),
        }
        for name, tensor in tensors.items()
    }
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _layout(spool: TokenSpool, vector_shape: tuple[int, ...], dtype: str) -> tuple[bytes, dict[str, _StoredTensor]]:
    """The header and the tensors of a shard: widest dtype first, then by name, as safetensors has it."""
    specs = (
        ("offsets", "int64", (len(spool.offsets),)),
        ("token_offsets", "int64", (spool.num_words + 1,)),
        ("vectors", dtype, (spool.num_words, *vector_shape)),
        ("token_bytes", "uint8", (spool.num_bytes,)),
    )
    tensors, offset = {}, 0
    for name, stored_dtype, shape in specs:
        tensors[name] = _StoredTensor(np.dtype(stored_dtype), shape, offset)
        offset += tensors[name].size
    header = _header(tensors)
    return header, {name: replace(tensor, offset=len(header) + tensor.offset) for name, tensor in tensors.items()}


# --- Writing -------------------------------------------------------------------------------------------------------


@contextmanager
def nothing_overflows(dtype: np.dtype) -> Iterator[None]:
    """ValueError where a finite number overflows `dtype`."""
    try:
        with np.errstate(over="raise"):
            yield
    except FloatingPointError as error:
        raise ValueError(f"a vector has numbers that are too large for {dtype.name}: write float32") from error


class ShardWriter:
    """Writes the vectors of a shard, in any order and each once; its words are already written.

    Methods raise ValueError if vectors have another shape or dtype, or numbers overflow the dtype.
    """

    def __init__(self, file: BufferedRandom, tensor: _StoredTensor) -> None:
        self._file, self._tensor = file, tensor
        self._halves_missing = 2 * tensor.shape[0]

    def write(self, begin: int, vectors: np.ndarray) -> None:
        """Write vectors (n, 2D), or (n, L+1, 2D) for all layers, of the words from `begin` on."""
        tensor, fits = self._tensor, begin + len(vectors) <= self._tensor.shape[0]
        if (vectors.shape[1:], vectors.dtype) != (tensor.shape[1:], tensor.dtype) or not fits:
            actual, expected = (f"{array.dtype} {array.shape}" for array in (vectors, tensor))
            raise ValueError(f"vectors {actual} do not fit words {begin} and on of {expected}")
        self._write(begin, vectors)
        self._halves_missing -= 2 * len(vectors)

    def fill(self, rows: slice, columns: slice, vectors: np.ndarray) -> None:
        """Write the columns of one direction, (n, D) or (L+1, n, D), of the words `rows`."""
        stored = np.empty((rows.stop - rows.start, *self._tensor.shape[1:]), self._tensor.dtype)
        self._file.seek(self._tensor.offset + rows.start * self._tensor.row_size)
        self._file.readinto(stored.reshape(-1).view(np.uint8).data)
        with nothing_overflows(stored.dtype):
            stored[..., columns] = np.moveaxis(vectors, 1, 0) if stored.ndim == 3 else vectors
        self._write(rows.start, stored)
        self._halves_missing -= len(stored)

    def check(self) -> None:
        """ValueError where words have no vector yet."""
        if self._halves_missing:
            raise ValueError(f"{self._halves_missing / 2:g} of {self._tensor.shape[0]} words have no vectors")

    def _write(self, begin: int, rows: np.ndarray) -> None:
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        self._file.seek(self._tensor.offset + begin * self._tensor.row_size)
        for at in range(0, len(data), WRITE_SIZE):
            self._file.write(data[at : at + WRITE_SIZE])


@contextmanager
def shard_writer(path: Path, spool: TokenSpool, vector_shape: tuple[int, ...], dtype: str) -> Iterator[ShardWriter]:
    """Create a shard with the words of `spool`; ValueError unless all of them have a vector at the end."""
    header, tensors = _layout(spool, vector_shape, dtype)
    with path.open("w+b") as file:
        file.write(header)
        file.write(np.array(spool.offsets, np.int64).tobytes())
        spool.copy_to(file, tensors["token_offsets"].offset, tensors["token_bytes"].offset)
        file.truncate(tensors["token_bytes"].offset + tensors["token_bytes"].size)
        writer = ShardWriter(file, tensors["vectors"])
        yield writer
        writer.check()
        seal(file)
        flush_and_drop_pages(file, tensors["vectors"].offset, tensors["vectors"].size)


# --- Reading -------------------------------------------------------------------------------------------------------


class _Version(NamedTuple):
    """Attributes that change when a file is replaced. Not its inode, which some file systems renumber."""

    modified: int
    size: int

    @classmethod
    def of(cls, path: Path) -> _Version:
        status = path.stat()
        return cls(status.st_mtime_ns, status.st_size)


@dataclass(frozen=True)
class Shard:
    """A complete shard. Memory holds its layout and sentence offsets; words and vectors are read when needed."""

    path: Path
    tensors: dict[str, _StoredTensor]
    offsets: np.ndarray
    version: _Version  # of the file that they describe

    @property
    def num_words(self) -> int:
        return self.tensors["vectors"].shape[0]

    @property
    def num_sentences(self) -> int:
        return self.offsets.size - 1

    def bounds(self, sentence: int) -> tuple[int, int]:
        """First word and end (exclusive) of a sentence, counted over the shard."""
        return int(self.offsets[sentence]), int(self.offsets[sentence + 1])

    def words(self, begin: int, end: int) -> list[str]:
        """Read the words begin : end."""
        offsets = self._read("token_offsets", begin, end + 1)
        if offsets[0] < 0 or offsets[-1] > self.tensors["token_bytes"].shape[0] or (np.diff(offsets) < 0).any():
            raise ValueError(f"{self.path} is damaged: the words {begin} to {end} are not within it")
        return cut_words(self._read("token_bytes", int(offsets[0]), int(offsets[-1])).tobytes(), offsets)

    def vectors(self, begin: int, end: int) -> np.ndarray:
        """Read the vectors (n, 2D) or (n, L+1, 2D) of the words begin : end."""
        return self._read("vectors", begin, end)

    def _read(self, name: str, begin: int, end: int) -> np.ndarray:
        tensor = self.tensors[name]
        numbers = tensor.read(self.path, begin, end)
        if _Version.of(self.path) != self.version:
            raise ValueError(f"{self.path} was written anew since this store was opened: open the store again")
        return numbers.reshape(end - begin, *tensor.shape[1:])


def _read_layout(path: Path) -> dict[str, _StoredTensor]:
    with open_regular(path) as file:
        with safe_open(path, framework="numpy"):  # refuses a file whose length does not match its header
            pass
        length = int.from_bytes(file.read(8), "little")
        described = json.loads(file.read(length))
    missing = NAMES.keys() - described.keys()
    if missing:
        raise ValueError(f"it has no {' and no '.join(sorted(missing))}")
    tensors = {}
    for name, dtypes in NAMES.items():
        dtype, shape = described[name]["dtype"], tuple(described[name]["shape"])
        if dtype not in dtypes or (len(shape) not in (2, 3) if name == "vectors" else len(shape) != 1):
            raise ValueError(f"its {name} are {dtype} {shape}")
        tensors[name] = _StoredTensor(np.dtype(DTYPES[dtype]), shape, 8 + length + described[name]["data_offsets"][0])
    return tensors


def open_shard(path: Path) -> Shard:
    """Open a shard; ValueError where the file is truncated, foreign or inconsistent."""
    try:
        version, tensors = _Version.of(path), _read_layout(path)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is not a shard of a store, or damaged: {error}") from error
    num_words, num_bytes = tensors["vectors"].shape[0], tensors["token_bytes"].shape[0]
    if tensors["token_offsets"].shape != (num_words + 1,):
        raise ValueError(f"{path} has {num_words} vectors for {tensors['token_offsets'].shape[0] - 1} words")
    shard = Shard(path, tensors, tensors["offsets"].read(path, 0, tensors["offsets"].shape[0]), version)
    last_offset = int(tensors["token_offsets"].read(path, num_words, num_words + 1)[0])
    ends = shard.offsets[[0, -1]].tolist() if shard.offsets.size else []
    if ends != [0, num_words] or last_offset != num_bytes or (np.diff(shard.offsets) < 0).any():
        raise ValueError(f"{path} is inconsistent about its {num_words} words: remove it and run again")
    return shard
