"""Exact and near duplicates among documents and paragraphs, found by an index of a few hundred bytes a document.

Near duplicates are documents whose sets of five consecutive words have a Jaccard similarity of at least a threshold, by
the estimate of MinHash (Broder, 1997); candidates are those that agree in a band of the signature (locality-sensitive
hashing; Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3). rensa computes the signatures.
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

# A shorter line that occurs again, a heading or "Yes.", is more likely chance than a copy.
PARAGRAPH_CHARACTERS = 100
SHINGLE_WORDS = 5
PERMUTATIONS = 128
BANDS = 16  # a pair that is 0.8 alike is a candidate with probability 0.95, one that is 0.9 alike with 0.9999
SIMILARITY = 0.8


# --- Fingerprints: pure functions of the text ---


def text_key(text: str) -> int:
    """A hash, in 1 .. 2^64 - 1, of a text whose white space does not count."""
    digest = blake2b(" ".join(text.split()).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


@lru_cache(maxsize=1)
def _kinds() -> np.ndarray:
    """What each code point is: 0 no part of a word, 1 a part, 2 a word by itself (of a script without spaces)."""
    points = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    kinds = np.zeros(0x110000, np.uint8)
    for kind, pattern in ((1, re.compile(r"\w")), (2, UNSPACED_LETTER)):
        kinds[[ord(character) for character in pattern.findall(points)]] = kind
    return kinds


@lru_cache(maxsize=1)
def _multipliers() -> np.ndarray:
    """(64,) uint64, odd, the same on every machine."""
    digests = (blake2b(str(number).encode(), digest_size=8).digest() for number in range(64))
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64) | np.uint64(1)


def shingle_hashes(text: str) -> np.ndarray:
    """Hashes (S,) uint64 of every five consecutive words of a text; of all its words where it has fewer."""
    points = np.frombuffer(text.casefold().encode("utf-32-le", "surrogatepass"), "<u4")
    kinds = _kinds()[points]
    begins = np.flatnonzero((kinds == 2) | ((kinds == 1) & (np.concatenate(([0], kinds[:-1])) != 1)))
    if not len(begins):
        return np.empty(0, np.uint64)
    multipliers = _multipliers()
    # A word's hash is the sum of its characters, each times a number that depends on its place in the word.
    places = np.arange(begins[0], len(points)) - np.repeat(begins, np.diff(begins, append=len(points)))
    characters = np.where(kinds > 0, points, 0)[begins[0] :].astype(np.uint64)
    words = np.add.reduceat(characters * multipliers[places % 64], begins - begins[0])
    words = (words ^ (words >> np.uint64(31))) * multipliers[0]

    together = min(SHINGLE_WORDS, len(words))
    count = len(words) - together + 1
    hashes = np.zeros(count, np.uint64)
    for place in range(together):
        hashes += words[place : place + count] * multipliers[place + 1]
    return (hashes ^ (hashes >> np.uint64(29))) * multipliers[0]


def signatures(texts: Sequence[str]) -> list[np.ndarray | None]:
    """MinHash signatures of texts, (128,) uint32 each; None of a text without words, which is like nothing.

    The share of equal entries estimates the Jaccard similarity of two texts.
    """
    from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]  (its module is compiled)

    hashes = [shingle_hashes(text) for text in texts]
    offsets = np.cumsum([0, *map(len, hashes)]).astype(np.uint64)
    flat = np.concatenate([np.empty(0, np.uint64), *hashes])
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(flat, offsets, PERMUTATIONS, 0)
    rows = np.array(matrix.to_rows(), dtype=np.uint32)
    return [row if len(found) else None for row, found in zip(rows, hashes, strict=True)]


def band_hashes(rows: np.ndarray) -> np.ndarray:
    """Hashes (N, 16) uint64 of the bands of signatures (N, 128)."""
    bands = rows.reshape(len(rows), BANDS, -1).astype(np.uint64)
    multipliers = _multipliers()
    mixed = (bands * multipliers[: bands.shape[2]]).sum(axis=2) + np.arange(1, BANDS + 1, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * multipliers[:BANDS]
    return mixed ^ (mixed >> np.uint64(29))


@dataclass(frozen=True)
class Fingerprint:
    """What is compared of a document."""

    document: int
    paragraphs: list[int]  # of each line, 0 for one that is too short to be compared
    signature: np.ndarray | None  # (128,) uint32


def fingerprints(documents: Sequence[Sequence[str]], near: bool) -> list[Fingerprint]:
    """The fingerprints of documents, each given as its lines."""
    texts = ["\n".join(lines) for lines in documents]
    rows = signatures(texts) if near else [None] * len(texts)
    return [
        Fingerprint(text_key(text), [text_key(line) if len(line) >= PARAGRAPH_CHARACTERS else 0 for line in lines], row)
        for text, lines, row in zip(texts, documents, rows, strict=True)
    ]


# --- The index ---


class HashIndex:
    """Numbers below 2^32 by 64-bit hashes, several for a hash, in 12 bytes an entry: the newest lie in a dictionary."""

    def __init__(self, newest: int = 1 << 16) -> None:
        self._limit = newest
        self._newest: dict[int, list[int]] = {}
        self._count = 0
        self._sorted: list[tuple[np.ndarray, np.ndarray]] = []  # hashes and numbers, each at most half the one before

    def add(self, hashes: Iterable[int], number: int) -> None:
        """Enter a number under each of the hashes."""
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
        """Enter each of `numbers` (N,) uint32 under the hash (N,) uint64 in its place."""
        while self._sorted and len(self._sorted[-1][0]) < 2 * len(hashes):
            older_hashes, older_numbers = self._sorted.pop()
            hashes = np.concatenate((older_hashes, hashes))
            numbers = np.concatenate((older_numbers, numbers))
        order = np.argsort(hashes, kind="stable")
        self._sorted.append((hashes[order], numbers[order]))

    def find(self, hashes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Every entry under one of the hashes: the hash's place among them, and the number."""
        for place, key in enumerate(hashes):
            for number in self._newest.get(key, ()):
                yield place, number
        wanted = np.array(hashes, np.uint64)
        for keys, numbers in self._sorted:
            begins, ends = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
            for place in np.flatnonzero(ends > begins).tolist():
                for number in numbers[begins[place] : ends[place]].tolist():
                    yield place, number


