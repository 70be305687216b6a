"""The tokenizer class, rules for chunks between white spaces, and positions of words in a text."""

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

Sentence = str | Sequence[str]  # which a tokenizer splits, or its words
TOKENIZED = "whitespace-1"  # the tokenizer of text that is tokenized already

CACHED_CHUNKS = 200_000  # per cache
CACHED_CHARACTERS = 100  # longer chunks are rare, and not kept

# Invisible characters without meaning for a model: soft hyphen, zero-width space, direction marks,
# byte order mark.
INVISIBLE = re.compile(r"[\u00ad\u200b\u200e\u200f\u2060\ufeff]")

NOT_SPACE = re.compile(r"\S")
VISIBLE = re.compile(rf"(?!{INVISIBLE.pattern})\S")
LOOK_AHEAD = 100  # characters in which to look for a word, after some that differ from the text


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer and sentence splitter; all except whitespace-1 are for raw text.

    Attributes:
        name: Unique name, which models record.
        rules: Splits a sentence, in Unicode's NFC, into tokens.
        split_sentences: Splits a paragraph into sentences.
        language: Code of the language by whose rules sentences are split; None: the tokenizer's own
            rules.
    """

    name: str
    rules: Callable[[str], list[str]]
    split_sentences: Callable[[str], list[str]]
    language: str | None = None

    @staticmethod
    def visible(text: str) -> str:
        """A text without the invisible characters that tokenizers drop."""
        return INVISIBLE.sub("", text)

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a sentence. In raw text, letters and accents apart (NFD) are composed."""
        return self.rules(text if self.name == TOKENIZED else unicodedata.normalize("NFC", text))

    def split_paragraph(self, paragraph: str) -> Iterator[list[str]]:
        """Yield the tokens of each sentence of a paragraph, except sentences without tokens."""
        for sentence in self.split_sentences(paragraph):
            if tokens := self.tokenize(sentence):
                yield tokens


class ChunkCache(dict[str, tuple[str, ...]]):
    """Cache of chunk -> tokens, cleared when full."""

    def __init__(self, rules: re.Pattern[str]) -> None:
        super().__init__()
        self._rules = rules

    def __missing__(self, chunk: str) -> tuple[str, ...]:
        tokens = tuple(match.group() for match in self._rules.finditer(INVISIBLE.sub("", chunk)))
        if len(chunk) <= CACHED_CHARACTERS:
            if len(self) >= CACHED_CHUNKS:
                self.clear()
            self[chunk] = (chunk,) if tokens == (chunk,) else tokens  # shares the key's string
        return tokens


class ChunkRules:
    """A tokenizer defined by regular expressions that match the tokens of a chunk."""

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


def word_offsets(text: Sentence, words: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Find the words of a text in it, in time linear in its length.

    Args:
        text: The text; or its words, which stand for a text in which spaces join them.
        words: Its N words, in order. They lack its white space and may lack its invisible
            characters.

    Returns:
        The start and end of each word in characters; a word that does not occur as written has
        length 0, after the word before.
    """
    if not isinstance(text, str):
        ends = list(accumulate(len(word) + 1 for word in words))
        return tuple((end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True))
    # The words are looked for in the visible characters alone, which hold them end to end:
    #   text     " An ex-am \u200bple"        (- is a soft hyphen)
    #   visible  "Anexample"
    #   places    1 2 4 5 7 8 11 12 13       of each visible character in the text
    # If accents are apart in the text (NFD), it is compared decomposed with its composed words.
    form = "NFC" if unicodedata.is_normalized("NFC", text) else "NFD"
    shown = NOT_SPACE if INVISIBLE.search("".join(words)) else VISIBLE
    pieces, places = [], array("L")
    for match in shown.finditer(text):
        pieces.append(unicodedata.normalize(form, match.group()))
        places.extend([match.start()] * len(pieces[-1]))
    visible = "".join(pieces)
    offsets, position, end = [], 0, 0
    for word in words:
        word = unicodedata.normalize(form, word)
        start = visible.find(word, position, position + len(word) + LOOK_AHEAD) if word else -1
        if start < 0:
            offsets.append((end, end))
            continue
        position = start + len(word)
        end = places[position - 1] + 1
        offsets.append((places[start], end))
    return tuple(offsets)
