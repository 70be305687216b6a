"""A shard of a store: a safetensors file whose vectors are written as they are computed, and read
when needed.

So they are never all in memory. The bytes are those that `safetensors.save_file` would write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

# As safetensors and NumPy call them.
DTYPES = {"F32": "float32", "F16": "float16", "I64": "int64", "U8": "uint8"}
# Bytes per call: Linux took six times as long to write a whole batch of vectors at once.
WRITE_SIZE = 1 << 20


@contextmanager
def write_shard(
    path: Path, sentences: Sequence[Sequence[str]], vector_shape: tuple[int, ...], dtype: str
) -> Iterator[Callable[[np.ndarray], None]]:
    """Create a shard with the words of `sentences`; yields the function that writes their vectors,
    in order.
    """
    words = [word.encode() for sentence in sentences for word in sentence]
    offsets, token_offsets = (
        np.cumsum([0, *map(len, each)], dtype=np.int64) for each in (sentences, words)
    )
    token_bytes, shape = b"".join(words), (len(words), *vector_shape)
    described, end = {}, 0
    for name, kind, of_tensor in (  # widest dtype first, then by name, as safetensors has it
        ("offsets", "I64", offsets.shape),
        ("token_offsets", "I64", token_offsets.shape),
        ("vectors", "F32" if dtype == "float32" else "F16", shape),
        ("token_bytes", "U8", (len(token_bytes),)),
    ):
        begin, end = end, end + np.dtype(DTYPES[kind]).itemsize * int(np.prod(of_tensor))
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
            self._token_offsets, self._token_bytes = tensor("token_offsets"), tensor("token_bytes")
            self._vectors = tensor("vectors")
            if (np.diff(self.offsets, prepend=0) < 0).any() or self.offsets[-1] != len(
                self._vectors
            ):
                raise ValueError("its sentences do not fit its words")
        except (SafetensorError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is not a shard of a store, or damaged: {error}") from error

    def words(self, begin: int, end: int) -> list[str]:
        """Read the words begin : end."""
        bounds = self._token_offsets[begin : end + 1].tolist()
        text, start = self._token_bytes[bounds[0] : bounds[-1]].tobytes(), bounds[0]
        return [text[first - start : last - start].decode() for first, last in pairwise(bounds)]

    def lines_with(self, words: Collection[str]) -> np.ndarray:
        """The numbers of the lines in the shard that have one of some words, in lower case or any
        other.
        """
        # Only words of a length in bytes that one of them has in either case are read.
        lengths = {len(cased.encode()) for word in words for cased in (word, word.upper())}
        places = np.flatnonzero(np.isin(np.diff(self._token_offsets), list(lengths))).tolist()
        text, bounds = self._token_bytes.tobytes(), self._token_offsets.tolist()
        found = [
            place
            for place in places
            if text[bounds[place] : bounds[place + 1]].decode().lower() in words
        ]
        return np.unique(np.searchsorted(self.offsets, found, side="right") - 1)

    def vectors(self, begin: int, end: int) -> np.ndarray:
        """Read the vectors (n, 2D) or (n, L+1, 2D) of the words begin : end."""
        return self._vectors[begin:end].copy()

    def take(self, words: np.ndarray) -> np.ndarray:
        """Read the vectors of some words."""
        return self._vectors[words]
