"""An embedder for objects of other libraries, which are copied, pickled and sent to other processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from elmokit.checkpoints.loading import ModelSource
from elmokit.embed.embedder import Embedder


class LazyEmbedder:
    """An embedder that is loaded when it is first used, and pickled as the arguments from which it is loaded.

    A pickle that is read in the process that wrote it, as by scikit-learn's caches, shares the loaded weights, unless
    the model's files have changed since.

    Attributes:
        arguments: `model`, `device` and `dtype` of `Embedder`.
    """

    def __init__(self, model: ModelSource = None, device: str | None = None, dtype: str | None = None) -> None:
        self.arguments = (model, device, dtype)
        self._embedder: Embedder | None = None
        self._loaded_key: tuple[Any, ...] | None = None

    def get(self) -> Embedder:
        """The embedder; errors are those of `Embedder`."""
        if self._embedder is None:
            key = _key(self.arguments)  # before loading, since files may change meanwhile
            self._embedder, self._loaded_key = Embedder(*self.arguments), key
            _LOADED[key] = self
        return self._embedder

    def __reduce__(self) -> tuple[Callable[..., LazyEmbedder], tuple[Any, ...]]:
        return _unpickled, (self.arguments, self._loaded_key or _key(self.arguments))

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyEmbedder:
        return self  # it never changes, so copies may share the weights


_LOADED: WeakValueDictionary[tuple[Any, ...], LazyEmbedder] = WeakValueDictionary()  # by key, as long as they are used


def _key(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments and, if the model is given by its path, the names, sizes and modification times of its files."""
    path = Path(arguments[0]).expanduser() if isinstance(arguments[0], str | Path) else None
    if path is None or not path.exists():
        return arguments
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    states = [(file.name, file.stat()) for file in files if file.exists()]  # without broken links
    return (*arguments, *((name, state.st_size, state.st_mtime_ns) for name, state in states))


def _unpickled(arguments: tuple[Any, ...], written: tuple[Any, ...]) -> LazyEmbedder:
    """An embedder from its pickle; `written`, the key of its weights, only makes pickles of other weights differ."""
    return _LOADED.get(_key(arguments)) or LazyEmbedder(*arguments)
