"""Tokenization rules that apply to chunks of text between white spaces, with a cache of frequent chunks."""

import re
from itertools import chain
from sys import getsizeof

# Memory of the caches: for chunks within sentences, and for the last chunks of sentences.
INSIDE_BYTES, LAST_BYTES = 96 << 20, 24 << 20
DICTIONARY_BYTES = 100  # per entry

# Invisible characters without meaning for a model: soft hyphen, zero-width space, direction marks, byte order mark.
INVISIBLE = re.compile(r"[\u00ad\u200b\u200e\u200f\u2060\ufeff]")


class ChunkCache(dict[str, tuple[str, ...]]):
    """The tokens of chunks, found by a regular expression, in a cache of limited size.

    The cache has two generations of half its size each: when the newer one is full it replaces the older one, so that
    chunks that were not used lately are dropped.
    """

    def __init__(self, rules: re.Pattern[str], size: int) -> None:
        super().__init__()
        self._rules, self._half, self._used = rules, size // 2, 0
        self._older: dict[str, tuple[str, ...]] = {}

    def __missing__(self, chunk: str) -> tuple[str, ...]:
        tokens = self._older.get(chunk)
        if tokens is None:
            tokens = tuple(match.group() for match in self._rules.finditer(INVISIBLE.sub("", chunk)))
            if tokens == (chunk,):
                tokens = (chunk,)  # share the string with the key
        size = DICTIONARY_BYTES + getsizeof(chunk) + getsizeof(tokens) + sum(map(getsizeof, tokens))
        if size > self._half:
            return tokens
        if self._used + size > self._half:
            self._older = dict(self)
            self.clear()
            self._used = 0
        self._used += size
        self[chunk] = tokens
        return tokens


class ChunkRules:
    """A tokenizer defined by regular expressions, whose matches are the tokens of a chunk."""

    def __init__(self, inside: re.Pattern[str], last: re.Pattern[str]) -> None:
        """Use the pattern `last` for the last chunk of a sentence, `inside` for the others."""
        self._inside, self._last = ChunkCache(inside, INSIDE_BYTES), ChunkCache(last, LAST_BYTES)

    def __call__(self, sentence: str) -> list[str]:
        """Tokenize a sentence; its tokens, concatenated, are its visible characters without white space."""
        chunks = sentence.split()
        if not chunks:
            return []
        last = self._last[chunks.pop()]
        tokens = list(chain.from_iterable(map(self._inside.__getitem__, chunks)))
        tokens.extend(last)
        return tokens
