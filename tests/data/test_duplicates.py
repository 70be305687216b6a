"""Fingerprints and the index, against sets of words and brute force over all pairs."""

import random
import re
from functools import cache
from itertools import pairwise

import pytest

from elmokit.data.duplicates import Fingerprint, Place, SeenDocuments, fingerprints, shingles

WORDS = [f"word{number}" for number in range(400)]


@cache
def shingle_set(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return {tuple(words[place : place + 5]) for place in range(max(1, len(words) - 4))}


def jaccard(a: str, b: str) -> float:
    """Jaccard similarity of the sets of five-word shingles, as tuples."""
    left = shingle_set(a)
    right = shingle_set(b)
    return len(left & right) / len(left | right)


def variants(draw: random.Random, count: int, length: int = 120) -> list[str]:
    """Texts, each the previous one with some words replaced."""
    words = draw.choices(WORDS, k=length)
    texts = []
    for _ in range(count):
        for _ in range(draw.randrange(8)):
            words[draw.randrange(length)] = draw.choice(WORDS)
        texts.append(" ".join(words))
    return texts


def of_texts(texts: list[str]) -> list[Fingerprint]:
    return fingerprints([[text] for text in texts], near=True)


@pytest.mark.parametrize("length", [1, 4, 5, 6, 300])
def test_shingles_are_all_sequences_of_five_words(length: int) -> None:
    words = random.Random(0).choices(WORDS[:3], k=length)
    assert shingles(", ".join(words) + " .") == [
        " ".join(words[at : at + 5]) for at in range(max(1, length - 4))
    ]


def test_signatures_estimate_jaccard_similarity_whatever_the_other_texts_are() -> None:
    texts = variants(random.Random(1), 60)
    signatures = [each.signature for each in of_texts(texts)]
    pairs = pairwise(zip(texts, signatures, strict=True))
    errors = [
        a.jaccard(b) - jaccard(x, y) for (x, a), (y, b) in pairs if a is not None and b is not None
    ]
    # The standard deviation of one estimate is at most 0.5 / sqrt(128) = 0.044.
    assert abs(sum(errors) / len(errors)) < 0.02
    assert max(map(abs, errors)) < 0.16
    (alone,) = of_texts(texts[7:8])
    assert alone.signature.jaccard(signatures[7]) == 1


def test_documents_match_as_by_comparison_with_all_earlier_ones() -> None:
    """Where similarities are not close to the threshold, so that neither the estimate nor a missed
    band matters.
    """
    draw = random.Random(3)
    bases = [draw.choices(WORDS, k=200) for _ in range(60)]
    texts = []
    for words in bases:
        texts.append(" ".join(words))
        copy = list(words)
        copy[draw.randrange(90, 110)] = "changed"  # similarity 191 / 201
        texts.append(" ".join(copy))
        texts.append(" ".join(words[:100] + draw.choices(WORDS, k=100)))  # similarity about 1/3
    texts += [text.replace(" ", "  ") for text in draw.sample(texts, 20)]
    draw.shuffle(texts)
    seen = SeenDocuments()
    kept = list[int]()
    for number, (text, fingerprint) in enumerate(zip(texts, of_texts(texts), strict=True)):
        match = seen.match(fingerprint)
        equal = [other for other in kept if texts[other].split() == text.split()]
        near = [other for other in kept if jaccard(texts[other], text) >= 0.8]
        assert (match and match.place.line) == next(iter(equal + near), None)
        if match is None:
            kept.append(number)
            seen.add(fingerprint, Place(0, number))
        else:
            assert match.exact == bool(equal)
            assert match.similarity == pytest.approx(
                jaccard(texts[match.place.line], text), abs=0.1
            )
    assert 100 < len(kept) < 140