class Match(NamedTuple):
    """An earlier document that a document is like."""

    number: int
    similarity: float  # 1.0 of an exact duplicate
    exact: bool


class LogSizes(NamedTuple):
    """How many documents and paragraphs the files of the index held at some moment."""

    documents: int = 0
    paragraphs: int = 0


EMPTY = LogSizes()


def _reopened(path: Path, size: int) -> BinaryIO:
    """A file to read and to append to, cut to its first `size` bytes. ValueError where it has fewer."""
    file = path.open("r+b" if path.exists() else "w+b")
    if file.seek(0, os.SEEK_END) < size:
        file.close()
        raise ValueError(f"{path} is shorter than it was: give the command again, which begins anew")
    file.truncate(size)
    file.seek(size)
    return file


class SeenTexts:
    """The documents and long paragraphs that were kept so far.

    What is entered is also written to files, from which the index is built again. A document takes 204 bytes of memory
    and 520 of disk, a long paragraph 12 and 8; while sorted arrays are merged, the memory is up to 2.7 times as much.
    """

    ROW = 4 * PERMUTATIONS
    AT_ONCE = 1 << 16

    def __init__(self, directory: Path, similarity: float = SIMILARITY, sizes: LogSizes = EMPTY) -> None:
        """The index of the first `sizes` of what the files in `directory` hold: an empty one where there are none."""
        self._similarity = similarity
        self._keys = _reopened(directory / "documents.bin", 8 * sizes.documents)  # 0 of a document that was not kept
        self._rows = _reopened(directory / "signatures.bin", self.ROW * sizes.documents)
        self._lines = _reopened(directory / "paragraphs.bin", 8 * sizes.paragraphs)
        self._exact, self._bands, self._paragraphs = HashIndex(), HashIndex(), HashIndex()
        self.sizes = sizes
        self._enter_logged()

    def _enter_logged(self) -> None:
        self._keys.seek(0)
        self._rows.seek(0)
        self._lines.seek(0)
        for begin in range(0, self.sizes.documents, self.AT_ONCE):
            keys = np.frombuffer(self._keys.read(8 * self.AT_ONCE), "<u8")
            rows = np.frombuffer(self._rows.read(self.ROW * self.AT_ONCE), "<u4").reshape(-1, PERMUTATIONS)
            kept = np.flatnonzero(keys)
            self._exact.add_many(keys[kept].astype(np.uint64), (begin + kept).astype(np.uint32))
            compared = kept[rows[kept].any(axis=1)]
            hashes = band_hashes(rows[compared].astype(np.uint32))
            self._bands.add_many(hashes.ravel(), np.repeat(begin + compared, BANDS).astype(np.uint32))
        for begin in range(0, self.sizes.paragraphs, self.AT_ONCE):
            keys = np.frombuffer(self._lines.read(8 * self.AT_ONCE), "<u8").astype(np.uint64)
            self._paragraphs.add_many(keys, np.arange(begin, begin + len(keys), dtype=np.uint32))

    def _row(self, number: int) -> np.ndarray:
        self._rows.seek(self.ROW * number)
        return np.frombuffer(self._rows.read(self.ROW), "<u4")

    def match(self, fingerprint: Fingerprint) -> Match | None:
        """The first document that was kept and that this one equals, or else is like."""
        equal = min((number for _, number in self._exact.find([fingerprint.document])), default=None)
        if equal is not None:
            return Match(equal, 1.0, exact=True)
        if fingerprint.signature is None:
            return None
        hashes = band_hashes(fingerprint.signature[None])[0].tolist()
        for number in sorted({number for _, number in self._bands.find(hashes)}):
            similarity = float(np.mean(self._row(number) == fingerprint.signature))
            if similarity >= self._similarity:
                return Match(number, similarity, exact=False)
        return None

    def seen_paragraphs(self, fingerprint: Fingerprint) -> dict[int, int]:
        """Which lines of a document were entered before: the line's number, and the number of its first entry."""
        long = [line for line, key in enumerate(fingerprint.paragraphs) if key]
        found: dict[int, int] = {}
        for place, number in self._paragraphs.find([fingerprint.paragraphs[line] for line in long]):
            found[long[place]] = min(number, found.get(long[place], number))
        return found

    def enter(self, fingerprint: Fingerprint | None, paragraphs: Iterable[int] = ()) -> None:
        """Enter the next document, None for one that is not kept, and the keys of paragraphs that are."""
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
        """Bring what was entered to the disk."""
        for file in (self._keys, self._rows, self._lines):
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        for file in (self._keys, self._rows, self._lines):
            file.close()
