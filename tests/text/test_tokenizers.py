"""The tokenizers: treebank conventions by example, invariants on any text, and agreement with UD English EWT."""

import io
import re
import tarfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from elmokit.text.chunks import INVISIBLE
from elmokit.text.tokenizers import TOKENIZERS, get_tokenizer

ENGLISH = get_tokenizer("english-1")

# Raw text and its tokens in the treebanks.
EXAMPLES = [
    ("I don't think he can't.", "I do n't think he ca n't ."),
    ("DON’T! It’s Smith's.", "DO N’T ! It ’s Smith 's ."),
    ("She'd've gone; we'll see.", "She 'd 've gone ; we 'll see ."),
    ("I cannot, I'm gonna, I've gotta.", "I can not , I 'm gon na , I 've got ta ."),
    ("a well-known non-human e-mail", "a well - known non-human e-mail"),
    ("It cost $1,000.50 (5%) at 5pm, not £3.", "It cost $ 1,000.50 ( 5 % ) at 5 pm , not £ 3 ."),
    ("Mr. J. R. Smith of the U.S. spoke, e.g. today.", "Mr. J. R. Smith of the U.S. spoke , e.g. today ."),
    ("So did I. Cats, dogs, etc.", "So did I. Cats , dogs , etc ."),
    ("It was you and I.", "It was you and I ."),
    ("See http://x.org/a?b=c, or a.b@c.com.", "See http://x.org/a?b=c , or a.b@c.com ."),
    ("(www.example.com)", "( www.example.com )"),
    ("Wait... what?! No -- yes!!", "Wait ... what ?! No -- yes !!"),
    ("“Quoted,” she said. 'Yes.'", "“ Quoted , ” she said . ' Yes . '"),
    ("the workers' 1980s, 20th, 1990-1995", "the workers ' 1980s , 20th , 1990 - 1995"),
    ("on 11/28/2000 and/or 5:00 :-)", "on 11/28/2000 and / or 5:00 :-)"),
    ("O'Connell and AT&T said naïve", "O'Connell and AT&T said naïve"),
    ("inter\u00adnational \u200bspace \u200e", "international space"),
    ("<S> is not a boundary", "< S > is not a boundary"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "tokens"), EXAMPLES)
def test_english_follows_treebank_conventions(text: str, tokens: str) -> None:
    assert ENGLISH.tokenize(text) == tokens.split()


@pytest.mark.parametrize("tokens", [tokens for _, tokens in EXAMPLES])
def test_english_keeps_tokenized_text(tokens: str) -> None:
    assert ENGLISH.tokenize(tokens) == tokens.split()


@given(st.text(max_size=80), st.sampled_from(["english-1", "words-1"]))
def test_tokenizers_keep_every_character_in_order(text: str, name: str) -> None:
    tokens = get_tokenizer(name).tokenize(text)
    assert all(tokens)
    assert "".join(tokens) == INVISIBLE.sub("", "".join(text.split()))


@given(st.text(max_size=80), st.sampled_from(sorted(TOKENIZERS)))
def test_sentence_splitters_keep_every_character(text: str, name: str) -> None:
    sentences = get_tokenizer(name).split_sentences(text)
    assert all(sentence.strip() for sentence in sentences)
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_english_splits_sentences() -> None:
    text = (
        "Mr. Smith met Dr. A. B. Jones in Washington D.C. yesterday. “Wait! You must.” "
        "He left me. I wept, etc. by 3.5 p.m."
    )
    assert ENGLISH.split_sentences(text) == [
        "Mr. Smith met Dr. A. B. Jones in Washington D.C. yesterday.",
        "“Wait!",
        "You must.”",
        "He left me.",
        "I wept, etc. by 3.5 p.m.",
    ]


@pytest.mark.parametrize("chunk", ["a-" * 50_000, "a." * 50_000, "x" * 100_000, "'" * 100_000, "1," * 50_000])
@pytest.mark.parametrize("name", ["english-1", "words-1"])
def test_tokenizers_take_linear_time_for_a_huge_chunk(name: str, chunk: str) -> None:
    start = time.process_time()
    assert "".join(get_tokenizer(name).tokenize(chunk)) == chunk
    assert time.process_time() - start < 5


def test_characters_1_splits_ideographs() -> None:
    chinese = get_tokenizer("characters-1")
    assert chinese.tokenize("我爱NLP，2024年 ok。") == ["我", "爱", "NLP", "，", "2024", "年", "ok", "。"]
    assert chinese.split_sentences("他说：“好！”我走了。再见") == ["他说：“好！”", "我走了。", "再见"]


def test_whitespace_1_splits_at_white_space() -> None:
    plain = get_tokenizer("whitespace-1")
    assert plain.tokenize(" do n't  U.S. ") == ["do", "n't", "U.S."]
    assert plain.split_sentences("one two\n\nthree\n") == ["one two", "three"]


def test_get_tokenizer_raises_for_an_unknown_name() -> None:
    with pytest.raises(ValueError, match="english-1"):
        get_tokenizer("english-0")


def _ewt_sentences(shared: Path, part: str) -> Iterator[tuple[str, list[str]]]:
    """Raw text and gold tokens of each sentence of UD English EWT."""
    packed = (shared / "eval" / "ud_english_ewt.tar.zst").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().stream_reader(packed).read())) as archive:
        member = next(name for name in archive.getnames() if f"-{part}." in name)
        stream = archive.extractfile(member)
        assert stream is not None
        for block in stream.read().decode().strip().split("\n\n"):
            text = re.search(r"^# text = (.*)$", block, re.MULTILINE)
            assert text is not None
            yield text.group(1), re.findall(r"^\d+\t([^\t]+)", block, re.MULTILINE)


def _spans(tokens: list[str]) -> set[tuple[int, int]]:
    ends = [0]
    for token in tokens:
        ends.append(ends[-1] + len(token))
    return set(pairwise(ends))


def test_english_agrees_with_ewt(shared: Path) -> None:
    right = ours = gold = 0
    for text, tokens in _ewt_sentences(shared, "dev"):
        result, expected = _spans(ENGLISH.tokenize(text)), _spans(tokens)
        right += len(result & expected)
        ours += len(result)
        gold += len(expected)
    assert 2 * right / (ours + gold) > 0.987


def test_time_for_marks_in_a_url_is_linear() -> None:
    start = time.process_time()
    marks = "http://" + ".'" * 200_000 + "a"  # minutes, if each mark were compared with all after it
    assert get_tokenizer("english-1").tokenize(marks) == [marks]
    assert time.process_time() - start < 5
