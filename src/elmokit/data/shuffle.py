"""Shuffling of documents into shards, in the memory of one shard and two passes over the disk.

Documents are appended to the file of their shard in order of arrival, each with a sort key, a hash of its number and
the seed. Afterwards each file is sorted in memory.
"""

from hashlib import blake2b
from pathlib import Path

import zstandard

from elmokit.fs.atomic import create_bytes
from elmokit.fs.reading import read_blocks
from elmokit.progress import ProgressBar

BUFFER_BYTES = 1 << 26  # of all shards
KEY_DIGITS = 16  # hexadecimal digits of a sort key


def sort_key(number: int, seed: int) -> int:
    """A 64-bit hash of a document's number, which determines its shard and its position there."""
    return int.from_bytes(blake2b(f"{seed}:{number}".encode(), digest_size=8).digest(), "big")


class ShuffledShards:
    """Writes documents to shard-NNNNN.txt.zst in shuffled order; the lines of a document stay together."""

    def __init__(self, directory: Path, num_shards: int, seed: int) -> None:
        self._directory, self._seed = directory, seed
        self._buffers: list[list[bytes]] = [[] for _ in range(num_shards)]
        self._buffered = 0

    def add(self, number: int, text: str) -> None:
        """Add a document; `text` is lines that are not blank, each with a newline."""
        key = sort_key(number, self._seed)
        record = f"{key:0{KEY_DIGITS}x}\n{text}\n".encode()
        self._buffers[key % len(self._buffers)].append(record)
        self._buffered += len(record)
        if self._buffered >= BUFFER_BYTES:
            self._flush()

    def _unsorted(self, shard: int) -> Path:
        return self._directory / f"unsorted-{shard:05d}.zst"

    def _flush(self) -> None:
        for shard, buffer in enumerate(self._buffers):
            with self._unsorted(shard).open("ab") as file:  # opened anew, as there may be more shards than open files
                file.write(zstandard.ZstdCompressor(level=1).compress(b"".join(buffer)))
            buffer.clear()
        self._buffered = 0

    def finish(self) -> None:
        """Write the shards, after the last document."""
        self._flush()
        for shard in ProgressBar(range(len(self._buffers)), unit=" shards", desc="shuffle"):
            records = b"".join(read_blocks(self._unsorted(shard))).split(b"\n\n")
            self._unsorted(shard).unlink()
            with create_bytes(self._directory / f"shard-{shard:05d}.txt.zst") as file:
                for record in filter(None, sorted(records)):
                    file.write(record[KEY_DIGITS + 1 :] + b"\n")
