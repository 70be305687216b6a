"""Positions of tokens, whatever tokenizers drop or change of a text."""

from __future__ import annotations

from itertools import pairwise

import pytest

from elmokit.text.offsets import token_offsets
from elmokit.text.tokenizers import get_tokenizer


@pytest.mark.parametrize("name", ["english-1", "words-1", "characters-1", "whitespace-1"])
def test_offsets_are_those_of_consecutive_tokens(name: str) -> None:
    text = " An ex\u00adample\u00ad of it.\u3000\u200b Another\xa0example \ufeff of it\u2026"
    tokens = get_tokenizer(name).tokenize(text)
    offsets = [offset for offset in token_offsets(text, tokens) if offset is not None]
    assert len(offsets) == len(tokens)
    for token, (start, stop) in zip(tokens, offsets, strict=True):
        assert text[start:stop].replace("\u00ad", "") == token.replace("\u00ad", "")
    assert all(stop <= start for (_, stop), (start, _) in pairwise(offsets))


def test_offsets_of_words_with_a_soft_hyphen_are_not_those_of_a_later_occurrence() -> None:
    text = "An ex\u00adample. Another example."
    offsets = token_offsets(text, ["An", "example", ".", "Another", "example", "."])
    assert offsets == [(0, 2), (3, 11), (11, 12), (13, 20), (21, 28), (28, 29)]


def test_tokens_that_differ_from_the_text_have_no_offsets_and_the_next_ones_do() -> None:
    text = 'He said "no" .'
    tokens = ["He", "said", "``", "no", "''", "."]
    assert token_offsets(text, tokens) == [(0, 2), (3, 7), None, (9, 11), None, (13, 14)]


def test_token_far_from_the_last_one_is_not_searched() -> None:
    assert token_offsets("a " + "b " * 200 + "c", ["a", "c"]) == [(0, 1), None]


def test_an_empty_token_is_nowhere() -> None:
    assert token_offsets("", [""]) == [None]
    assert token_offsets("ab c", ["", "ab", "", "c"]) == [None, (0, 2), None, (3, 4)]
