"""Exact and near duplicates among documents.

Near duplicates are documents whose sets of five-word shingles have an estimated Jaccard similarity
of at least a threshold. The estimate is MinHash's (Broder, 1997); candidates are documents that
agree in a band of the signature (locality-sensitive hashing; Leskovec, Rajaraman and Ullman,
"Mining of Massive Datasets", chapter 3). Signatures and index are rensa's.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from rensa import RMinHash, RMinHashLSH  # pyright: ignore[reportAttributeAccessIssue]  (a compiled module)

PARAGRAPH_CHARACTERS = (
    100  # shorter lines that repeat, such as headings or "Yes.", are rarely copies
)
SHINGLE_WORDS = 5
PERMUTATIONS = 128
# a pair with similarity 0.8 becomes a candidate with probability 0.95, one with 0.9 with 0.9999
BANDS = 16
SIMILARITY = 0.8
# pages of one template may all agree in a band, and are compared with the first of them only
CANDIDATES = 1_000

# Each letter of a script without spaces is a word: ideographs, kana, and the scripts of Thai, Lao,
# Tibetan, Burmese and Khmer.
UNSPACED = (
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U000323af\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
    r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\uaa60-\uaa7f"
)
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


def shingles(text: str) -> list[str]:
    """The five-word shingles of a text, without case and punctuation; a text of fewer words is a
    single shingle.
    """
    # "The cat sat on the mat." -> "the cat sat on the", "cat sat on the mat"
    words = WORD.findall(text.casefold())
    if len(words) < SHINGLE_WORDS:
        return [" ".join(words)] if words else []
    return list(
        map(" ".join, zip(*(words[begin:] for begin in range(SHINGLE_WORDS)), strict=False))
    )


def text_key(text: str) -> bytes:
    """A hash of a text that ignores differences in white space."""
    return blake2b(" ".join(text.split()).encode(), digest_size=8).digest()


class Place(NamedTuple):
    """The start of a document: the index of its file, and the number of its line (in Parquet, row)
    there, from 1.
    """

    file: int
    line: int


class Fingerprint(NamedTuple):
    """The hashes by which documents are compared.

    Attributes:
        document: Key of the text.
        paragraphs: Key of each line; None for lines that are too short to be compared.
        signature: MinHash of the shingles; None without words, or if near duplicates are not looked
            for.
    """

    document: bytes
    paragraphs: list[bytes | None]
    signature: RMinHash | None


def fingerprints(documents: Sequence[Sequence[str]], near: bool) -> list[Fingerprint]:
    """Compute the fingerprints of documents.

    Args:
        documents: The lines of each document.
        near: Compute signatures too, by which near duplicates are found.

    Returns:
        A fingerprint for each document.
    """
    texts = ["\n".join(lines) for lines in documents]
    of_texts = [shingles(text) if near else [] for text in texts]
    signatures = RMinHash.from_token_sets(of_texts, PERMUTATIONS, 0)
    return [
        Fingerprint(
            text_key(text),
            [text_key(line) if len(line) >= PARAGRAPH_CHARACTERS else None for line in lines],
            signature if has_words else None,
        )
        for text, lines, signature, has_words in zip(
            texts, documents, signatures, of_texts, strict=True
        )
    ]


class Match(NamedTuple):
    """The place of an earlier document that a document duplicates, and their similarity (1.0 for
    exact duplicates).
    """

    place: Place
    similarity: float
    exact: bool


class SeenDocuments:
    """An index of the documents that were kept so far, in memory: about 2 KB for each document with
    a signature.
    """

    def __init__(self) -> None:
        self._exact: dict[bytes, Place] = {}
        self._near: list[tuple[RMinHash, Place]] = []
        self._index = RMinHashLSH(SIMILARITY, PERMUTATIONS, BANDS)

    def match(self, fingerprint: Fingerprint) -> Match | None:
        """The document that equals this one, else the first candidate that is nearly the same, else
        None.
        """
        if (place := self._exact.get(fingerprint.document)) is not None:
            return Match(place, 1.0, exact=True)
        if fingerprint.signature is not None:
            for number in sorted(self._index.query(fingerprint.signature))[:CANDIDATES]:
                signature, place = self._near[number]
                if (similarity := signature.jaccard(fingerprint.signature)) >= SIMILARITY:
                    return Match(place, similarity, exact=False)
        return None

    def add(self, fingerprint: Fingerprint, place: Place, near: bool = True) -> None:
        """Add a document; without `near`, only its exact duplicates will match."""
        self._exact.setdefault(fingerprint.document, place)
        if near and fingerprint.signature is not None:
            self._index.insert(len(self._near), fingerprint.signature)
            self._near.append((fingerprint.signature, place))
