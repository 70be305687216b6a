"""The tokenizers: treebank conventions by example, invariants on any text, and agreement with UD
English EWT.
"""

import io
import re
import tarfile
import time
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from elmokit.data.preparation import prepare, read_report
from elmokit.fs.reading import read_lines
from elmokit.text import tokenizers
from elmokit.text.tokenizer import INVISIBLE
from elmokit.text.tokenizers import (
    SEGMENTERS,
    TOKENIZER_OF,
    TOKENIZERS,
    get_tokenizer,
)

ENGLISH = get_tokenizer("english-1")

# Raw text and its tokens in the treebanks.
ENGLISH_EXAMPLES = [
    ("I don't think he can't.", "I do n't think he ca n't ."),
    ("DON’T! It’s Smith's.", "DO N’T ! It ’s Smith 's ."),
    ("She'd've gone; we'll see.", "She 'd 've gone ; we 'll see ."),
    ("I cannot, I'm gonna, I've gotta.", "I can not , I 'm gon na , I 've got ta ."),
    ("a well-known non-human e-mail", "a well - known non-human e-mail"),
    ("It cost $1,000.50 (5%) at 5pm, not £3.", "It cost $ 1,000.50 ( 5 % ) at 5 pm , not £ 3 ."),
    (
        "Mr. J. R. Smith of the U.S. spoke, e.g. today.",
        "Mr. J. R. Smith of the U.S. spoke , e.g. today .",
    ),
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


# Of Universal Dependencies treebanks.
WORDS_EXAMPLES = [
    # German
    (
        "Am 3. Oktober 1990 wurde, z.B. in Berlin, gefeiert.",
        "Am 3. Oktober 1990 wurde , z.B. in Berlin , gefeiert .",
    ),
    (
        "Dr. Müller (vgl. Abb. 5) zahlt 1.000,50 €, d.h. 20%.",
        "Dr. Müller ( vgl. Abb. 5 ) zahlt 1.000,50 € , d.h. 20 % .",
    ),
    ("Am 3.10. um 12:30 Uhr kommt die U-Bahn.", "Am 3.10. um 12:30 Uhr kommt die U-Bahn ."),
    ("„Gut“, sagte er, »ja« usw.", "„ Gut “ , sagte er , » ja « usw."),
    ("Das war gut. Es war 1990. Ende", "Das war gut . Es war 1990 . Ende"),
    # French, Italian, Spanish, Catalan
    (
        "L'homme qu’il voit aujourd'hui n'est pas d'ici.",
        "L' homme qu’ il voit aujourd'hui n' est pas d' ici .",
    ),
    ("« C'est-à-dire ? » dit M. Dupont.", "« C' est-à-dire ? » dit M. Dupont ."),
    ("C'è l'arte dell'Ottocento.", "C' è l' arte dell' Ottocento ."),
    ("¿Vive en EE.UU. el Sr. Gil?", "¿ Vive en EE.UU. el Sr. Gil ?"),
    ("col·lecció d'art", "col·lecció d' art"),
    # Words with an inner apostrophe or colon are not split.
    ("Ankara'da foto's c'hoar п'ять EU:n.", "Ankara'da foto's c'hoar п'ять EU:n ."),
    # Other scripts
    ("Он живёт в г. Москве, т.е. 5 млн. человек.", "Он живёт в г. Москве , т.е. 5 млн. человек ."),
    ("यह किताब है। वह घर गया।", "यह किताब है । वह घर गया ।"),
    ("هذا كتاب، أليس كذلك؟", "هذا كتاب ، أليس كذلك ؟"),
    ("שלום, עולם!", "שלום , עולם !"),
    ("나는 학교에 갔다.", "나는 학교에 갔다 ."),
    ("Αυτό είναι, π.χ. εδώ.", "Αυτό είναι , π.χ. εδώ ."),
    # Any language
    (
        "http://x.org/a?b, a.b@c.de und www.spiegel.de!",
        "http://x.org/a?b , a.b@c.de und www.spiegel.de !",
    ),
    ("ja ... nein?! -- 1990–1995", "ja ... nein ?! -- 1990 – 1995"),
    ("<S> \u200bx\u00ady", "< S > xy"),
    ("", ""),
]


@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [("english-1", *example) for example in ENGLISH_EXAMPLES]
    + [("words-1", *example) for example in WORDS_EXAMPLES],
)
def test_rules_follow_treebank_conventions_and_keep_tokenized_text(
    name: str, text: str, tokens: str
) -> None:
    tokenize = get_tokenizer(name).tokenize
    assert tokenize(text) == tokenize(tokens) == tokens.split()


