"""An embedder for objects of other libraries, which are copied, pickled and sent to other processes."""

from __future__ import annotations

from typing import Any

from elmokit.checkpoints.loading import ModelSource
from elmokit.embed.embedder import Embedder


class LazyEmbedder:
    """An embedder that is loaded when it is first used, and pickled as the arguments it is loaded from.

    Attributes:
        arguments: `model`, `device` and `dtype` of `Embedder`.
    """

    def __init__(self, model: ModelSource = None, device: str | None = None, dtype: str | None = None) -> None:
        self.arguments = (model, device, dtype)
        self._embedder: Embedder | None = None

    def get(self) -> Embedder:
        """The embedder; errors are those of `Embedder`."""
        if self._embedder is None:
            self._embedder = Embedder(*self.arguments)
        return self._embedder

    def __reduce__(self) -> tuple[type[LazyEmbedder], tuple[Any, ...]]:
        return LazyEmbedder, self.arguments

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyEmbedder:
        return self  # nothing changes it, so copies may share the weights
