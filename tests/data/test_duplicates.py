"""Fingerprints and the index, against sets of words, brute force over all pairs, and a plain dictionary."""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.data.duplicates import (
    PERMUTATIONS,
    Fingerprint,
    HashIndex,
    LogSizes,
    SeenTexts,
    band_hashes,
    fingerprints,
    shingle_hashes,
    signatures,
    text_key,
)

WORDS = [f"word{number}" for number in range(400)]


def jaccard(a: str, b: str) -> float:
    """Jaccard similarity of the sets of five-word shingles, as tuples."""
    sets = []
    for text in (a, b):
        words = re.findall(r"\w+", text.casefold())
        count = max(1, len(words) - 4)
        sets.append({tuple(words[place : place + 5]) for place in range(count)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def variants(draw: random.Random, count: int, length: int = 120) -> list[str]:
    """Texts, each the previous one with some words replaced."""
    words = draw.choices(WORDS, k=length)
    texts = []
    for _ in range(count):
        for _ in range(draw.randrange(8)):
            words[draw.randrange(length)] = draw.choice(WORDS)
        texts.append(" ".join(words))
    return texts


def test_shingle_hashes_are_distinct_for_distinct_shingles() -> None:
    draw = random.Random(0)
    for length in (1, 4, 5, 6, 300):
        words = draw.choices(WORDS[:3], k=length)
        expected = {tuple(words[place : place + 5]) for place in range(max(1, length - 4))}
        hashes = shingle_hashes(", ".join(words) + " .")
        assert len(set(hashes.tolist())) == len(expected)
        assert len(hashes) == max(1, length - 4)


def test_shingle_hashes_ignore_case_punctuation_and_white_space() -> None:
    a, b = "The cat -- sat\non the MAT. Then it left!", "  the cat sat on the mat, then (it) left"
    np.testing.assert_array_equal(shingle_hashes(a), shingle_hashes(b))
    assert set(shingle_hashes("cat the sat on the mat").tolist()).isdisjoint(shingle_hashes(a).tolist())


def test_shingle_hashes_of_unspaced_scripts_use_characters() -> None:
    text = "我喜欢吃苹果和香蕉"
    assert len(shingle_hashes(text)) == len(text) - 4
    assert set(shingle_hashes(text).tolist()) & set(shingle_hashes("他" + text).tolist())


@pytest.mark.parametrize("text", ["", " \n", "-- ... !"])
def test_signatures_are_none_without_words(text: str) -> None:
    assert len(shingle_hashes(text)) == 0
    assert signatures([text, "a word"])[0] is None


def test_signatures_estimate_jaccard_similarity() -> None:
    texts = variants(random.Random(1), 60)
    rows = signatures(texts)
    errors = [float(np.mean(a == b)) - jaccard(x, y) for (x, a), (y, b) in pairwise(zip(texts, rows, strict=True))]
    # The standard deviation of one estimate is at most 0.5 / sqrt(128) = 0.044.
    assert abs(np.mean(errors)) < 0.02 and np.max(np.abs(errors)) < 0.16


def test_signatures_do_not_depend_on_other_texts() -> None:
    texts = variants(random.Random(2), 9)
    together, alone = signatures(texts), [signatures([text])[0] for text in texts]
    np.testing.assert_array_equal(together, alone)


def test_text_key_ignores_only_white_space() -> None:
    assert text_key("a  b\nc ") == text_key("a b c") != text_key("a b C")
    assert 0 < text_key("") < 1 << 64


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=80), st.integers(1, 8))
def test_hash_index_equals_a_dictionary(entries: list[tuple[int, int]], newest: int) -> None:
    index, expected = HashIndex(newest), {}
    for key, number in entries:
        index.add([key], number)
        expected.setdefault(key, []).append(number)
    wanted = list(range(21))
    result = sorted(index.find(wanted))
    assert result == sorted((key, number) for key, numbers in expected.items() for number in numbers)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=80), st.integers(1, 8), st.integers(1, 5))
def test_hash_index_first_numbers_equal_those_of_a_dictionary(
    entries: list[tuple[int, int]], newest: int, limit: int
) -> None:
    index, expected = HashIndex(newest), {}
    for number, (key, gap) in enumerate(entries):
        index.add([key], 10 * number + gap)
        expected.setdefault(key, []).append(10 * number + gap)
    queries = [1, 2, 3, 20]
    assert index.first(queries, limit).tolist() == sorted(
        {number for key in queries for number in expected.get(key, [])[:limit]}
    )


def near_of(fingerprint: Fingerprint, kept: list[tuple[int, Fingerprint]]) -> int | None:
    """The first kept document that shares a band and 0.8 of the signature, by comparison with all."""
    for number, other in kept:
        bands = (fingerprint.signature.reshape(16, 8) == other.signature.reshape(16, 8)).all(axis=1)
        if bands.any() and np.mean(fingerprint.signature == other.signature) >= 0.8:
            return number
    return None