@given(st.text(max_size=80), st.sampled_from(["english-1", "words-1"]))
def test_tokenizers_keep_every_character_in_order(text: str, name: str) -> None:
    tokens = get_tokenizer(name).tokenize(text)
    assert all(tokens)
    composed = text if name == "whitespace-1" else unicodedata.normalize("NFC", text)
    assert "".join(tokens) == INVISIBLE.sub("", "".join(composed.split()))


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


@pytest.mark.parametrize(
    "chunk",
    [
        "a-" * 50_000,
        "a." * 50_000,
        "x" * 100_000,
        "'" * 100_000,
        "1," * 50_000,
        "http://" + ".'" * 200_000 + "a",
    ],
    ids=lambda chunk: chunk[:9],
)
@pytest.mark.parametrize("name", ["english-1", "words-1"])
def test_tokenizers_take_linear_time_for_a_huge_chunk(name: str, chunk: str) -> None:
    start = time.process_time()
    assert "".join(get_tokenizer(name).tokenize(chunk)) == chunk
    assert time.process_time() - start < 5


def test_characters_1_splits_ideographs() -> None:
    chinese = get_tokenizer("characters-1")
    assert chinese.tokenize("我爱NLP，2024年 ok。") == [
        "我",
        "爱",
        "NLP",
        "，",
        "2024",
        "年",
        "ok",
        "。",
    ]
    assert chinese.split_sentences("他说：“好！”我走了。再见") == [
        "他说：“好！”",
        "我走了。",
        "再见",
    ]


GERMAN = "Am 3. Oktober 1990 kam z.B. Dr. Müller. Er blieb. Es war schön!"


def prepared(directory: Path, text: str, **options: object) -> list[str]:
    (directory / "raw.txt").write_text(text)
    prepare([directory / "raw.txt"], directory / "out", processes=1, **options)  # pyright: ignore
    return list(read_lines(directory / "out" / "shard-00000.txt.zst"))


# --- Choice by language ---------------------------------------------------------------------------


def test_the_language_chooses_a_tokenizer() -> None:
    assert get_tokenizer().name == "english-1" == get_tokenizer(None, "en").name
    assert get_tokenizer(None, "de").name == "words-1" == get_tokenizer(None, "sv").name
    assert get_tokenizer(None, "zh").name == "characters-1" == get_tokenizer(None, "ja").name
    assert set(TOKENIZER_OF.values()) <= {*TOKENIZERS, *SEGMENTERS}


def test_prepare_keeps_german_dates_and_abbreviations(tmp_path: Path) -> None:
    expected = ["Am 3. Oktober 1990 kam z.B. Dr. Müller .", "Er blieb .", "Es war schön !"]
    assert prepared(tmp_path, GERMAN, language="de") == expected
    report = read_report(tmp_path / "out")
    assert (report.options.tokenizer, report.options.language) == ("words-1", "de")


