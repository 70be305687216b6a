"""Rules that look at one chunk of text between white spaces alone, so that a frequent chunk is split once and kept."""

import re
from itertools import chain
from sys import getsizeof

# What the tokens of the chunks inside sentences may take in memory, and those of the last chunks of sentences.
INSIDE_BYTES, LAST_BYTES = 96 << 20, 24 << 20
DICTIONARY_BYTES = 100  # of an entry

# Marks that are not seen and mean nothing to a model: soft hyphen, zero-width space, directions, byte order.
INVISIBLE = re.compile(r"[\u00ad\u200b\u200e\u200f\u2060\ufeff]")


class ChunkCache(dict[str, tuple[str, ...]]):
    """The tokens of chunks by the rules of a pattern; of those that were met lately, as many as some bytes hold.

    What does not fit any more makes room at once, but lives on in an older generation until that is replaced.
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
                tokens = (chunk,)  # one string in memory, not two
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
    """A tokenizer of patterns whose matches, in order, are the tokens of a chunk."""

    def __init__(self, inside: re.Pattern[str], last: re.Pattern[str]) -> None:
        """`last` is for the last chunk of a sentence, `inside` for the others."""
        self._inside, self._last = ChunkCache(inside, INSIDE_BYTES), ChunkCache(last, LAST_BYTES)

    def __call__(self, sentence: str) -> list[str]:
        """The tokens of one sentence; joined, they are its visible characters without white space, in order."""
        chunks = sentence.split()
        if not chunks:
            return []
        last = self._last[chunks.pop()]
        tokens = list(chain.from_iterable(map(self._inside.__getitem__, chunks)))
        tokens.extend(last)
        return tokens
