"""An embedder for objects of other libraries, which are copied, pickled and sent to other
processes.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from elmokit.checkpoints import ModelSource, Pretrained, fingerprint
from elmokit.embed import Embedder
from elmokit.runtime import INFERENCE_DTYPES, pick_device, pick_dtype

# By content, device and dtype, as long as they are used.
_LOADED: WeakValueDictionary[tuple[Any, ...], Embedder] = WeakValueDictionary()
_LOADING = Lock()


class LazyEmbedder:
    """An embedder that is loaded when it is first used; all of one model in a process share one.

    A pickle has the arguments, and the fingerprint of the model, by which the caches of other
    libraries know whether they have its vectors.

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

    def get(self) -> Embedder:
        """The embedder; errors are those of `Embedder`."""
        if self._embedder is None:
            model, *others = self.arguments
            device = pick_device(others[0])
            content = model if isinstance(model, Pretrained) else fingerprint(model)
            key = (content, device, pick_dtype(others[1], device, INFERENCE_DTYPES))
            with _LOADING:
                self._embedder = _LOADED.get(key) or Embedder(model, *others)
                _LOADED[key] = self._embedder
        return self._embedder

    def __reduce__(self) -> tuple[Any, ...]:
        model = self.arguments[0]
        try:
            content = None if isinstance(model, Pretrained) else fingerprint(model)
        except (OSError, ValueError):
            content = None  # only the process that reads the pickle may have the model
        return LazyEmbedder, self.arguments, {"pickled_content": content}

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyEmbedder:
        return self  # copies share the weights
