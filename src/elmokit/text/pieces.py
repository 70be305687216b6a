"""The tokens of a text of any length, a piece at a time: those of the whole text, without holding them all."""

import re
from collections.abc import Iterator

from elmokit.text.chinese import IDEOGRAPH
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.tokenizers import TOKENIZERS

PIECE = 1 << 16
WHITE_SPACE = re.compile(r"\s")
# Chinese may have no white space; nothing that this tokenizer does looks back beyond an ideograph.
BREAKS = {"characters-1": re.compile(rf"\s|(?<={IDEOGRAPH})")}
# Stands for the rest of the text behind a piece: some rules know the end of a sentence.
REST, TOKENS_OF_REST = " .", 1


def text_pieces(text: str, size: int, breaks: re.Pattern[str]) -> Iterator[str]:
    """The text in pieces of `size` characters, each up to the next break; white space at its end is left out."""
    begin, stop = 0, len(text.rstrip())
    while begin < stop:
        found = breaks.search(text, min(begin + size, stop), stop)
        end = found.end() if found else stop
        yield text[begin:end]
        begin = end


def tokenize_in_pieces(tokenizer: Tokenizer, text: str, size: int = PIECE) -> Iterator[list[str]]:
    """The tokens of `tokenizer.tokenize(text)`, those of about `size` characters at a time.

    The tokenizers of this package decide between white spaces, which is where the text can be cut. Another one may
    look anywhere, so that it is given the whole text.
    """
    if len(text) <= size or tokenizer.name not in TOKENIZERS:
        yield tokenizer.tokenize(text)
        return
    pieces = text_pieces(text, size, BREAKS.get(tokenizer.name, WHITE_SPACE))
    last = next(pieces, "")
    for piece in pieces:
        yield tokenizer.tokenize(last + REST)[:-TOKENS_OF_REST]
        last = piece
    yield tokenizer.tokenize(last)
