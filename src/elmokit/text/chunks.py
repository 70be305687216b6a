"""Tokenization rules that apply to chunks of text between white spaces, and the positions of tokens in a text."""

import re
from array import array
from collections.abc import Sequence
from itertools import chain

CACHED_CHUNKS, CACHED_CHARACTERS = 200_000, 100  # of each cache; longer chunks are rare, and not kept

# Invisible characters without meaning for a model: soft hyphen, zero-width space, direction marks, byte order mark.
INVISIBLE = re.compile(r"[\u00ad\u200b\u200e\u200f\u2060\ufeff]")

NOT_SPACE = re.compile(r"\S")
VISIBLE = re.compile(rf"(?!{INVISIBLE.pattern})\S")
LOOK_AHEAD = 100  # characters in which to look for the next token if the tokenizer has changed the text


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
            self[chunk] = (chunk,) if tokens == (chunk,) else tokens  # share the string with the key
        return tokens


class ChunkRules:
    """A tokenizer defined by regular expressions, whose matches are the tokens of a chunk."""

    def __init__(self, inside: re.Pattern[str], last: re.Pattern[str]) -> None:
        """Use the pattern `last` for the last chunk of a sentence, `inside` for the others."""
        self._inside, self._last = ChunkCache(inside), ChunkCache(last)

    def __call__(self, sentence: str) -> list[str]:
        """Tokenize a sentence; its tokens, concatenated, are its visible characters without white space."""
        chunks = sentence.split()
        if not chunks:
            return []
        last = self._last[chunks.pop()]
        tokens = list(chain.from_iterable(map(self._inside.__getitem__, chunks)))
        tokens.extend(last)
        return tokens


def token_offsets(text: str, tokens: Sequence[str]) -> list[tuple[int, int] | None]:
    """Find tokens in their text, in time linear in its length.

    Args:
        text: The text.
        tokens: Its tokens, in order. They lack its white space and may lack its invisible characters.

    Returns:
        The start and stop of each token in characters; None for a token that does not occur unchanged in the text.
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
