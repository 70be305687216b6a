"""The settings of analyses on the command line, without importing torch, so that it starts fast."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ChangeConfig:
    """Settings of the comparison of two corpora."""

    max_uses: int = 500
    """Maximum number of occurrences in each corpus; a random sample if there are more."""
    permutations: int = 1000
    """Random assignments of the occurrences to the corpora, for the p-values; 0: none."""
    seed: int = 0
    """Seed of the sampling and of the permutations."""

    def __post_init__(self) -> None:
        for name, least in (("max_uses", 2), ("permutations", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True)
class MapConfig:
    """Settings for sampling and clustering the uses of a word."""

    max_uses: int = 500
    """Maximum number of occurrences; a random sample if the corpus has more."""
    match_case: bool = False
    """Match only occurrences with the same case as the word. Otherwise case is ignored in sentences without an exact
    match."""
    clusters: int | None = None
    """Number of clusters; fewer where fewer occurrences differ (default: from 2 to 8, by the largest silhouette)."""
    seed: int = 0
    """Seed of the sampling and the clustering."""

    def __post_init__(self) -> None:
        for name, least in (("max_uses", 3), ("clusters", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
