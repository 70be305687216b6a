"""A cache of the vectors of recent words, so that most words of a text are encoded once."""

from __future__ import annotations

from threading import Lock

import torch
from torch import Tensor

MAX_CACHED_LENGTH = (
    200  # characters of a word: keys made of input without white space would fill the memory
)


class WordCache:
    """As many vectors (D,) float32 as fit into `num_bytes`; it is emptied when full.
    Thread-safe.
    """

    def __init__(self, dim: int, num_bytes: int) -> None:
        self.capacity, self._sizes = max(1, num_bytes // (4 * dim)), (dim, num_bytes)
        with torch.inference_mode(
            False
        ):  # a tensor of inference mode could be written in that mode only
            self._vectors = torch.empty(self.capacity, dim, dtype=torch.float32, device="cpu")
        self._rows: dict[str, int] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[WordCache], tuple[int, int]]:
        """A copy or pickle, as for another process, is empty."""
        return WordCache, self._sizes

    def clear(self) -> None:
        with self._lock:
            self._rows.clear()

    def look_up(self, words: list[str]) -> tuple[Tensor, list[int]]:
        """U words -> vectors (U, D), and the indices of words that are not cached, whose rows are
        undefined.
        """
        with self._lock:
            rows = [self._rows.get(word, -1) for word in words]
            vectors = self._vectors[
                torch.tensor(rows, dtype=torch.int64, device="cpu").clamp_(min=0)
            ]
        return vectors, [number for number, row in enumerate(rows) if row < 0]

    def add(self, words: list[str], vectors: Tensor) -> None:
        """Add distinct words, some of which another thread may have added; the first ones, if there
        are too many.
        """
        with self._lock:
            if len(self._rows) + len(words) > self.capacity:
                self._rows.clear()
            kept = enumerate(words[: self.capacity])
            new = [
                number
                for number, word in kept
                if word not in self._rows and len(word) <= MAX_CACHED_LENGTH
            ]
            rows = range(len(self._rows), len(self._rows) + len(new))
            self._vectors[rows.start : rows.stop] = vectors[new]
            self._rows.update((words[number], row) for number, row in zip(new, rows, strict=True))