@pytest.fixture
def opened() -> Iterator[Callable[..., SeenTexts]]:
    """Open an index, which is closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(closing(SeenTexts(*args, **kwargs)))


def add_all(seen: SeenTexts, documents: list[Fingerprint]) -> list[int | None]:
    """The match of each document, if only documents without a match are kept."""
    matches = []
    for fingerprint in documents:
        match = seen.match(fingerprint)
        matches.append(match and match.number)
        seen.add(None if match else fingerprint, [] if match else filter(None, fingerprint.paragraphs))
    return matches


@pytest.fixture
def documents() -> list[Fingerprint]:
    draw = random.Random(3)
    texts = [text for length in (20, 60, 200) for text in variants(draw, 80, length)]
    draw.shuffle(texts)
    return fingerprints([[text] for text in texts], near=True)


def test_seen_texts_match_equals_brute_force(
    tmp_path: Path, documents: list[Fingerprint], opened: Callable[..., SeenTexts]
) -> None:
    kept: list[tuple[int, Fingerprint]] = []
    expected = []
    for number, fingerprint in enumerate(documents):
        equal = [other for other, earlier in kept if earlier.document == fingerprint.document]
        expected.append(equal[0] if equal else near_of(fingerprint, kept))
        if expected[-1] is None:
            kept.append((number, fingerprint))
    assert add_all(opened(tmp_path), documents) == expected
    assert 20 < sum(match is not None for match in expected) < 220


def templated(similarity: float, count: int) -> list[Fingerprint]:
    """Documents with so much in common, and the same first bands."""
    draw = np.random.default_rng(0)
    rows = draw.integers(1, 1 << 32, (count, PERMUTATIONS), np.uint32)
    rows[:, : int(similarity * PERMUTATIONS)] = rows[0, : int(similarity * PERMUTATIONS)]
    return [Fingerprint(number + 1, [], row) for number, row in enumerate(rows)]


def test_seen_texts_match_compares_with_the_first_candidates_only(
    tmp_path: Path, opened: Callable[..., SeenTexts]
) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    documents = templated(0.5, 6)
    assert documents[3].signature is not None
    copy = Fingerprint(99, [], documents[3].signature.copy())
    copy.signature[PERMUTATIONS // 2 :: 8] = 0  # no other band agrees
    expected = [None] * 6
    assert add_all(opened(tmp_path / "a", candidates=4), [*documents, copy]) == [*expected, 3]
    assert add_all(opened(tmp_path / "b", candidates=3), [*documents, copy]) == [*expected, None]


def test_seen_texts_match_takes_linear_time_for_templated_documents(
    tmp_path: Path, opened: Callable[..., SeenTexts]
) -> None:
    start = time.process_time()
    assert add_all(opened(tmp_path, candidates=50), templated(0.75, 8_000)) == [None] * 8_000
    assert time.process_time() - start < 5  # 20 s where each is compared with all before it, one by one


@pytest.mark.parametrize("chunk", [16, SeenTexts.CHUNK])
def test_seen_texts_rebuilt_from_files_match_the_same_for_every_chunk_size(
    chunk: int,
    tmp_path: Path,
    documents: list[Fingerprint],
    opened: Callable[..., SeenTexts],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SeenTexts, "CHUNK", chunk)
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    whole = opened(tmp_path / "a")
    expected = add_all(whole, documents)
    seen = opened(tmp_path / "b")
    begun = add_all(seen, documents[:100])
    sizes = seen.sizes
    assert sizes.documents == 100 and sizes.paragraphs > 2 * 16
    add_all(seen, documents[150:])  # written after the checkpoint
    seen.sync()
    seen.close()
    rebuilt = opened(tmp_path / "b", sizes=sizes)
    assert begun + add_all(rebuilt, documents[100:]) == expected
    assert list(map(rebuilt.seen_paragraphs, documents)) == list(map(whole.seen_paragraphs, documents))


def test_seen_texts_raises_for_truncated_files(tmp_path: Path, documents: list[Fingerprint]) -> None:
    seen = SeenTexts(tmp_path)
    add_all(seen, documents[:3])
    seen.close()
    with pytest.raises(ValueError, match=r"documents.bin is shorter than at its checkpoint: remove .* to start over"):
        SeenTexts(tmp_path, sizes=LogSizes(4, 0))


def test_seen_paragraphs_are_reported_by_line(tmp_path: Path, opened: Callable[..., SeenTexts]) -> None:
    long, other = "A long paragraph. " * 9, "Another long paragraph. " * 9
    seen = opened(tmp_path)
    first, second = fingerprints([[other, long, "short"], ["short", " " + long, other + "!"]], near=False)
    assert first.signature is None and first.paragraphs[2] == 0
    assert seen.seen_paragraphs(first) == {}
    seen.add(first, filter(None, first.paragraphs))
    assert seen.seen_paragraphs(second) == {1: 1}


def test_band_hashes_depend_on_the_band() -> None:
    row = np.tile(np.arange(8, dtype=np.uint32), PERMUTATIONS // 8)
    assert len(set(band_hashes(row[None])[0].tolist())) == 16
