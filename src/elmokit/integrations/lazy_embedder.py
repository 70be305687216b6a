"""An embedder for objects of other libraries, which are copied, pickled and sent to other
processes.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from elmokit.checkpoints import Detected, ModelSource, Pretrained, locate
from elmokit.embed import Embedder
from elmokit.fs import crc32_of
from elmokit.runtime import INFERENCE_DTYPES, pick_device, pick_dtype

_LOADED: WeakValueDictionary[tuple[Any, ...], Embedder] = (
    WeakValueDictionary()
)  # as long as they are used
_LOADING = Lock()


@lru_cache
def _checksum(file: Path, *state: int) -> str:
    return crc32_of(file)


class LazyEmbedder:
    """An embedder that is loaded when it is first used, or its files have changed; all in a process
    share one.

    A pickle has the arguments, and a checksum of the model's files, by which the caches of other
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
        self._found: Detected | None = None
        self._key: tuple[Any, ...] | None = None
        self._embedder: Embedder | None = None

    def content(self) -> tuple[Any, ...]:
        """The model, if it was given loaded, else the checksums of its files; errors are those of
        `elmokit.load`.
        """
        model = self.arguments[0]
        if isinstance(model, Pretrained):
            return (model,)
        self._found = self._found or locate(model)  # once, as the Hub may be asked
        files = [(file, file.stat()) for file in self._found.format.files(self._found.path)]
        # Copying sets the time of modification, but none of the other numbers.
        return tuple(
            _checksum(file, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for file, s in files
        )

    def get(self) -> Embedder:
        """The embedder; errors are those of `Embedder`."""
        model, *others = self.arguments
        device = pick_device(others[0])
        key = (*self.content(), device, pick_dtype(others[1], device, INFERENCE_DTYPES))
        if self._embedder is None or self._key != key:
            with _LOADING:
                self._embedder = _LOADED.get(key) or Embedder(
                    self._found.path if self._found else model, *others
                )
                self._key, _LOADED[key] = key, self._embedder
        return self._embedder

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            content = None if isinstance(self.arguments[0], Pretrained) else self.content()
        except (OSError, ValueError):
            content = None  # only the process that reads the pickle may have the model
        return LazyEmbedder, self.arguments, {"pickled_content": content}

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyEmbedder:
        return self  # copies share the weights
