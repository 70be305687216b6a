"""words-1 on examples of Universal Dependencies treebanks."""

import unicodedata

import pytest

from elmokit.text.scripts import UNSPACED_LETTER
from elmokit.text.words import tokenize_words

EXAMPLES = [
    # German
    ("Am 3. Oktober 1990 wurde, z.B. in Berlin, gefeiert.", "Am 3. Oktober 1990 wurde , z.B. in Berlin , gefeiert ."),
    (
        "Dr. Müller (vgl. Abb. 5) zahlt 1.000,50 €, d.h. 20%.",
        "Dr. Müller ( vgl. Abb. 5 ) zahlt 1.000,50 € , d.h. 20 % .",
    ),
    ("Am 3.10. um 12:30 Uhr kommt die U-Bahn.", "Am 3.10. um 12:30 Uhr kommt die U-Bahn ."),
    ("„Gut“, sagte er, »ja« usw.", "„ Gut “ , sagte er , » ja « usw."),
    ("Das war gut. Es war 1990. Ende", "Das war gut . Es war 1990 . Ende"),
    # French, Italian, Spanish, Catalan
    ("L'homme qu’il voit aujourd'hui n'est pas d'ici.", "L' homme qu’ il voit aujourd'hui n' est pas d' ici ."),
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
    ("http://x.org/a?b, a.b@c.de und www.spiegel.de!", "http://x.org/a?b , a.b@c.de und www.spiegel.de !"),
    ("ja ... nein?! -- 1990–1995", "ja ... nein ?! -- 1990 – 1995"),
    ("<S> \u200bx\u00ady", "< S > xy"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "tokens"), EXAMPLES)
def test_words_1_follows_treebank_conventions(text: str, tokens: str) -> None:
    assert tokenize_words(text) == tokens.split()


@pytest.mark.parametrize("tokens", [tokens for _, tokens in EXAMPLES])
def test_words_1_keeps_tokenized_text(tokens: str) -> None:
    assert tokenize_words(tokens) == tokens.split()


def test_words_1_keeps_combining_marks_in_words() -> None:
    marks = [chr(point) for point in range(0x1100) if unicodedata.category(chr(point)) in ("Mn", "Mc")]
    spaced = [mark for mark in marks if not UNSPACED_LETTER.match(mark)]
    split = [f"U+{ord(mark):04X}" for mark in spaced if tokenize_words(f"a{mark}b") != [f"a{mark}b"]]
    assert len(spaced) > 400 and not split
