"""Sentence splitting by sentencex (Wikimedia), in time linear in the length of the paragraph."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, pairwise

from elmokit.text.abbreviations import INTRODUCING

# sentencex takes quadratic time for runs of punctuation: a million apostrophes would take a minute.
WINDOW = 10_000

# The languages for which sentencex 1.0 has rules (its `src/languages`), which it does not list at run time. For other
# languages it silently uses those of a related language, or of English.
LANGUAGES = (
    "am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy", "it", "ja", "kk", "kn",
    "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te", "uk",
)  # fmt: skip
# The codes of ISO 639-2 and 639-3 for languages that have rules under their code of two letters.
CODES_OF_THREE_LETTERS = {
    "amh": "am", "ara": "ar", "arm": "hy", "ben": "bn", "bul": "bg", "bur": "my", "cat": "ca", "chi": "zh", "cmn": "zh",
    "dan": "da", "deu": "de", "dut": "nl", "ell": "el", "eng": "en", "fin": "fi", "fra": "fr", "fre": "fr", "ger": "de",
    "gre": "el", "guj": "gu", "hin": "hi", "hye": "hy", "ita": "it", "jpn": "ja", "kan": "kn", "kaz": "kk", "mal": "ml",
    "mar": "mr", "mya": "my", "nld": "nl", "pan": "pa", "pol": "pl", "por": "pt", "rus": "ru", "slk": "sk", "slo": "sk",
    "spa": "es", "tam": "ta", "tel": "te", "tha": "th", "ukr": "uk", "zho": "zh",
}  # fmt: skip


# Where to split a window in which sentencex finds no end of a sentence, such as a long quotation.
MARK_AND_SPACE = re.compile(r"[.!?\u2026\u0964\u3002\uff01\uff1f][\"'\u2019\u201d)\]]*\s+")
SPACE = re.compile(r"\s+")


def _forced_segment(text: str) -> str:
    """The text up to its last mark that may end a sentence, or else up to its last white space, or else all of it."""
    for pattern in (MARK_AND_SPACE, SPACE):
        ends = [match.end() for match in pattern.finditer(text)]
        if ends:
            return text[: ends[-1]]
    return text


NOT_ASCII_SPACE = re.compile(r"[^\S\x00-\x7f]")
LETTER_SPACE_PERIOD = re.compile(r"([^\W\d_])(\s+)\.")
SURROGATE = re.compile("[\ud800-\udfff]")


def _segment(language: str, text: str) -> list[str]:
    """The segments of a text by sentencex.

    sentencex 1.0 panics if a capital, white space outside of ASCII and a period follow each other, as in
    "vitamin C\u00a0.", and refuses lone surrogates. Such a text is split as if its white space were ASCII, and its
    surrogates U+FFFD. All others are split as they are, so that their sentences stay those that models were trained on.
    """
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]  (a compiled module)

    accepted = SURROGATE.sub("\ufffd", text)
    endings = LETTER_SPACE_PERIOD.findall(accepted)
    if any(letter.isupper() and not space.isascii() for letter, space in endings):
        accepted = NOT_ASCII_SPACE.sub(" ", accepted)
    sentences = segment(language, accepted)
    if accepted == text:
        return sentences
    ends = list(accumulate(map(len, sentences)))
    return [text[begin:end] for begin, end in pairwise([0, *ends[:-1], len(text)])]


def segments(language: str, paragraph: str, window: int = WINDOW) -> Iterator[str]:
    """Split a paragraph with sentencex, one window of characters at a time.

    Only the segments that begin in the first half of a window are used, as a quotation may extend beyond the window.

    Args:
        language: Language code.
        paragraph: The text.
        window: Number of characters of a window.

    Yields:
        Segments that, concatenated, are the paragraph, white space included.
    """
    begin = 0
    while len(paragraph) - begin > window:
        text = paragraph[begin : begin + window]
        complete = _segment(language, text)[:-1]
        ends = list(accumulate(map(len, complete)))
        complete = complete[: bisect_left(ends, window // 2) + 1]
        # sentencex may rewrite the white space of blank lines, so that the rest of the text cannot be located.
        if not complete or not text.startswith("".join(complete)):
            complete = [_forced_segment(text)]
        yield from complete
        begin += sum(map(len, complete))
    yield from _segment(language, paragraph[begin:])


# sentencex knows some abbreviations of some languages. In addition, no sentence ends after an abbreviation in
# INTRODUCING, after an initial, or before a lower-case letter.
ABBREVIATED = re.compile(rf"\W*(?:{INTRODUCING})\.")
INITIAL = re.compile(r"\W*[^\W\d_]\.")


def _continues(segment: str, following: str) -> bool:
    """Whether the segment that follows belongs to the same sentence."""
    segment = segment.rstrip()
    if not segment.endswith("."):
        return False
    last = segment.rsplit(maxsplit=1)[-1]
    if following.lstrip()[:1].islower() or ABBREVIATED.fullmatch(last):
        return True
    return INITIAL.fullmatch(last) is not None and last[-2].isupper()


def split_sentences(language: str, paragraph: str) -> list[str]:
    """Split a paragraph in a language other than English into sentences."""
    sentences: list[list[str]] = []
    for segment in segments(language, paragraph):
        if sentences and _continues(sentences[-1][-1], segment):
            sentences[-1].append(segment)
        else:
            sentences.append([segment])
    return [stripped for sentence in sentences if (stripped := "".join(sentence).strip())]
