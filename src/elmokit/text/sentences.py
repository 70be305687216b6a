"""Sentence splitting by sentencex (Wikimedia), in time linear in the length of the paragraph."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, pairwise

# sentencex takes quadratic time for runs of punctuation: a million apostrophes would take a minute.
WINDOW = 10_000

# Abbreviations that precede something, such as titles, "number" or "for example", so that no
# sentence ends after them.
INTRODUCING = (
    # German
    "Abb|Anm|Aufl|Bd|Bde|bzgl|bzw|ca|Dipl|Dr|ebd|evtl|exkl|gegr|ggf|Hr|Hrsg|Ing|inkl|insb|jew|Nr|Prof|sog|Tel|vgl|zzgl|"
    # French, Italian, Spanish, Portuguese
    "MM|Mme|Mlle|Mgr|Sig|Sigg|Dott|Avv|pag|pagg|cfr|Sr|Sra|Sres|Srta|Dra|Uds|Vds|pág|págs|núm|aprox|Exmo|Exma|"
    # Dutch, Danish, Norwegian, Swedish, Finnish
    "blz|dhr|mevr|drs|resp|evt|bijv|excl|incl|nr|tlf|jfr|dvs|esim|"
    # Polish, Czech, Slovak, Hungarian, Croatian, Turkish
    "np|tzw|tzn|prof|inż|mgr|dr|ul|św|např|popř|tj|tzv|npr|Doç|Yrd|"
    # Russian, Ukrainian, Bulgarian, Greek
    "ул|им|ім|вул|напр|проф|акад|доц|стр|рис|табл|σελ|βλ|"
    # several languages
    "Mr|Mrs|Ms|St|cf|fig|pp|vol|vols"
)

# Where to split a window in which sentencex finds no end of a sentence, such as a long quotation.
MARK_AND_SPACE = re.compile(r"[.!?\u2026\u0964\u3002\uff01\uff1f][\"'\u2019\u201d)\]]*\s+")
SPACE = re.compile(r"\s+")


def _forced_segment(text: str) -> str:
    """The text up to its last mark that may end a sentence, or else up to its last white space, or
    else all of it.
    """
    for pattern in (MARK_AND_SPACE, SPACE):
        ends = [match.end() for match in pattern.finditer(text)]
        if ends:
            return text[: ends[-1]]
    return text


NOT_ASCII_SPACE = re.compile(r"[^\S\x00-\x7f]")
LETTER_SPACE_PERIOD = re.compile(r"([^\W\d_])(\s+)\.")


def _segment(language: str, text: str) -> list[str]:
    """The segments of a text by sentencex.

    sentencex 1.0 panics if a capital, white space outside of ASCII and a period follow each other,
    as in "vitamin C\u00a0.". Such a text is split as if its white space were ASCII. All others are
    split as they are, so that their sentences stay those that models were trained on.
    """
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]  (a compiled module)

    endings = LETTER_SPACE_PERIOD.findall(text)
    if all(space.isascii() for letter, space in endings if letter.isupper()):
        return segment(language, text)
    ends = list(accumulate(map(len, segment(language, NOT_ASCII_SPACE.sub(" ", text)))))
    return [text[begin:end] for begin, end in pairwise([0, *ends[:-1], len(text)])]


def segments(language: str, paragraph: str, window: int = WINDOW) -> Iterator[str]:
    """Split a paragraph with sentencex, one window of characters at a time.

    Only the segments that begin in the first half of a window are used, as a quotation may extend
    beyond the window.

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
        # sentencex may rewrite the white space of blank lines, so that the rest of the text cannot
        # be located.
        if not complete or not text.startswith("".join(complete)):
            complete = [_forced_segment(text)]
        yield from complete
        begin += sum(map(len, complete))
    yield from _segment(language, paragraph[begin:])


# sentencex knows some abbreviations of some languages. In addition, no sentence ends after an
# abbreviation in INTRODUCING, after an initial, or before a lower-case letter.
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
