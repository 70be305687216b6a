"""The interface of tokenizers, rules for chunks of text between white spaces, and the positions of
tokens in a text.
"""

import re
import unicodedata
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

Sentence = str | Sequence[str]  # which a tokenizer splits, or its words

CACHED_CHUNKS, CACHED_CHARACTERS = (
    200_000,
    100,
)  # of each cache; longer chunks are rare, and not kept

# Invisible characters without meaning for a model: soft hyphen, zero-width space, direction marks,
# byte order mark.
INVISIBLE = re.compile(r"[\u00ad\u200b\u200e\u200f\u2060\ufeff]")

NOT_SPACE = re.compile(r"\S")
VISIBLE = re.compile(rf"(?!{INVISIBLE.pattern})\S")
LOOK_AHEAD = (
    100  # characters in which to look for the next token if the tokenizer has changed the text
)


DECOMPOSED = (
    "has letters whose accents are characters of their own (NFD), which a model reads as other "
    "words: compose them, as by unicodedata.normalize('NFC', text)"
)


def is_decomposed(text: str) -> bool:
    """Whether there are letters with combining marks in a text that have a composed form."""
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return False
    return len(unicodedata.normalize("NFC", text)) < len(text)


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer and sentence splitter.

    Attributes:
        name: Unique name, which models record.
        tokenize: Splits a sentence into tokens.
        split_sentences: Splits a paragraph into sentences.
        unknown: Matches letters of scripts for which there are no rules; None if these scripts are
            not known.
        language: Code of the language by whose rules sentences are split; None: the tokenizer's own
            rules.
    """

    name: str
    tokenize: Callable[[str], list[str]]
    split_sentences: Callable[[str], list[str]]
    unknown: re.Pattern[str] | None = None
    language: str | None = None

    def split(self, text: str) -> list[str]:
        """The tokens of a text by itself; warns if most of it is in a script without rules, or if
        it is decomposed.
        """
        if self.count_unknown(text) > max(1, len(text) // 2):
            message = (
                f"text is in a script for which {self.name} has no rules: use a model of "
                f"its language"
            )
            warnings.warn(message, stacklevel=4)
        if is_decomposed(text):
            warnings.warn(f"text {DECOMPOSED}", stacklevel=4)
        return self.tokenize(text)

    def split_paragraph(self, paragraph: str) -> Iterator[list[str]]:
        """Yield the tokens of each sentence of a paragraph, except sentences without tokens."""
        for sentence in self.split_sentences(paragraph):
            if tokens := self.tokenize(sentence):
                yield tokens

    def count_unknown(self, text: str) -> int:
        """Number of letters in a text of scripts for which the tokenizer has no rules."""
        return 0 if self.unknown is None or text.isascii() else len(self.unknown.findall(text))


class ChunkCache(dict[str, tuple[str, ...]]):
    """The tokens of chunks, found by a regular expression; it begins anew when it is full."""

    def __init__(self, rules: re.Pattern[str]) -> None:
        super().__init__()
        self._rules = rules

    def __missing__(self, chunk: str) -> tuple[str, ...]:
        tokens = tuple(match.group() for match in self._rules.finditer(INVISIBLE.sub("", chunk)))
        if len(chunk) <= CACHED_CHARACTERS:
            if len(self) >= CACHED_CHUNKS:
                self.clear()
            self[chunk] = (
                (chunk,) if tokens == (chunk,) else tokens
            )  # share the string with the key
        return tokens


class ChunkRules:
    """A tokenizer defined by regular expressions, whose matches are the tokens of a chunk."""

    def __init__(self, inside: Iterable[str], last: Iterable[str]) -> None:
        """Use the patterns `last`, in order of precedence, for the last chunk of a sentence, else
        `inside`.
        """
        patterns = [
            re.compile("|".join(f"(?:{rule})" for rule in rules)) for rules in (inside, last)
        ]
        self._inside, self._last = map(ChunkCache, patterns)

    def __call__(self, sentence: str) -> list[str]:
        """Tokenize a sentence; its tokens, concatenated, are its visible characters without white
        space.
        """
        *chunks, last = sentence.split() or [""]
        tokens = list(chain.from_iterable(map(self._inside.__getitem__, chunks)))
        tokens.extend(self._last[last])
        return tokens


def token_offsets(text: str, tokens: Sequence[str]) -> list[tuple[int, int] | None]:
    """Find tokens in their text, in time linear in its length.

    Args:
        text: The text.
        tokens: Its tokens, in order. They lack its white space and may lack its invisible
            characters.

    Returns:
        The start and stop of each token in characters; None for a token that does not occur
        unchanged in the text.
    """
    kept = NOT_SPACE if INVISIBLE.search("".join(tokens)) else VISIBLE
    places = array("L", (match.start() for match in kept.finditer(text)))
    visible = "".join(kept.findall(text))
    offsets: list[tuple[int, int] | None] = []
    position = 0
    for token in tokens:
        start = visible.find(token, position, position + len(token) + LOOK_AHEAD)
        if start < 0 or not token:
            offsets.append(None)
            continue
        position = start + len(token)
        offsets.append((places[start], places[position - 1] + 1))
    return offsets


def word_offsets(text: Sentence, words: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """The start and end in characters of each of N words in the text that was given.

    A word that does not occur as written has length 0, after the word before. Of a text given as
    words, the offsets are those in its words joined by spaces.
    """
    if not isinstance(text, str):
        ends = list(accumulate(len(word) + 1 for word in words))
        return tuple((end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True))
    offsets, position = [], 0
    for place in token_offsets(text, words):
        offsets.append(place or (position, position))
        position = offsets[-1][1]
    return tuple(offsets)
