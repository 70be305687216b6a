"""The vectors of a text's words to one: of all at once, or of pieces as they come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

POOLINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda vectors: vectors.mean(axis=0),
    "max": lambda vectors: vectors.max(axis=0),
}
# The same, a piece at a time: how pieces come together, and what there is before the first.
RUNNING: dict[str, tuple[np.ufunc, float]] = {"mean": (np.add, 0.0), "max": (np.maximum, -np.inf)}


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's words become one: "mean" or "max", of length one where `normalize` says so."""

    name: str = "mean"
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.name not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, not {self.name!r}")

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """(T, 2D) -> (1, 2D); zeros where there are no words."""
        pooled = POOLINGS[self.name](vectors) if len(vectors) else np.zeros(vectors.shape[1], vectors.dtype)
        if self.normalize:
            pooled = pooled / max(float(np.linalg.norm(pooled)), 1e-12)
        return pooled[None]


class RunningPool:
    """A pooling of vectors that come in pieces, each direction by itself; adds up in float64."""

    def __init__(self, pooling: Pooling, dim: int) -> None:
        self._pooling = pooling
        self._rule, self._start = RUNNING[pooling.name]
        self._pooled = np.full(dim, self._start)
        self._words = 0

    def put(self, rows: slice, columns: slice, vectors: np.ndarray) -> None:
        """(n, D), of the words `rows` in the columns of one direction."""
        of_piece = self._rule.reduce(vectors, axis=0, dtype=np.float64, initial=self._start)
        self._pooled[columns] = self._rule(self._pooled[columns], of_piece)
        self._words = max(self._words, rows.stop)

    def vectors(self) -> np.ndarray:
        """(1, 2D) float32, once both directions of all words were there."""
        whole = self._pooled / self._words if self._pooling.name == "mean" else self._pooled
        return self._pooling(whole.astype(np.float32)[None])
