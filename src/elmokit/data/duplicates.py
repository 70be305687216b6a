"""Exact and near duplicates among documents and paragraphs, with an index of a few hundred bytes per document.

Near duplicates are documents whose sets of five-word shingles have an estimated Jaccard similarity of at least a
threshold. The estimate is MinHash's (Broder, 1997); candidates are documents that agree in a band of the signature
(locality-sensitive hashing; Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3). rensa computes
the signatures.

Pages of one template may all agree in a band although they are less similar than the threshold. To keep the time linear
in their number, a document is compared with the first `CANDIDATES` documents of each of its bands only.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from elmokit.text.scripts import UNSPACED_LETTER

# Shorter lines that repeat, such as headings or "Yes.", are rarely copies.
PARAGRAPH_CHARACTERS = 100
SHINGLE_WORDS = 5
PERMUTATIONS = 128
BANDS = 16  # a pair with similarity 0.8 becomes a candidate with probability 0.95, one with 0.9 with 0.9999
SIMILARITY = 0.8
CANDIDATES = 1_000


# --- Fingerprints ----------------------------------------------------------------------------------------------------


def text_key(text: str) -> int:
    """A hash of a text, from 1 to 2^64 - 1, that ignores differences in white space."""
    digest = blake2b(" ".join(text.split()).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


@lru_cache(maxsize=1)
def _kinds() -> np.ndarray:
    """The kind of each code point: 0 not part of a word, 1 part of a word, 2 a word by itself (unspaced scripts)."""
    points = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    kinds = np.zeros(0x110000, np.uint8)
    for kind, pattern in ((1, re.compile(r"\w")), (2, UNSPACED_LETTER)):
        kinds[[ord(character) for character in pattern.findall(points)]] = kind
    return kinds


@lru_cache(maxsize=1)
def _multipliers() -> np.ndarray:
    """Odd pseudorandom multipliers, (64,) uint64, the same on every machine."""
    digests = (blake2b(str(number).encode(), digest_size=8).digest() for number in range(64))
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64) | np.uint64(1)


def shingle_hashes(text: str) -> np.ndarray:
    """Hashes of the five-word shingles of a text, (S,) uint64; a text of fewer words is a single shingle."""
    points = np.frombuffer(text.casefold().encode("utf-32-le", "surrogatepass"), "<u4")
    kinds = _kinds()[points]
    begins = np.flatnonzero((kinds == 2) | ((kinds == 1) & (np.concatenate(([0], kinds[:-1])) != 1)))
    if not len(begins):
        return np.empty(0, np.uint64)
    multipliers = _multipliers()
    # The hash of a word is the sum of its characters, each multiplied by a number that depends on its position.
    positions = np.arange(begins[0], len(points)) - np.repeat(begins, np.diff(begins, append=len(points)))
    characters = np.where(kinds > 0, points, 0)[begins[0] :].astype(np.uint64)
    words = np.add.reduceat(characters * multipliers[positions % 64], begins - begins[0])
    words = (words ^ (words >> np.uint64(31))) * multipliers[0]

    length = min(SHINGLE_WORDS, len(words))
    count = len(words) - length + 1
    hashes = np.zeros(count, np.uint64)
    for offset in range(length):
        hashes += words[offset : offset + count] * multipliers[offset + 1]
    return (hashes ^ (hashes >> np.uint64(29))) * multipliers[0]


def signatures(texts: Sequence[str]) -> list[np.ndarray | None]:
    """MinHash signatures of texts, (128,) uint32 each; None for texts without words, which match no other.

    The fraction of equal entries estimates the Jaccard similarity of two texts.
    """
    from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]  (a compiled module)

    hashes = [shingle_hashes(text) for text in texts]
    offsets = np.cumsum([0, *map(len, hashes)]).astype(np.uint64)
    flat = np.concatenate([np.empty(0, np.uint64), *hashes])
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(flat, offsets, PERMUTATIONS, 0)
    rows = np.array(matrix.to_rows(), dtype=np.uint32)
    return [row if len(shingles) else None for row, shingles in zip(rows, hashes, strict=True)]


def band_hashes(rows: np.ndarray) -> np.ndarray:
    """Signatures (N, 128) -> the hashes of their bands (N, 16) uint64."""
    bands = rows.reshape(len(rows), BANDS, PERMUTATIONS // BANDS).astype(np.uint64)
    multipliers = _multipliers()
    mixed = (bands * multipliers[: bands.shape[2]]).sum(axis=2) + np.arange(1, BANDS + 1, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * multipliers[:BANDS]
    return mixed ^ (mixed >> np.uint64(29))


@dataclass(frozen=True)
class Fingerprint:
    """The hashes by which documents are compared.

    Attributes:
        document: Hash of the text.
        paragraphs: Hash of each line; 0 for lines that are too short to be compared.
        signature: MinHash signature, (128,) uint32; None without words, or if near duplicates are not looked for.
    """

    document: int
    paragraphs: list[int]
    signature: np.ndarray | None


def fingerprints(documents: Sequence[Sequence[str]], near: bool) -> list[Fingerprint]:
    """Compute the fingerprints of documents.

    Args:
        documents: The lines of each document.
        near: Compute signatures too, by which near duplicates are found.

    Returns:
        A fingerprint for each document.
    """
    texts = ["\n".join(lines) for lines in documents]
    rows = signatures(texts) if near else [None] * len(texts)
    return [
        Fingerprint(text_key(text), [text_key(line) if len(line) >= PARAGRAPH_CHARACTERS else 0 for line in lines], row)
        for text, lines, row in zip(texts, documents, rows, strict=True)
    ]


# --- Index -----------------------------------------------------------------------------------------------------------


class HashIndex:
    """A multimap from 64-bit hashes to numbers below 2^32, in 12 bytes per entry.

    Entries are kept in sorted arrays of geometrically decreasing size, the newest in a dictionary.
    """

    def __init__(self, newest: int = 1 << 16) -> None:
        self._limit = newest
        self._newest: dict[int, list[int]] = {}
        self._count = 0
        # Hashes and numbers, the largest arrays first; each pair is at most half as long as the one before it.
        self._sorted: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, hashes: Iterable[int], number: int) -> None:
        """Add a number under each of the hashes."""
        for key in hashes:
            self._newest.setdefault(key, []).append(number)
            self._count += 1
        if self._count >= self._limit:
            keys = [key for key, numbers in self._newest.items() for _ in numbers]
            numbers = [number for numbers in self._newest.values() for number in numbers]
            self._newest.clear()
            self._count = 0
            self.add_many(np.array(keys, np.uint64), np.array(numbers, np.uint32))

    def add_many(self, hashes: np.ndarray, numbers: np.ndarray) -> None:
        """Add numbers (N,) uint32 under the corresponding hashes (N,) uint64."""
        while self._sorted and len(self._sorted[-1][0]) < 2 * len(hashes):
            older_hashes, older_numbers = self._sorted.pop()
            hashes = np.concatenate((older_hashes, hashes))
            numbers = np.concatenate((older_numbers, numbers))
        order = np.argsort(hashes, kind="stable")
        self._sorted.append((hashes[order], numbers[order]))

    def find(self, hashes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield every entry under one of the hashes: the index of the hash among `hashes`, and the number."""
        for index, key in enumerate(hashes):
            for number in self._newest.get(key, ()):
                yield index, number
        queries = np.array(hashes, np.uint64)
        for keys, numbers in self._sorted:
            begins, ends = np.searchsorted(keys, queries), np.searchsorted(keys, queries, side="right")
            for index in np.flatnonzero(ends > begins).tolist():
                for number in numbers[begins[index] : ends[index]].tolist():
                    yield index, number

    def first(self, hashes: Sequence[int], limit: int) -> np.ndarray:
        """The distinct numbers under any of the hashes, counting only the first that were added under each.

        Args:
            hashes: The hashes.
            limit: Maximum number of entries under each hash.

        Returns:
            The numbers in ascending order, (N,) uint32.
        """
        queries, remaining = np.array(hashes, np.uint64), np.full(len(hashes), limit)
        arrays = []
        for keys, numbers in self._sorted:  # the oldest first
            begins = np.searchsorted(keys, queries)
            ends = np.minimum(np.searchsorted(keys, queries, side="right"), begins + remaining)
            remaining -= ends - begins
            arrays += [numbers[begins[index] : ends[index]] for index in np.flatnonzero(ends > begins)]
        for key, rest in zip(hashes, remaining.tolist(), strict=True):
            if newest := self._newest.get(key):
                arrays.append(np.array(newest[:rest], np.uint32))
        return np.unique(np.concatenate(arrays)) if arrays else np.empty(0, np.uint32)


