"""Vectors of many words in temporary files, one file per layer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np


class LayerFiles:
    """Vectors of N words in float16, one file per layer. A context manager, which removes the files at its end.

    They take N x (L+1) x 2D x 2 bytes in the system's temporary directory ($TMPDIR).
    """

    def __init__(self, sentences: Iterable[np.ndarray]) -> None:
        """Write the layers of sentences.

        Args:
            sentences: The layers of each sentence, (L+1, T, 2D).

        Raises:
            ValueError: A value is outside the range of float16.
        """
        self._directory = tempfile.TemporaryDirectory(prefix="elmokit-layers-")
        self._dim = 0
        try:
            self._write(sentences)
        except BaseException:
            self._directory.cleanup()
            raise

    def _path(self, layer: int) -> Path:
        return Path(self._directory.name) / f"layer-{layer}.float16"

    def _write(self, sentences: Iterable[np.ndarray]) -> None:
        with ExitStack() as stack:
            files = []
            for layers in sentences:
                files = files or [stack.enter_context(self._path(layer).open("wb")) for layer in range(len(layers))]
                with np.errstate(over="ignore"):
                    half = layers.astype(np.float16)
                if not np.isfinite(half).all():
                    raise ValueError("the vectors have values above 65,504, the largest that float16 can store")
                self._dim = half.shape[2]
                for file, layer in zip(files, half, strict=True):
                    file.write(np.ascontiguousarray(layer))

    def layer(self, number: int) -> np.ndarray:
        """The vectors of one layer, (N, 2D) float16, memory-mapped."""
        path = self._path(number)
        if not path.is_file() or not path.stat().st_size:  # `np.memmap` cannot map an empty file
            return np.zeros((0, self._dim), dtype=np.float16)
        return np.memmap(path, dtype=np.float16, mode="c").reshape(-1, self._dim)

    def __enter__(self) -> LayerFiles:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._directory.cleanup()
