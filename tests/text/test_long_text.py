"""Tokens of segments equal the tokens of the whole text, wherever it is split."""

import random

import pytest

from elmokit.text.long_text import tokenize_long_text
from elmokit.text.tokenizers import TOKENIZERS, Tokenizer, get_tokenizer

TEXTS = {
    "english": "Mr. Smith can't go , No. 5 etc. (U.S.) naïve-ish Dr. ... I  \t am\u200b \u200b vs. A. \u3000 etc. ",
    "chinese": "我喜欢吃苹果。ELMo词向量 3.5公斤的naïve书名,a b𠀀c\u0301 的",
    "spaces": "  \n ",
    "nothing": "",
    "no breaks": "x" * 300,
}


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@pytest.mark.parametrize("text", sorted(TEXTS))
def test_tokenize_long_text_equals_tokenize_for_every_segment_size(name: str, text: str) -> None:
    tokenizer = get_tokenizer(name)
    draw = random.Random(4)
    texts = [TEXTS[text], *("".join(draw.sample(TEXTS[text], len(TEXTS[text]))) for _ in range(20))]
    for shuffled in texts:
        for size in (1, 2, 3, 7, 40, 1000):
            tokens = [token for segment in tokenize_long_text(tokenizer, shuffled, size) for token in segment]
            assert tokens == tokenizer.tokenize(shuffled)


def test_tokenize_long_text_yields_short_segments() -> None:
    words = ["word", "词"] * 5000
    for name, joint in (("whitespace-1", " "), ("english-1", " "), ("characters-1", "")):
        assert max(map(len, tokenize_long_text(get_tokenizer(name), joint.join(words), 100))) < 100


def test_tokenize_long_text_does_not_split_for_other_tokenizers() -> None:
    seen = []
    tokenizer = Tokenizer("spacy:other==1", lambda text: seen.append(text) or text.split(), str.splitlines)
    assert list(tokenize_long_text(tokenizer, "a b c d", 2)) == [["a", "b", "c", "d"]]
    assert seen == ["a b c d"]