class Match(NamedTuple):
    """The number of an earlier document that a document duplicates, and their similarity (1.0 for exact duplicates)."""

    number: int
    similarity: float
    exact: bool


@dataclass(frozen=True)
class LogSizes:
    """The number of documents and paragraphs in the files of an index at a checkpoint."""

    documents: int = 0
    paragraphs: int = 0


EMPTY = LogSizes()


def reopen(path: Path, size: int) -> BinaryIO:
    """Open a file for reading and writing, truncated to `size` bytes, at its end. ValueError if it has fewer."""
    file = path.open("r+b" if path.exists() else "w+b")
    if file.seek(0, os.SEEK_END) < size:
        file.close()
        raise ValueError(f"{path} is shorter than at its checkpoint: remove {path.parent} to start over")
    file.truncate(size)
    file.seek(size)
    return file


class SeenTexts:
    """An index of the documents and long paragraphs that were kept so far, which is also logged to files.

    A document takes 204 bytes of memory and 520 bytes of disk, a long paragraph 12 and 8. While sorted arrays are
    merged, memory peaks at 2.7 times that.
    """

    ROW = 4 * PERMUTATIONS
    CHUNK = 1 << 16

    def __init__(
        self,
        directory: Path,
        similarity: float = SIMILARITY,
        sizes: LogSizes = EMPTY,
        candidates: int = CANDIDATES,
    ) -> None:
        """Rebuild an index from its files.

        Args:
            directory: Directory of the files.
            similarity: Threshold of near duplicates.
            sizes: Number of entries of the files to keep; by default none.
            candidates: Maximum number of documents in a band that a document is compared with.

        Raises:
            ValueError: A file has fewer entries.
        """
        self._similarity, self._candidates = similarity, candidates
        self._keys = reopen(directory / "documents.bin", 8 * sizes.documents)  # 0 for documents that were dropped
        self._rows = reopen(directory / "signatures.bin", self.ROW * sizes.documents)
        self._lines = reopen(directory / "paragraphs.bin", 8 * sizes.paragraphs)
        self._exact, self._bands, self._paragraphs = HashIndex(), HashIndex(), HashIndex()
        self.sizes = sizes
        self._mapped = np.empty((0, PERMUTATIONS), np.uint32)  # signatures on disk, mapped again when there are more
        self._rebuild()

    def _rebuild(self) -> None:
        self._keys.seek(0)
        self._rows.seek(0)
        self._lines.seek(0)
        for begin in range(0, self.sizes.documents, self.CHUNK):
            keys = np.frombuffer(self._keys.read(8 * self.CHUNK), "<u8")
            rows = np.frombuffer(self._rows.read(self.ROW * self.CHUNK), "<u4").reshape(-1, PERMUTATIONS)
            kept = np.flatnonzero(keys)
            self._exact.add_many(keys[kept].astype(np.uint64), (begin + kept).astype(np.uint32))
            compared = kept[rows[kept].any(axis=1)]
            hashes = band_hashes(rows[compared].astype(np.uint32))
            self._bands.add_many(hashes.ravel(), np.repeat(begin + compared, BANDS).astype(np.uint32))
        for begin in range(0, self.sizes.paragraphs, self.CHUNK):
            keys = np.frombuffer(self._lines.read(8 * self.CHUNK), "<u8").astype(np.uint64)
            self._paragraphs.add_many(keys, np.arange(begin, begin + len(keys), dtype=np.uint32))

    def _signatures(self, numbers: np.ndarray) -> np.ndarray:
        """The signatures of documents with these numbers, in ascending order: (N, 128) uint32."""
        if numbers[-1] >= len(self._mapped):
            self._rows.flush()
            self._mapped = np.memmap(self._rows, "<u4", "r", shape=(self.sizes.documents, PERMUTATIONS))
        return self._mapped[numbers]

    def match(self, fingerprint: Fingerprint) -> Match | None:
        """The first kept document that equals this one, else the first candidate that is nearly the same, else None."""
        equal = min((number for _, number in self._exact.find([fingerprint.document])), default=None)
        if equal is not None:
            return Match(equal, 1.0, exact=True)
        if fingerprint.signature is None:
            return None
        hashes = band_hashes(fingerprint.signature[None])[0].tolist()
        numbers = self._bands.first(hashes, self._candidates)
        if not len(numbers):
            return None
        similarities = np.mean(self._signatures(numbers) == fingerprint.signature, axis=1)
        first = int(np.argmax(similarities >= self._similarity))
        if similarities[first] < self._similarity:
            return None
        return Match(int(numbers[first]), float(similarities[first]), exact=False)

    def seen_paragraphs(self, fingerprint: Fingerprint) -> dict[int, int]:
        """The lines of a document that were added before: index of the line -> number of its first entry."""
        long = [line for line, key in enumerate(fingerprint.paragraphs) if key]
        seen: dict[int, int] = {}
        for index, number in self._paragraphs.find([fingerprint.paragraphs[line] for line in long]):
            seen[long[index]] = min(number, seen.get(long[index], number))
        return seen

    def add(self, fingerprint: Fingerprint | None, paragraphs: Iterable[int] = ()) -> None:
        """Add the next document.

        Args:
            fingerprint: Its fingerprint; None for a document that is dropped or not to be compared.
            paragraphs: The hashes of its long paragraphs that are kept.
        """
        number = self.sizes.documents
        row = None if fingerprint is None else fingerprint.signature
        self._keys.seek(8 * number)
        self._keys.write((0 if fingerprint is None else fingerprint.document).to_bytes(8, "little"))
        self._rows.seek(self.ROW * number)
        self._rows.write(bytes(self.ROW) if row is None else row.astype("<u4").tobytes())
        if fingerprint is not None:
            self._exact.add([fingerprint.document], number)
        if row is not None:
            self._bands.add(band_hashes(row[None])[0].tolist(), number)
        written = self.sizes.paragraphs
        for key in paragraphs:
            self._lines.write(key.to_bytes(8, "little"))
            self._paragraphs.add([key], written)
            written += 1
        self.sizes = LogSizes(number + 1, written)

    def sync(self) -> None:
        """Flush the log to disk."""
        for file in (self._keys, self._rows, self._lines):
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        self._mapped = self._mapped[:0].copy()  # Windows cannot remove a file that is mapped
        for file in (self._keys, self._rows, self._lines):
            file.close()
