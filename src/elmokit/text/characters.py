"""Words to character ids: the alphabet is the 256 bytes of UTF-8 and five marks.

A word row is: begin-word, the first bytes of the word, end-word, then padding up to the row's width. The ids are those
of bilm-tf plus one, so that 0 is free to mean "no word here" (a masked position).
"""

from collections.abc import Sequence

import numpy as np

from elmokit.config import BEGIN_SENTENCE, BEGIN_WORD, CHARACTER_SHIFT, END_SENTENCE, END_WORD, PAD_CHARACTER

BOS = "<S>"
EOS = "</S>"
UNK = "<UNK>"

MAX_CHARACTERS = 50

MARK_OF_BOUNDARY = {BOS: BEGIN_SENTENCE, EOS: END_SENTENCE}


class TruncationWarning(UserWarning):
    """Words are longer than the model reads, so that it sees only their beginnings."""


def word_bytes(word: str) -> bytes:
    """The UTF-8 bytes of a word; lone surrogates, which UTF-8 cannot write, vanish."""
    return word.encode("utf-8", "ignore")


def count_truncated(words: Sequence[str], max_characters: int = MAX_CHARACTERS) -> int:
    """How many of the words lose bytes because they do not fit between begin-word and end-word."""
    limit = max_characters - 2
    # A character has at most 4 bytes, so most words need no encoding to be counted.
    return sum(1 for word in words if 4 * len(word) > limit and len(word_bytes(word)) > limit)


def encode_words(
    words: Sequence[str], max_characters: int = MAX_CHARACTERS, widest_filter: int | None = None
) -> np.ndarray:
    """Character ids of words, (N, C) int32 in 1..261; the literal words <S> and </S> give the boundary rows.

    C is `max_characters`. With `widest_filter` (of the character CNN) it is only what the longest word of the call
    needs, min(max_characters, longest + widest_filter), which leaves the CNN's output exactly the same: one window of
    padding alone survives for every filter. Source: bilm-tf, bilm/data.py, UnicodeCharsVocabulary.
    """
    if max_characters < 3:
        raise ValueError(f"max_characters is {max_characters}: a word needs at least 3 (begin, one byte, end)")
    encoded = [word_bytes(word)[: max_characters - 2] for word in words]
    boundaries = [row for row, word in enumerate(words) if word in MARK_OF_BOUNDARY]
    for row in boundaries:
        encoded[row] = b"?"  # one character wide; its id is set below
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    width = max_characters
    if widest_filter is not None and len(encoded) > 0:
        width = min(max_characters, int(lengths.max()) + 2 + widest_filter)

    ids = np.full((len(encoded), width), PAD_CHARACTER, dtype=np.int32)
    inside = np.arange(width - 1) < lengths[:, None]
    ids[:, 1:][inside] = np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.int32) + CHARACTER_SHIFT
    ids[:, 0] = BEGIN_WORD
    ids[np.arange(len(encoded)), lengths + 1] = END_WORD
    for row in boundaries:
        ids[row, 1] = MARK_OF_BOUNDARY[words[row]]
    return ids


def encode_sentences(sentences: Sequence[Sequence[str]], max_characters: int = MAX_CHARACTERS) -> np.ndarray:
    """Character ids of sentences, (B, T, C) int32; rows of zeros fill up short sentences; no boundaries are added."""
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    longest = int(lengths.max()) if len(sentences) > 0 else 0
    ids = np.zeros((len(sentences), longest, max_characters), dtype=np.int32)
    real = np.arange(longest) < lengths[:, None]
    ids[real] = encode_words([word for sentence in sentences for word in sentence], max_characters)
    return ids
