"""What a tokenizer is."""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tokenizer:
    """A named way to split text.

    `tokenize(text)` gives the tokens of a sentence, `split_sentences(text)` the sentences of a paragraph. `unknown`
    matches a letter of a script that the tokenizer has no rules for; None where that is not known.
    """

    name: str
    tokenize: Callable[[str], list[str]]
    split_sentences: Callable[[str], list[str]]
    unknown: re.Pattern[str] | None = None

    def count_unknown(self, text: str) -> int:
        """How many letters of a text are of a script that the tokenizer has no rules for."""
        return 0 if self.unknown is None or text.isascii() else len(self.unknown.findall(text))
