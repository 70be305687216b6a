"""Character ids of words: the alphabet is the 256 byte values of UTF-8 and five special characters.

A word is encoded as begin-word, its first bytes, end-word, and padding. The ids are those of
bilm-tf plus one; 0 is reserved for positions without a word, which are masked.
"""

from collections.abc import Callable, Sequence

import numpy as np

from elmokit.config import (
    BEGIN_SENTENCE,
    BEGIN_WORD,
    CHARACTER_SHIFT,
    END_SENTENCE,
    END_WORD,
    PAD_CHARACTER,
)

BOS = "<S>"
EOS = "</S>"
UNK = "<UNK>"

MAX_CHARACTERS = 50

MARK_OF_BOUNDARY = {BOS: BEGIN_SENTENCE, EOS: END_SENTENCE}


class TruncationWarning(UserWarning):
    """Words are longer than the model can read, so that it sees only their beginnings."""

    @classmethod
    def of(cls, count: int, limit: str, where: str, word: str) -> "TruncationWarning":
        """The warning for a number of words, with an example.

        Args:
            count: Number of words that are truncated.
            limit: How much of a word is read, with its unit, such as "48 bytes".
            where: The place of the example, such as "sentence 3".
            word: The example, which is shortened to 60 characters.
        """
        words = "1 word is too long and is" if count == 1 else f"{count} words are too long and are"
        return cls(f"{words} cut after {limit}, as in {where}: {word[:60]!r}")

    @classmethod
    def in_sentences(
        cls,
        sentences: Sequence[Sequence[str]],
        count_truncated: Callable[[Sequence[str]], int],
        limit: str,
    ) -> "TruncationWarning":
        """The warning for sentences, numbered from 0, with at least one truncated word.

        Args:
            sentences: Lists of words.
            count_truncated: Counts how many of the given words are truncated.
            limit: As in `of`.
        """
        number, word = next(
            (number, word)
            for number, words in enumerate(sentences)
            for word in words
            if count_truncated([word])
        )
        return cls.of(sum(map(count_truncated, sentences)), limit, f"sentence {number}", word)


def count_truncated(words: Sequence[str], max_characters: int = MAX_CHARACTERS) -> int:
    """Number of words with more bytes than fit between begin-word and end-word."""
    limit = max_characters - 2
    # A character has at most 4 bytes, so only long words need to be encoded to be counted.
    return sum(1 for word in words if 4 * len(word) > limit and len(word.encode()) > limit)


def encode_words(
    words: Sequence[str], max_characters: int = MAX_CHARACTERS, widest_filter: int | None = None
) -> np.ndarray:
    """Encode words as character ids (bilm-tf, bilm/data.py, UnicodeCharsVocabulary).

    Args:
        words: N words; the words <S> and </S> are encoded as sentence boundaries.
        max_characters: C, the width of the encoding, including begin-word and end-word.
        widest_filter: Width of the widest filter of the character CNN. If given, C is only as large
            as the longest word requires: its bytes, begin-word, end-word and `widest_filter`
            positions of padding. As every filter still sees a window of padding only, the output of
            the CNN is the same.

    Returns:
        Ids from 1 to 261, (N, C) int32.
    """
    encoded = [word.encode()[: max_characters - 2] for word in words]
    boundaries = [row for row, word in enumerate(words) if word in MARK_OF_BOUNDARY]
    for row in boundaries:
        encoded[row] = b"?"  # one byte; the id is set below
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    width = max_characters
    if widest_filter is not None and len(encoded) > 0:
        width = min(max_characters, int(lengths.max()) + 2 + widest_filter)

    ids = np.full((len(encoded), width), PAD_CHARACTER, dtype=np.int32)
    inside = np.arange(width - 1) < lengths[:, None]
    ids[:, 1:][inside] = (
        np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.int32) + CHARACTER_SHIFT
    )
    ids[:, 0] = BEGIN_WORD
    ids[np.arange(len(encoded)), lengths + 1] = END_WORD
    for row in boundaries:
        ids[row, 1] = MARK_OF_BOUNDARY[words[row]]
    return ids


def encode_sentences(
    sentences: Sequence[Sequence[str]], max_characters: int = MAX_CHARACTERS
) -> np.ndarray:
    """Encode tokenized sentences as character ids, without sentence boundaries.

    Args:
        sentences: B lists of words, the longest with T.
        max_characters: C, as in `encode_words`.

    Returns:
        Ids (B, T, C) int32; zeros after the end of a sentence.
    """
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    longest = int(lengths.max()) if len(sentences) > 0 else 0
    ids = np.zeros((len(sentences), longest, max_characters), dtype=np.int32)
    real = np.arange(longest) < lengths[:, None]
    ids[real] = encode_words([word for sentence in sentences for word in sentence], max_characters)
    return ids