@pytest.mark.parametrize(
    ("name", "language", "message"),
    [
        ("whitespace-1", "de", "omit the language"),
        ("words-1", None, "needs a language"),
        ("klingon-1", "de", "choose one of whitespace-1, english-1, words-1, characters-1, rjieba"),
    ],
)
def test_prepare_refuses_a_tokenizer_that_the_language_does_not_fit(
    name: str, language: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        prepared(tmp_path, GERMAN, tokenizer=name, language=language)


# --- Tokenizers of other libraries ----------------------------------------------------------------


def needs(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(
            module, reason=f"{module} is not installed: it belongs to an optional extra"
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "modules", "text", "sentences"),
    [
        (
            "unidic-lite",
            ["fugashi", "unidic_lite"],
            "私は昨日学校に行きました。はい！",
            ["私 は 昨日 学校 に 行き まし た 。", "はい ！"],
        ),
        (
            "pythainlp",
            ["pythainlp", "pycrfsuite"],
            "ฉันชอบกินข้าว เขาเรียนที่มหาวิทยาลัย",
            ["ฉัน ชอบ กินข้าว", "เขา เรียน ที่ มหาวิทยาลัย"],
        ),
        (
            "spacy:de",
            ["spacy"],
            "Am 3. Oktober war es so. Gut!",
            ["Am 3. Oktober war es so .", "Gut !"],
        ),
    ],
)
def test_segmenters_split_words_and_sentences_and_record_their_version(
    tmp_path: Path, name: str, modules: list[str], text: str, sentences: list[str]
) -> None:
    needs(*modules)
    assert prepared(tmp_path, text, tokenizer=name) == sentences
    full = read_report(tmp_path / "out").options.tokenizer
    assert full.startswith(f"{name}==")
    assert get_tokenizer(full).name == full
    with pytest.raises(ValueError, match=r"==0\.0\.1.* is required"):
        get_tokenizer(f"{name}==0.0.1")


def test_rjieba_is_named_by_its_words_not_by_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = ["他 在 北京大学 读书 。", "NLP 很 好 ！"]
    assert prepared(tmp_path, "他在北京大学读书。 NLP 很好！", tokenizer="rjieba") == sentences
    assert read_report(tmp_path / "out").options.tokenizer == "rjieba-1"
    assert get_tokenizer("rjieba-1").tokenize("我喜欢吃苹果。") == [
        "我",
        "喜欢",
        "吃",
        "苹果",
        "。",
    ]
    monkeypatch.setattr("rjieba.cut", list)  # as by a release with another dictionary
    tokenizers._rjieba.cache_clear()
    with pytest.raises(ValueError, match="install rjieba 0"):
        get_tokenizer("rjieba-1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "module"),
    [("rjieba", "rjieba"), ("unidic-lite", "fugashi"), ("pythainlp", "pythainlp")],
)
@given(text=st.text(alphabet="我爱北京はい行กินข้า aB1. \n\u3000\u200b\x1c😀", max_size=30))
def test_segmenters_keep_every_visible_character(name: str, module: str, text: str) -> None:
    needs(module)
    tokenizer = get_tokenizer(name)
    tokens = tokenizer.tokenize(text)
    assert all(token.split() == [token] for token in tokens)
    assert "".join(tokens) == "".join(text.split())
    assert "".join("".join(tokenizer.split_sentences(text)).split()) == "".join(text.split())


# --- Agreement with UD English EWT ----------------------------------------------------------------


def _ewt_sentences(shared: Path, part: str) -> Iterator[tuple[str, list[str]]]:
    """Raw text and gold tokens of each sentence of UD English EWT."""
    packed = (shared / "eval" / "ud_english_ewt.tar.zst").read_bytes()
    with tarfile.open(
        fileobj=io.BytesIO(zstandard.ZstdDecompressor().stream_reader(packed).read())
    ) as archive:
        member = next(name for name in archive.getnames() if f"-{part}." in name)
        stream = archive.extractfile(member)
        for block in stream.read().decode().strip().split("\n\n"):
            text = re.search(r"^# text = (.*)$", block, re.MULTILINE)
            yield text.group(1), re.findall(r"^\d+\t([^\t]+)", block, re.MULTILINE)


def _spans(tokens: list[str]) -> set[tuple[int, int]]:
    ends = [0]
    for token in tokens:
        ends.append(ends[-1] + len(token))
    return set(pairwise(ends))


def test_english_agrees_with_ewt(shared: Path) -> None:
    right = ours = gold = 0
    for text, tokens in _ewt_sentences(shared, "dev"):
        result = _spans(ENGLISH.tokenize(text))
        expected = _spans(tokens)
        right += len(result & expected)
        ours += len(result)
        gold += len(expected)
    assert 2 * right / (ours + gold) > 0.987
