"""Sentence splitting by windows, against sentencex on the whole paragraph; languages; linear
time.
"""

import random
import time
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]

from elmokit.text.english import split_english_sentences
from elmokit.text.sentences import segments, split_sentences

SENTENCES = [
    "Dr. Smith went home.",
    'He said "It is late. I must go."',
    "Why (he asked) not?",
    "I don't know 3.5 kg, etc. of it!",
    "“Wait,” she said. “I'm coming.”",
]


def paragraph(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(SENTENCES, k=count))


@pytest.mark.parametrize("window", [200, 500, 2000])
def test_segments_equal_sentencex_on_the_whole_paragraph(window: int) -> None:
    for seed in range(20):
        text = paragraph(seed, 150)
        assert list(segments("en", text, window)) == segment("en", text)


@given(
    st.text(alphabet=" \n\r.!?'\"“”(a.BÉ。क।\u00a0\u2003\u3000", max_size=60),
    st.integers(2, 20),
    st.sampled_from(["en", "de", "hi"]),
)
def test_segments_keep_every_character(text: str, window: int, language: str) -> None:
    result = "".join(segments(language, text, window))
    assert "".join(result.split()) == "".join(text.split())


@pytest.mark.parametrize("space", ["\u00a0", "\u2003", "\u3000", " \u00a0"])
@pytest.mark.parametrize("language", ("en", "de", "ru", "zh", "ja", "th", "hi", "ar", "xx"))
def test_segments_splits_text_on_which_sentencex_panics(
    language: str, space: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = f"Take vitamin C{space}. It{space}helps. "
    assert "".join(segments(language, text)) == text
    assert list(segments(language, text)) == cut(
        text, segment(language, text.replace(space, " " * len(space)))
    )
    assert "".join(segments(language, text * 9, window=50)) == text * 9
    assert capfd.readouterr().err == ""  # where Rust reports a panic, even one that is caught


def cut(text: str, pieces: list[str]) -> list[str]:
    """A text cut into pieces as long as those given."""
    ends = list(accumulate(map(len, pieces)))
    return [text[begin:end] for begin, end in pairwise([0, *ends])]


@pytest.mark.parametrize("mark", ["'", '"', "(", "«", "“", "a.", "'a ", "A" * 76 + "\t"])
def test_segments_takes_linear_time(mark: str) -> None:
    start = time.process_time()
    text = mark * (100_000 // len(mark))
    assert "".join("".join(split_english_sentences(text)).split()) == "".join(text.split())
    # sentencex alone takes 0.7 s for this number of apostrophes and 9 s for that of quotation
    # marks.
    assert time.process_time() - start < 5


# A single sentence each, with abbreviations and dates.
UNCUT = {
    "de": "Am 3. Oktober 1990 kamen z.B. Dr. Müller und Prof. Schmidt nach Berlin.",
    "fr": "M. Dupont habite av. de la République depuis 1990.",
    "es": "El Sr. García vive en la av. de Madrid con la Dra. Pérez.",
    "it": "Il sig. Rossi e il dott. Bianchi abitano a Roma.",
    "nl": "Dhr. Jansen en mevr. de Vries wonen in Den Haag.",
    "ru": "Он родился в 1990 г. в г. Москве.",
    "pl": "Mieszkał m.in. w Krakowie przy ul. Długiej.",
    "da": "Dr. Hansen bor bl.a. i København.",
}


@pytest.mark.parametrize("language", UNCUT)
def test_split_sentences_keeps_abbreviations_and_dates(language: str) -> None:
    assert (
        split_sentences(language, f"{UNCUT[language]} {UNCUT[language]}") == [UNCUT[language]] * 2
    )


def test_split_sentences_splits_at_sentence_ends() -> None:
    assert split_sentences("es", "Vino el Sr. Gil. Bien.") == ["Vino el Sr. Gil.", "Bien."]
    text = (
        "Im Jahr 1990 war das so. Dann kam er. Er sagte: „Nein!“ Ist es Teil 3? Ja, bzw. Nein "
        "usw. und so fort."
    )
    assert split_sentences("de", text) == [
        "Im Jahr 1990 war das so.",
        "Dann kam er.",
        "Er sagte: „Nein!“",
        "Ist es Teil 3?",
        "Ja, bzw. Nein usw. und so fort.",
    ]


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("hi", ["यह किताब है।", "वह घर गया।"]),
        ("ja", ["私は学生です。", "はい！"]),
        ("ar", ["ذهب إلى البيت.", "هل عاد؟"]),
        ("hy", ["Սա գիրք է։", "Նա գնաց։"]),
        ("am", ["ይህ መጽሐፍ ነው።", "ሄደ።"]),
    ],
)
def test_split_sentences_knows_the_punctuation_of_scripts(
    language: str, sentences: list[str]
) -> None:
    assert split_sentences(language, " ".join(sentences)) == sentences
