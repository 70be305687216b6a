"""Checks whether text looks like what it is read as."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from elmokit.fs import is_json_object
from elmokit.text import DECOMPOSED, Tokenizer, is_decomposed

SAMPLE_LINES, SAMPLE_CHARACTERS = 1_000, 1 << 20
# A comma, period, ... that is attached to a word, or between the words of a script without spaces:
# raw text.
ATTACHED = re.compile(
    r".*[^\W\d_]{2}[,;!?][\"'\u201d\u2019)]*|.*\w[\u3002\uff0c\uff01\uff1f\u3001\uff1b]\w.*|[^\x00-\x7f]{25,}"
)
ATTACHED_AT_END = re.compile(r".*[^\W\d_]{2}[.!?\u3002\uff01\uff1f][\"'\u201d\u2019)]*")
MARK_SHARE = 0.02
DOUBTFUL_SHARE = 0.01  # of letters of scripts without rules; of decomposed lines


def beginning(lines: Iterable[str]) -> Iterator[str]:
    """The first of some lines, without blank ones."""
    characters = 0
    for line in islice(filter(str.strip, lines), SAMPLE_LINES):
        yield line[:SAMPLE_CHARACTERS]
        characters += len(line)
        if characters >= SAMPLE_CHARACTERS:
            return


def _words_with_marks(words: Sequence[str]) -> list[str]:
    """The words of a sentence that have an attached mark."""
    inner = [word for word in words[:-1] if ATTACHED.fullmatch(word[-60:])]
    return inner + [
        word
        for word in words[-1:]
        if ATTACHED_AT_END.fullmatch(word) or ATTACHED.fullmatch(word[-60:])
    ]


def has_attached_mark(words: Sequence[str]) -> bool:
    """Whether a word of a sentence has an attached mark, as in raw text."""
    return bool(_words_with_marks(words))


def attached_mark(lines: Iterable[Sequence[str]]) -> str | None:
    """A word with an attached mark, if at least two and at least 2 % of the words have one, as in
    raw text.
    """
    total, marked = 0, []
    for words in lines:
        total += len(words)
        marked += _words_with_marks(words)
    return marked[0][:60] if len(marked) >= max(2, MARK_SHARE * total) else None


def _are_rows(lines: Sequence[str]) -> bool:
    """Whether lines are rows of a table: as many tabs in each, names without spaces between commas
    first, or JSON.
    """
    tabs, commas = ({line.count(mark) for line in lines} for mark in "\t,")
    is_csv = min(commas, default=0) > 0 and " " not in lines[0]  # a cell may have commas of its own
    return len(lines) > 1 and (
        (len(tabs) == 1 and tabs != {0}) or is_csv or is_json_object(lines[0])
    )


def doubt_of(lines: Sequence[str], tokenizer: Tokenizer) -> str | None:
    """A warning, to follow the name of a file, if much of its text may be read wrongly.

    Args:
        lines: The beginning of the text.
        tokenizer: Its tokenizer.

    Returns:
        The warning if the lines are rows of a table, 1 % of the characters are letters for which
        the tokenizer has no rules, or 1 % of the lines have decomposed letters.
    """
    if _are_rows(lines):
        return (
            "looks like a table, but is read as text: name it .csv, .tsv or .jsonl, and the "
            "texts' column (--column)"
        )
    text = "\n".join(lines)
    unknown = tokenizer.count_unknown(text)
    if unknown >= max(2, DOUBTFUL_SHARE * len(text)):
        return (
            f"has letters of scripts for which {tokenizer.name} has no rules "
            f"({unknown / len(text):.0%} of its characters): use a model of its language, or to "
            "prepare or train, choose --language or --tokenizer"
        )
    decomposed = sum(map(is_decomposed, lines))
    return DECOMPOSED if decomposed > DOUBTFUL_SHARE * len(lines) else None
