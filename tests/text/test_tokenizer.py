"""The cache of chunks, and positions of tokens, whatever tokenizers drop or change of a text."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.text import tokenizer
from elmokit.text.tokenizer import ChunkCache, Tokenizer, word_offsets
from elmokit.text.tokenizers import get_tokenizer


@pytest.mark.parametrize("name", ["english-1", "words-1", "characters-1", "whitespace-1"])
def test_offsets_are_those_of_consecutive_tokens(name: str) -> None:
    text = " An ex\u00adample\u00ad of it.\u3000\u200b Another\xa0caf\u00e9 \ufeff of it\u2026"
    for form in ("NFC", "NFD"):
        check_offsets(unicodedata.normalize(form, text), get_tokenizer(name))


def check_offsets(text: str, tokenizer: Tokenizer) -> None:
    tokens = tokenizer.tokenize(text)
    offsets = word_offsets(text, tokens)
    for token, (start, stop) in zip(tokens, offsets, strict=True):
        found = unicodedata.normalize("NFC", text[start:stop])
        assert found.replace("\u00ad", "") == unicodedata.normalize("NFC", token).replace(
            "\u00ad", ""
        )
    assert all(stop <= start for (_, stop), (start, _) in pairwise(offsets))


@pytest.mark.parametrize(
    ("text", "tokens", "offsets"),
    [
        (
            "An ex\u00adample. Another example.",
            ["An", "example", ".", "Another", "example", "."],
            [(0, 2), (3, 11), (11, 12), (13, 20), (21, 28), (28, 29)],
        ),
        (
            'He said "no" .',
            ["He", "said", "``", "no", "''", "."],
            [(0, 2), (3, 7), (7, 7), (9, 11), (11, 11), (13, 14)],
        ),
        ("a " + "b " * 200 + "c", ["a", "c"], [(0, 1), (1, 1)]),  # too far from the one before
        ("", [""], [(0, 0)]),
        ("ab c", ["", "ab", "", "c"], [(0, 0), (0, 2), (2, 2), (3, 4)]),
    ],
)
def test_offsets_of_tokens_that_differ_from_the_text(
    text: str, tokens: list[str], offsets: list
) -> None:
    assert list(word_offsets(text, tokens)) == offsets


@given(
    st.lists(st.text(alphabet="ab.' \t", max_size=12), max_size=40), st.sampled_from([1, 3, 1000])
)
def test_chunk_cache_equals_no_cache_for_every_size(texts: list[str], size: int) -> None:
    rules = re.compile(r"\w+|\S")
    before = tokenizer.CACHED_CHUNKS
    cached = ChunkCache(rules)
    tokenizer.CACHED_CHUNKS = size
    try:
        for text in texts:
            for chunk in text.split():
                assert cached[chunk] == tuple(rules.findall(chunk))
                assert len(cached) <= size
    finally:
        tokenizer.CACHED_CHUNKS = before
    assert cached["x." * 10_000] == ("x", ".") * 10_000
    assert "x." * 10_000 not in cached
