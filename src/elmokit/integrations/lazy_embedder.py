"""An embedder for objects of other libraries, which are copied, pickled and sent to other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from elmokit.checkpoints.loading import ModelSource
from elmokit.embed.embedder import Embedder

_LOADED: WeakValueDictionary[tuple[Any, ...], Embedder] = WeakValueDictionary()  # by key, as long as they are used


class LazyEmbedder:
    """An embedder that is loaded when it is first used, shared by copies, and pickled as its arguments.

    Attributes:
        arguments: `model`, `device` and `dtype` of `Embedder`.
        key: The arguments, and when a model at a path was written.
    """

    def __init__(self, model: ModelSource = None, device: str | None = None, dtype: str | None = None) -> None:
        if isinstance(model, str | Path) and Path(model).expanduser().exists():
            model = Path(model).expanduser().absolute()  # a copy may run in another directory
        self.arguments = (model, device, dtype)
        self.key = (*self.arguments, model.stat().st_mtime_ns if isinstance(model, Path) and model.exists() else None)
        self._embedder: Embedder | None = None

    def get(self) -> Embedder:
        """The embedder, shared with others that have this key; errors are those of `Embedder`."""
        if self._embedder is None:
            self._embedder = _LOADED.get(self.key) or Embedder(*self.arguments)
            _LOADED[self.key] = self._embedder
        return self._embedder

    def __reduce__(self) -> tuple[Any, ...]:
        # Caches look results up by the pickle, which differs between models that were written to the same path.
        return LazyEmbedder, self.arguments, {"_pickled_key": self.key}

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyEmbedder:
        return self  # it never changes, so copies may share the weights
