"""Incremental tokenization of long texts; the tokens are the same as for the whole text at once."""

import re
from collections.abc import Iterator

from elmokit.text.chinese import IDEOGRAPH
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.tokenizers import TOKENIZERS

SEGMENT_CHARACTERS = 1 << 16
WHITE_SPACE = re.compile(r"\s")
# Chinese may have no white space, but the rules of this tokenizer do not reach across an ideograph.
BREAKS = {"characters-1": re.compile(rf"\s|(?<={IDEOGRAPH})")}
# Appended to all segments but the last, because some rules differ at the end of a sentence; and its number of tokens.
CONTINUATION, CONTINUATION_TOKENS = " .", 1


def split_text(text: str, size: int, breaks: re.Pattern[str]) -> Iterator[str]:
    """Split a text into segments of at least `size` characters that end at a break, without trailing white space."""
    begin, stop = 0, len(text.rstrip())
    while begin < stop:
        match = breaks.search(text, min(begin + size, stop), stop)
        end = match.end() if match else stop
        yield text[begin:end]
        begin = end


def tokenize_long_text(tokenizer: Tokenizer, text: str, size: int = SEGMENT_CHARACTERS) -> Iterator[list[str]]:
    """Tokenize a text segment by segment, so that not all tokens are in memory at once.

    Texts are split only for tokenizers of this package, whose rules do not reach across white space.

    Args:
        tokenizer: The tokenizer.
        text: The text.
        size: Minimum number of characters of a segment.

    Yields:
        The tokens of each segment; together they are `tokenizer.tokenize(text)`.
    """
    if len(text) <= size or tokenizer.name not in TOKENIZERS:
        yield tokenizer.tokenize(text)
        return
    segments = split_text(text, size, BREAKS.get(tokenizer.name, WHITE_SPACE))
    last = next(segments, "")
    for segment in segments:
        yield tokenizer.tokenize(last + CONTINUATION)[:-CONTINUATION_TOKENS]
        last = segment
    yield tokenizer.tokenize(last)
