"""Sentences of a paragraph, by sentencex (Wikimedia), in time that grows with the length of the paragraph."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from elmokit.text.abbreviations import INTRODUCING

# sentencex looks at a run of marks from each of them: a million apostrophes would take a minute.
WINDOW = 10_000

# The languages that sentencex 1.0 has rules for (its `src/languages`); it does not list them at run time. For another
# one it takes those of a related language, or the English ones, without a word.
LANGUAGES = (
    "am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy", "it", "ja", "kk", "kn",
    "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te", "uk",
)  # fmt: skip


# Where a paragraph is cut that has no end of a sentence for a window: sentencex keeps what is in quotes whole.
MARK_AND_SPACE = re.compile(r"[.!?\u2026\u0964\u3002\uff01\uff1f][\"'\u2019\u201d)\]]*\s+")
SPACE = re.compile(r"\s+")


def _cut(text: str) -> str:
    """The text up to its last mark that may end a sentence, or else its last white space; all of it without any."""
    for pattern in (MARK_AND_SPACE, SPACE):
        ends = [found.end() for found in pattern.finditer(text)]
        if ends:
            return text[: ends[-1]]
    return text


def segments(language: str, paragraph: str, window: int = WINDOW) -> Iterator[str]:
    """What sentencex makes of a paragraph, white space and all, a window of characters at a time.

    Of a window's segments, those count that begin in its first half: what is quoted may go on behind the window.
    """
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]  (its module is compiled)

    begin = 0
    while len(paragraph) - begin > window:
        text = paragraph[begin : begin + window]
        found = segment(language, text)[:-1]
        ends = list(accumulate(map(len, found)))
        found = found[: bisect_left(ends, window // 2) + 1]
        # It may rewrite the white space of blank lines; then what it found cannot be told from what is left.
        if not found or not text.startswith("".join(found)):
            found = [_cut(text)]
        yield from found
        begin += sum(map(len, found))
    yield from segment(language, paragraph[begin:])


# sentencex knows some abbreviations of some languages. A period after one of ours or after an initial, or one before a
# small letter, ends no sentence either.
ABBREVIATED = re.compile(rf"\W*(?:{INTRODUCING})\.")
INITIAL = re.compile(r"\W*[^\W\d_]\.")


def _goes_on(piece: str, following: str) -> bool:
    """Whether what follows a piece belongs to its sentence."""
    piece = piece.rstrip()
    if not piece.endswith("."):
        return False
    last = piece.rsplit(maxsplit=1)[-1]
    if following.lstrip()[:1].islower() or ABBREVIATED.fullmatch(last):
        return True
    return INITIAL.fullmatch(last) is not None and last[-2].isupper()


def split_sentences(language: str, paragraph: str) -> list[str]:
    """The sentences of one paragraph by the rules of a language other than English, without white space around them."""
    sentences: list[list[str]] = []
    for piece in segments(language, paragraph):
        if sentences and _goes_on(sentences[-1][-1], piece):
            sentences[-1].append(piece)
        else:
            sentences.append([piece])
    return [sentence for pieces in sentences if (sentence := "".join(pieces).strip())]
