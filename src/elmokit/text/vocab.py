"""The word vocabulary: what the softmax predicts, and what a biLM with word input reads."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import repeat
from pathlib import Path

import numpy as np

from elmokit.fs.atomic import atomic_path
from elmokit.fs.reading import read_lines
from elmokit.text.characters import BOS, EOS, UNK

SPECIALS = (BOS, EOS, UNK)


class Vocab:
    """Words in a fixed order; a word's id is its place, and a word that is not there has the id of <UNK>."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words: tuple[str, ...] = tuple(words)
        self._id_of = {word: index for index, word in enumerate(self.words)}
        missing = [special for special in SPECIALS if special not in self._id_of]
        if missing:
            raise ValueError(
                f"the vocabulary lacks {' '.join(missing)}: put <S>, </S> and <UNK> on its first three lines"
            )
        if len(self._id_of) < len(self.words):
            twice = [word for word, count in Counter(self.words).items() if count > 1]
            raise ValueError(
                f"{len(twice)} words occur twice in the vocabulary, the first is {twice[0]!r}: keep one of each"
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
        return self._id_of[BOS]

    @cached_property
    def eos(self) -> int:
        return self._id_of[EOS]

    @cached_property
    def unk(self) -> int:
        return self._id_of[UNK]

    def ids(self, words: Iterable[str]) -> np.ndarray:
        """The ids of words, (N,) int64."""
        return np.fromiter(map(self._id_of.get, words, repeat(self.unk)), dtype=np.int64)

    @classmethod
    def read(cls, path: str | Path) -> "Vocab":
        """Read a vocabulary, one word a line. ValueError naming the file where it is not one."""
        words = list(read_lines(path))
        if "" in words:
            raise ValueError(
                f"{path}, line {words.index('') + 1} is blank: a vocabulary has one word a line, remove it"
            )
        try:
            return cls(words)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def write(self, path: str | Path) -> None:
        """Write the words, one a line, in order."""
        with atomic_path(path) as partial:
            partial.write_text("".join(f"{word}\n" for word in self.words), encoding="utf-8", newline="\n")

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], min_count: int = 1, max_size: int | None = None) -> "Vocab":
        """<S>, </S> and <UNK>, then words by falling count, equal counts by word; `max_size` counts the three too.

        The order matters: the sampled softmax draws its negatives by rank.
        """
        if max_size is not None and max_size < len(SPECIALS):
            raise ValueError(f"max_size is {max_size}: a vocabulary has at least the {len(SPECIALS)} special words")
        frequent = [(-count, word) for word, count in counts.items() if count >= min_count and word not in SPECIALS]
        words = [*SPECIALS, *(word for _, word in sorted(frequent))]
        return cls(words[:max_size])


def count_words(paths: Iterable[str | Path]) -> Counter[str]:
    """How often each word occurs in files of tokenized text, one sentence a line, words split by white space."""
    counts: Counter[str] = Counter()
    for path in paths:
        # Whole batches of lines are counted at once: one call of update() costs more than one line's words.
        batch: list[str] = []
        for line in read_lines(path):
            batch.append(line)
            if len(batch) == 10_000:
                counts.update(" ".join(batch).split())
                batch.clear()
        counts.update(" ".join(batch).split())
    return counts
