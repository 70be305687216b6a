"""An embedder for other libraries' objects, which are copied, pickled and sent to processes."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from elmokit.checkpoints import ModelSource, load
from elmokit.embed import Embedder
from elmokit.runtime import INFERENCE_DTYPES, pick_device, pick_dtype

# By content, device and dtype, as long as they are used.
_LOADED: WeakValueDictionary[tuple[Any, ...], Embedder] = WeakValueDictionary()
_LOADING = Lock()


class LazyEmbedder:
    """Loads an embedder on first use; a process shares one per model.

    A pickle has the arguments and `content`, with which other libraries identify cached vectors.

    Attributes:
        arguments: `model`, `device` and `dtype` of `Embedder`.
    """

    def __init__(
        self, model: ModelSource = None, device: str | None = None, dtype: str | None = None
    ) -> None:
        if isinstance(model, str | Path) and Path(model).expanduser().exists():
            model = Path(model).expanduser().absolute()  # a copy may run in another directory
        self.arguments = (model, device, dtype)
        self._embedder: Embedder | None = None

    @cached_property
    def content(self) -> str:
        """The model's fingerprint, computed from the files once, then cached."""
        return load(self.arguments[0], softmax=False).fingerprint()

    def get(self) -> Embedder:
        """The embedder; errors are those of `Embedder`."""
        if self._embedder is None:
            source, device, dtype = self.arguments
            model, device = load(source, softmax=False), pick_device(device)
            self.content = model.fingerprint()
            key = (self.content, device, pick_dtype(dtype, device, INFERENCE_DTYPES))
            with _LOADING:
                self._embedder = _LOADED.get(key) or Embedder(model, str(device), dtype)
                _LOADED[key] = self._embedder
        return self._embedder

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            content = self.content
        except (OSError, ValueError):
            content = None  # only the process that reads the pickle may have the model
        return LazyEmbedder, self.arguments, {"pickled_content": content}

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyEmbedder:
        return self  # copies share the weights
