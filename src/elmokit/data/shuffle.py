"""Shuffling of documents into shards, in the memory of one shard and two passes over the disk.

Documents are appended to the file of their shard in order of arrival, each with a sort key, a hash of its number and
the seed. Afterwards each file is sorted in memory.
"""

import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import zstandard

from elmokit.fs.atomic import atomic_path, create_bytes
from elmokit.fs.reading import read_blocks

# Total size of the write buffers of all shards.
BUFFER_BYTES = 1 << 26
KEY_DIGITS = 16  # hexadecimal digits of a sort key


def sort_key(number: int, seed: int) -> int:
    """A 64-bit hash of a document's number, which determines its shard and its position there."""
    return int.from_bytes(blake2b(f"{seed}:{number}".encode(), digest_size=8).digest(), "big")


class Scatter:
    """Distributes documents to the files of their shards, which are truncated to a checkpoint when a run resumes."""

    def __init__(self, directory: Path, num_shards: int, seed: int, sizes: Sequence[int] = ()) -> None:
        """Open the files.

        Args:
            directory: Directory of the files.
            num_shards: Number of shards.
            seed: Seed of the shuffling.
            sizes: Size in bytes to which each file is truncated; by default 0.

        Raises:
            ValueError: A file is smaller than its size.
        """
        self._paths = [directory / f"scattered-{shard:05d}.zst" for shard in range(num_shards)]
        self._seed = seed
        self._buffers: list[list[bytes]] = [[] for _ in self._paths]
        self._buffer_bytes = [0] * num_shards
        self._limit = max(1 << 12, BUFFER_BYTES // num_shards)
        for path, size in zip(self._paths, sizes or [0] * num_shards, strict=True):
            with path.open("ab") as file:
                if file.tell() < size:
                    raise ValueError(
                        f"{path} is shorter than at the last checkpoint: remove {path.parent} to start over"
                    )
                file.truncate(size)

    def add(self, number: int, text: str) -> None:
        """Add a document to its shard; `text` is lines that are not blank, each with a newline."""
        key = sort_key(number, self._seed)
        shard = key % len(self._paths)
        record = f"{key:0{KEY_DIGITS}x}\n{text}\n".encode()
        self._buffers[shard].append(record)
        self._buffer_bytes[shard] += len(record)
        if self._buffer_bytes[shard] >= self._limit:
            self._write(shard, sync=False)

    def _write(self, shard: int, sync: bool) -> int:
        """Append the buffer of a shard to its file as a zstd frame, and return the size of the file."""
        with self._paths[shard].open("ab") as file:
            if self._buffers[shard]:
                file.write(zstandard.ZstdCompressor(level=1).compress(b"".join(self._buffers[shard])))
                self._buffers[shard].clear()
                self._buffer_bytes[shard] = 0
            if sync:
                file.flush()
                os.fsync(file.fileno())
            return file.tell()

    def sync(self) -> list[int]:
        """Write all buffers to disk, and return the sizes of the files."""
        return [self._write(shard, sync=True) for shard in range(len(self._paths))]

    def write_shuffled(self, shard: int, path: Path) -> None:
        """Write the documents of a shard in shuffled order, after `sync`."""
        records = b"".join(read_blocks(self._paths[shard])).split(b"\n\n")
        records.sort()
        with atomic_path(path) as partial, create_bytes(partial) as file:
            for record in records:
                if record:
                    file.write(record[KEY_DIGITS + 1 :] + b"\n")
