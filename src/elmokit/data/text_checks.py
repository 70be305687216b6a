"""Checks whether text looks like what it is read as: raw or tokenized, one sentence per line, in a language."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from elmokit.fs.reading import read_lines
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.tokenizers import TOKENIZED

SAMPLE_LINES, SAMPLE_CHARACTERS = 1_000, 1 << 20
# A comma, period, ... that is attached to a word, or between the words of a script without spaces: raw text.
ATTACHED = re.compile(
    r".*[^\W\d_]{2}[,;!?][\"'\u201d\u2019)]*|.*\w[\u3002\uff0c\uff01\uff1f\u3001\uff1b]\w.*|[^\x00-\x7f]{25,}"
)
ATTACHED_AT_END = re.compile(r".*[^\W\d_]{2}[.!?\u3002\uff01\uff1f][\"'\u201d\u2019)]*")
SEPARATE = frozenset(",.\u3001\u3002\uff0c")  # as words of their own: tokenized text
MARK_SHARE = 0.02
# Sentences are seldom longer; if a tenth of the lines is, they are paragraphs or documents.
LONG_LINE_WORDS, LONG_LINE_SHARE = 150, 0.1
# The first lines are split into sentences; this many in a line, on average, are several.
SPLIT_LINES, SPLIT_CHARACTERS, SEVERAL = 100, 5_000, 1.5
UNKNOWN_SHARE = 0.01  # of letters of scripts without rules
# They are a quarter of the words of English text, and rare in other languages in its script.
ENGLISH_WORDS = frozenset(
    "the of and to a in is that it for was with on as he she they you are this be at by i".split()  # noqa: SIM905
)
ENGLISH_SHARE, ENGLISH_SAMPLE = 0.08, 200

ADVICE = (
    "use a model of its language; where text is prepared or a model is trained, choose the rules with --language or "
    "--tokenizer"
)


def doubts_about(file: Path, tokenizer: Tokenizer, lines_are_sentences: bool) -> Iterator[str]:
    """Reasons, found in its beginning, to doubt that a file should be read with a tokenizer.

    Args:
        file: Text file.
        tokenizer: The tokenizer that will split it; whitespace-1 if it is read as tokenized text.
        lines_are_sentences: Every line will be used as one sentence.

    Yields:
        Reasons for a warning, each a phrase that follows the name of the file.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: It is not UTF-8, or cannot be decompressed.
    """
    lines = list(_beginning(file))
    if any("\0" in line for line in lines):
        yield "has null characters: it is damaged, or not in UTF-8 (UTF-16?): convert it, or remove them"
    words = [line.split() for line in lines]
    if tokenizer.name == TOKENIZED:
        if example := attached_mark(words):
            yield (
                f"is read as tokenized text, whose words are separated by spaces, but looks raw, as in {example!r}: "
                "tokenize it (with --tokenize, tokenize=True in Python, if the model records a tokenizer; or with "
                "`elmokit prepare`)"
            )
    elif _are_marks_separate(words):
        yield (
            "is read as raw text, but looks tokenized, with spaces before its commas and periods: if it is, say so "
            "with --no-tokenize (tokenize=False in Python)"
        )
    several = lines_are_sentences and _sentences_of_a_line(lines, tokenizer) >= SEVERAL
    if several or (lines_are_sentences and _are_long(words)):
        length = "several sentences" if several else f"more than {LONG_LINE_WORDS} words"
        yield (
            f"has lines of {length}, each of which is read as one sentence: split it into sentences, one per line, as "
            "`elmokit prepare` does"
        )
    unknown, characters = sum(map(tokenizer.count_unknown, lines)), sum(map(len, lines))
    if unknown >= max(2, UNKNOWN_SHARE * characters):
        share = f"{unknown / characters:.0%} of its characters"
        yield f"has letters of scripts for which {tokenizer.name} has no rules ({share}): {ADVICE}"
    elif doubt := english_doubt(lines, tokenizer):
        yield doubt


def _beginning(file: Path) -> Iterator[str]:
    characters = 0
    for line in islice(filter(str.strip, read_lines(file)), SAMPLE_LINES):
        yield line[:SAMPLE_CHARACTERS]
        characters += len(line)
        if characters >= SAMPLE_CHARACTERS:
            return


def _words_with_marks(words: Sequence[str]) -> list[str]:
    """The words of a sentence that have an attached mark."""
    inner = [word for word in words[:-1] if ATTACHED.fullmatch(word[-60:])]
    return inner + [word for word in words[-1:] if ATTACHED_AT_END.fullmatch(word) or ATTACHED.fullmatch(word[-60:])]


def has_attached_mark(words: Sequence[str]) -> bool:
    """Whether a word of a sentence has an attached mark, as in raw text."""
    return bool(_words_with_marks(words))


def attached_mark(lines: Iterable[Sequence[str]]) -> str | None:
    """A word with an attached mark, if at least two and at least 2 % of the words have one."""
    total, marked = 0, []
    for words in lines:
        total += len(words)
        marked += _words_with_marks(words)
    return marked[0][:60] if len(marked) >= max(2, MARK_SHARE * total) else None


def _are_marks_separate(lines: Sequence[Sequence[str]]) -> bool:
    total = sum(map(len, lines))
    separate = sum(word in SEPARATE for words in lines for word in words)
    return separate >= max(2, MARK_SHARE * total) and attached_mark(lines) is None


def _sentences_of_a_line(lines: Sequence[str], tokenizer: Tokenizer) -> float:
    """The mean number of sentences in the first lines; 1 for tokenized text."""
    first = [line[:SPLIT_CHARACTERS] for line in lines[:SPLIT_LINES]]
    return sum(len(tokenizer.split_sentences(line)) for line in first) / max(1, len(first))


def _are_long(lines: Sequence[Sequence[str]]) -> bool:
    long = sum(len(words) > LONG_LINE_WORDS for words in lines)
    return long > LONG_LINE_SHARE * len(lines)


def english_doubt(lines: Iterable[str], tokenizer: Tokenizer) -> str | None:
    """A doubt if text for english-1 lacks the most frequent words of English; None if not, or a language is given."""
    if tokenizer.name != "english-1" or tokenizer.language is not None:
        return None
    words = [word for word in chain.from_iterable(map(str.split, lines)) if word.isalpha()]
    english = sum(word.lower() in ENGLISH_WORDS for word in words)
    if len(words) < ENGLISH_SAMPLE or english >= ENGLISH_SHARE * len(words):
        return None
    return f"does not look like English, whose rules {tokenizer.name} follows: {ADVICE}"
