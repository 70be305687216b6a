"""An embedder for objects of other libraries, which are copied, pickled and sent to other processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from elmokit.checkpoints.loading import ModelSource
from elmokit.embed.embedder import Embedder
from elmokit.fs.paths import expand_user


class LazyEmbedder:
    """An embedder that is loaded when it is first used, and pickled as the arguments it is loaded from.

    A pickle that is read in the process that wrote it, as caches of scikit-learn do, shares the loaded weights, unless
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
            key = _key(self.arguments)  # before: files that change meanwhile must not pass for those that were read
            self._embedder, self._loaded_key = Embedder(*self.arguments), key
            _LOADED[key] = self
        return self._embedder

    def __reduce__(self) -> tuple[Callable[..., LazyEmbedder], tuple[Any, ...]]:
        return _unpickled, (self.arguments, self._loaded_key or _key(self.arguments))

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyEmbedder:
        return self  # nothing changes it, so copies may share the weights


_LOADED: WeakValueDictionary[tuple[Any, ...], LazyEmbedder] = WeakValueDictionary()  # those that something still uses


def _key(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, and the names, sizes and times of change of the model's files if it is given by their path."""
    path = expand_user(arguments[0]) if isinstance(arguments[0], str | Path) else None
    if path is None or not path.exists():
        return arguments
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    states = [(file.name, file.stat()) for file in files if file.exists()]  # a broken link is none of the model's
    return (*arguments, *((name, state.st_size, state.st_mtime_ns) for name, state in states))


def _unpickled(arguments: tuple[Any, ...], written: tuple[Any, ...]) -> LazyEmbedder:
    """An embedder from its pickle; `written`, the key of its weights, is there for caches that go by pickles."""
    return _LOADED.get(_key(arguments)) or LazyEmbedder(*arguments)
