"""Documents dealt to shards and shuffled within each, in memory of one shard: a pass to the disk and one from it.

A shard's documents go to a file of its own in the order of their arrival, each with its place in the shuffled order, a
hash of its number and the seed. Afterwards each of these files is sorted in memory.
"""

import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import zstandard

from elmokit.fs.atomic import atomic_path, create_bytes
from elmokit.fs.reading import read_blocks

# What waits in memory for all shards together, before it goes to their files.
WAITING_BYTES = 1 << 26
PLACE_BYTES = 16  # of a document, in hexadecimal digits


def shuffled_place(number: int, seed: int) -> int:
    """A 64-bit hash of a document's number, by which documents are dealt and sorted."""
    return int.from_bytes(blake2b(f"{seed}:{number}".encode(), digest_size=8).digest(), "big")


class Scatter:
    """Deals documents to the files of their shards, which can be cut back to an earlier size."""

    def __init__(self, directory: Path, num_shards: int, seed: int, sizes: Sequence[int] = ()) -> None:
        """Files in `directory`, cut to the first `sizes` bytes: empty ones where there are none.

        Raises:
            ValueError: A file is shorter.
        """
        self._paths = [directory / f"scattered-{shard:05d}.zst" for shard in range(num_shards)]
        self._seed = seed
        self._waiting: list[list[bytes]] = [[] for _ in self._paths]
        self._waiting_bytes = [0] * num_shards
        self._limit = max(1 << 12, WAITING_BYTES // num_shards)
        for path, size in zip(self._paths, sizes or [0] * num_shards, strict=True):
            with path.open("ab") as file:
                if file.tell() < size:
                    raise ValueError(f"{path} is shorter than it was: give the command again, which begins anew")
                file.truncate(size)

    def add(self, number: int, text: str) -> None:
        """Deal a document, whose text is lines that are not blank, each with its line end."""
        place = shuffled_place(number, self._seed)
        shard = place % len(self._paths)
        record = f"{place:0{PLACE_BYTES}x}\n{text}\n".encode()
        self._waiting[shard].append(record)
        self._waiting_bytes[shard] += len(record)
        if self._waiting_bytes[shard] >= self._limit:
            self._write(shard, sync=False)

    def _write(self, shard: int, sync: bool) -> int:
        """Append what waits, a zstd frame, and return the size of the file."""
        with self._paths[shard].open("ab") as file:
            if self._waiting[shard]:
                file.write(zstandard.ZstdCompressor(level=1).compress(b"".join(self._waiting[shard])))
                self._waiting[shard].clear()
                self._waiting_bytes[shard] = 0
            if sync:
                file.flush()
                os.fsync(file.fileno())
            return file.tell()

    def sync(self) -> list[int]:
        """Bring all documents to the disk, and return the sizes of the files."""
        return [self._write(shard, sync=True) for shard in range(len(self._paths))]

    def write_shuffled(self, shard: int, path: Path) -> None:
        """Write the texts of a shard's documents, which must be on the disk, in their shuffled order."""
        records = b"".join(read_blocks(self._paths[shard])).split(b"\n\n")
        records.sort()
        with atomic_path(path) as partial, create_bytes(partial) as file:
            for record in records:
                if record:
                    file.write(record[PLACE_BYTES + 1 :] + b"\n")
