"""The word vocabulary: the output classes of the softmax, and the input of a biLM with word ids."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from elmokit.fs import read_lines, write_lines
from elmokit.progress import ProgressBar
from elmokit.text.characters import BOS, EOS, UNK

SPACES = " \t"
# a line of the first vocabularies, which bilm-tf does not count (bilm/data.py:36)
OLD_MARK = "!!!MAXTERMID"


class Vocab:
    """Words in a fixed order. The id of a word is its index; unknown words have the id of <UNK>."""

    SPECIALS = (BOS, EOS, UNK)

    def __init__(self, words: Iterable[str]) -> None:
        """Create a vocabulary.

        Args:
            words: Words, including <S>, </S> and <UNK>. A blank or repeated one, as published
                vocabularies have, keeps its row; as in bilm-tf, the last row of a repeated word
                counts.

        Raises:
            ValueError: One of these three is missing, or a word could not be read back from a file.

        Warns:
            UserWarning: Words are blank or repeated.
        """
        self.words: tuple[str, ...] = tuple(words)
        self._id_of = {word: index for index, word in enumerate(self.words)}
        missing = [special for special in self.SPECIALS if special not in self._id_of]
        if missing:
            raise ValueError(
                f"the vocabulary lacks {' '.join(missing)}: put <S>, </S> and <UNK> on its first "
                f"lines"
            )
        if unused := len(self.words) - len(self._id_of) + ("" in self._id_of):
            warnings.warn(
                f"{unused} words of the vocabulary are blank or repeated: no text reaches them",
                stacklevel=3,
            )
        bad = [
            word
            for word in self.words
            if word != word.strip(SPACES) or "\n" in word or word.endswith("\r") or word == OLD_MARK
        ]
        # In the first line they are a byte order mark, and line ends of old Macs.
        bad += [word for word in self.words[:1] if word.startswith("\ufeff") or "\r" in word]
        if bad:
            raise ValueError(
                f"{bad[0]!r} cannot be a word of a vocabulary, a file with one word per line: "
                f"remove it"
            )

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._id_of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocab) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        return f"Vocab({len(self):,} words)"

    @cached_property
    def bos(self) -> int:
        """Id of <S>."""
        return self._id_of[BOS]

    @cached_property
    def eos(self) -> int:
        """Id of </S>."""
        return self._id_of[EOS]

    @cached_property
    def unk(self) -> int:
        """Id of <UNK>."""
        return self._id_of[UNK]

    @cached_property
    def marks(self) -> np.ndarray:
        """Ids of the words without a letter or a digit, (N,) int64."""
        return np.array(
            [number for number, word in enumerate(self.words) if not any(map(str.isalnum, word))],
            dtype=np.int64,
        )

    def checksum(self) -> str:
        """The SHA-256 of the words in order, in hexadecimal; a training run recognizes its
        vocabulary by it.
        """
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()

    def ids(self, words: Iterable[str]) -> np.ndarray:
        """The ids of words, (N,) int64; unknown words get the id of <UNK>."""
        return np.fromiter(map(self._id_of.get, words, repeat(self.unk)), dtype=np.int64)

    def targets(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """The ids that each direction predicts in sentences, (2, N), for T+1 positions a sentence.

        Forward these are its words and then </S>, backward <S> and then its words.
        """
        forward = chain.from_iterable((*sentence, EOS) for sentence in sentences)
        backward = chain.from_iterable((BOS, *sentence) for sentence in sentences)
        return self.ids(chain(forward, backward)).reshape(2, -1)

    @staticmethod
    def read_words(path: str | Path) -> list[str]:
        """The words of a file, one a line, in the order of their rows.

        Spaces and tabs around a word are removed; no other white space, such as the ideographic
        space, which is a word of published vocabularies.
        """
        return [word for line in read_lines(path) if (word := line.strip(SPACES)) != OLD_MARK]

    @staticmethod
    def count_words(paths: Iterable[str | Path]) -> Counter[str]:
        """Count the words of tokenized text files, which white space separates."""
        lines = chain.from_iterable(map(read_lines, paths))
        bar = ProgressBar(lines, desc="count words", unit=" sentences", unit_scale=True)
        return Counter(chain.from_iterable(map(str.split, bar)))

    @classmethod
    def read(cls, path: str | Path) -> "Vocab":
        """Read a vocabulary from a file, as `read_words`. ValueError names the file if it is
        invalid.
        """
        try:
            return cls(cls.read_words(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def write(self, path: str | Path) -> None:
        """Write the words to a file, one per line."""
        write_lines(path, self.words)

    @classmethod
    def from_counts(
        cls, counts: Mapping[str, int], min_count: int = 1, max_size: int | None = None
    ) -> "Vocab":
        """Build a vocabulary: <S>, </S> and <UNK>, then words by descending frequency, ties in
        alphabetical order.

        The order matters, because the sampled softmax draws negative samples by rank.

        Args:
            counts: Frequencies of words.
            min_count: Minimum frequency.
            max_size: Maximum size, including the three special tokens.

        Returns:
            The vocabulary.
        """
        frequent = [
            (-count, word)
            for word, count in counts.items()
            if count >= min_count and word not in cls.SPECIALS
        ]
        words = [*cls.SPECIALS, *(word for _, word in sorted(frequent))]
        return cls(words[:max_size])
