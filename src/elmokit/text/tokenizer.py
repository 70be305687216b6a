"""The interface of tokenizers."""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer and sentence splitter.

    Attributes:
        name: Unique name, which models record.
        tokenize: Splits a sentence into tokens.
        split_sentences: Splits a paragraph into sentences.
        unknown: Matches letters of scripts for which there are no rules; None if these are not known.
    """

    name: str
    tokenize: Callable[[str], list[str]]
    split_sentences: Callable[[str], list[str]]
    unknown: re.Pattern[str] | None = None

    def count_unknown(self, text: str) -> int:
        """Number of letters in a text of scripts for which the tokenizer has no rules."""
        return 0 if self.unknown is None or text.isascii() else len(self.unknown.findall(text))
