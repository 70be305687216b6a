"""From the vectors of sentences, as the engine gives them, to those of words end to end, as a part holds them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from elmokit.nn.kernels.directions import on_both_cores
from elmokit.storage.shard import nothing_overflows


def as_stored(sentences: Sequence[np.ndarray], vector_shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """(T, 2D) of each sentence, or (L+1, T, 2D) for all layers -> the vectors of all words, as a part holds them.

    ValueError where they are of another shape than `vector_shape` says, or numbers are too large for `dtype`.
    """
    for vectors in sentences:
        if (*vectors.shape[:-2], vectors.shape[-1]) != vector_shape:
            raise ValueError(f"vectors {vectors.shape} are not those of words with {vector_shape} each")
    stored = np.empty((sum(vectors.shape[-2] for vectors in sentences), *vector_shape), dtype)
    middle = len(sentences) // 2
    row = sum(vectors.shape[-2] for vectors in sentences[:middle])
    halves = (sentences[:middle], stored[:row]), (sentences[middle:], stored[row:])
    on_both_cores(lambda half: _lay_end_to_end(*halves[half]), torch.device("cpu"))
    return stored


def _lay_end_to_end(sentences: Sequence[np.ndarray], out: np.ndarray) -> None:
    """`out` is of all their words; ValueError where numbers are too large for it."""
    if not sentences:
        return
    found = torch.from_numpy(out)
    torch.cat([torch.from_numpy(vectors) for vectors in sentences], dim=-2, out=torch.movedim(found, 0, -2))
    if out.dtype == np.float16 and out.size and not all(end.isfinite() for end in found.aminmax()):
        with nothing_overflows(out.dtype):  # torch does not tell whether they were finite before
            for vectors in sentences:
                vectors.astype(out.dtype)
