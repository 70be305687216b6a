"""The interface of tokenizers, and the sentences that callers pass."""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Sentence = str | Sequence[str]  # which a tokenizer splits, or its words


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer and sentence splitter.

    Attributes:
        name: Unique name, which models record.
        tokenize: Splits a sentence into tokens.
        split_sentences: Splits a paragraph into sentences.
        unknown: Matches letters of scripts for which there are no rules; None if these scripts are not known.
        language: Code of the language by whose rules sentences are split; None: the tokenizer's own rules.
    """

    name: str
    tokenize: Callable[[str], list[str]]
    split_sentences: Callable[[str], list[str]]
    unknown: re.Pattern[str] | None = None
    language: str | None = None

    def split(self, text: str) -> list[str]:
        """The tokens of a text by itself; warns if most of it is in a script without rules."""
        if self.count_unknown(text) > max(1, len(text) // 2):
            message = f"text is in a script for which {self.name} has no rules: use a model of its language"
            warnings.warn(message, stacklevel=4)
        return self.tokenize(text)

    def split_paragraph(self, paragraph: str) -> Iterator[list[str]]:
        """Yield the tokens of each sentence of a paragraph, except sentences without tokens."""
        for sentence in self.split_sentences(paragraph):
            if tokens := self.tokenize(sentence):
                yield tokens

    def count_unknown(self, text: str) -> int:
        """Number of letters in a text of scripts for which the tokenizer has no rules."""
        return 0 if self.unknown is None or text.isascii() else len(self.unknown.findall(text))
