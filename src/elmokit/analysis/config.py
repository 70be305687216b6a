"""The settings of analyses on the command line, without importing torch, so that it starts fast."""

from dataclasses import dataclass
from typing import Annotated

from elmokit.settings import AtLeast, Count, CountOrZero, check


@dataclass(frozen=True)
class SearchConfig:
    """Settings of a neighbor search."""

    count: Count = 10
    """Number of neighbors to return."""
    any_word: bool = False
    """Search the uses of all words, not only of the query's word."""
    max_sentences: Count | None = None
    """Maximum number of sentences with the word to search; all by default."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class ChangeConfig:
    """Settings of the comparison of two corpora."""

    max_uses: Annotated[int, AtLeast(2)] = 500
    """Maximum number of occurrences in each corpus; a random sample if there are more."""
    permutations: CountOrZero = 1000
    """Random assignments of the occurrences to the corpora, for the p-values; 0: none."""
    seed: CountOrZero = 0
    """Seed of the sampling and of the permutations."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class MapConfig:
    """Settings for sampling and clustering the uses of a word."""

    max_uses: Annotated[int, AtLeast(3)] = 500
    """Maximum number of occurrences; a random sample if the corpus has more."""
    match_case: bool = False
    """Match only occurrences with the same case as the word. Otherwise case is ignored in sentences
    without an exact match.
    """
    clusters: Count | None = None
    """Number of clusters; fewer where fewer occurrences differ (default: from 2 to 5, each with 5 %
    of the occurrences at least, by the largest silhouette; one where that is low).
    """
    seed: CountOrZero = 0
    """Seed of the sampling and the clustering."""

    def __post_init__(self) -> None:
        check(self)
