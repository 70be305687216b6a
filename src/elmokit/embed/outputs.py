"""The output of embedding: which layers, and a vector for each word or for each text."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import check_storage_dtype
from elmokit.ops.transfer import upload

# --- Layers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerSelection:
    """Layers (L+1, 2, N, D) -> their sum weighted by `weights` (1, 2, N, D), or without weights all `count` layers."""

    count: int
    weights: Tensor | None = None

    def __call__(self, streams: Tensor) -> Tensor:
        if self.weights is None:
            return streams
        (weights,) = upload([self.weights], streams.device)
        return torch.tensordot(weights, streams, dims=1)[None]

    @property
    def keeps_axis(self) -> bool:
        """Whether vectors have an axis of layers, which they have for all layers, even where there is only one."""
        return self.weights is None


def plain_layers(layers: str | int) -> str | int:
    """`layers`, with NumPy's integers as Python's, which JSON and the names in reports need."""
    return int(layers) if isinstance(layers, np.integer) else layers


def layer_names(count: int) -> list[str]:
    """The names of all layers in reports. A model with a single one has only the top layer, but no token layer."""
    return ["top layer"] if count == 1 else [f"layer {number}" for number in range(count)]


def layer_weights(model: Pretrained, layers: str | int) -> Tensor:
    """The weight of each layer in one vector of a word.

    Args:
        model: The model, whose own mix is "mix"; the average where it has none.
        layers: "mix", "average", "sum", "top", or the number of a layer, negative from the last.

    Returns:
        (L+1,) float32.

    Raises:
        ValueError: The model has no such layer, or `layers` is "all".
    """
    count = model.config.num_representations
    if layers == "mix" and model.mix is not None:
        before_softmax = torch.tensor(model.mix.weights, dtype=torch.float32, device="cpu")
        return model.mix.gamma * torch.softmax(before_softmax, dim=0)
    if layers in ("mix", "average"):
        return torch.full((count,), 1 / count, dtype=torch.float32, device="cpu")
    if layers == "sum":
        return torch.ones(count, dtype=torch.float32, device="cpu")
    number = count - 1 if layers == "top" else layers
    if isinstance(number, bool | str | float) or number not in range(-count, count):
        choices = f"layers must be mix, average, sum, top, or a number from 0 (the tokens) to {count - 1} (the top)"
        if layers == "all":
            raise ValueError(f"one vector of a word is needed: {choices}")
        raise ValueError(f"{choices}, or all where a word may have several vectors; not {layers!r}")
    return torch.eye(count, dtype=torch.float32, device="cpu")[operator.index(number)]


def select_layers(model: Pretrained, layers: str | int) -> LayerSelection:
    """The selection that `layers` names; ValueError if the model has no such layers."""
    if layers == "all":
        return LayerSelection(model.config.num_representations)
    return LayerSelection(1, layer_weights(model, layers))


# --- Pooling ---------------------------------------------------------------------------------------------------------

POOLINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda vectors: vectors.mean(axis=0),
    "max": lambda vectors: vectors.max(axis=0),
}
# The same, window by window: the ufunc that combines windows, and its initial value.
RUNNING: dict[str, tuple[np.ufunc, float]] = {"mean": (np.add, 0.0), "max": (np.maximum, -np.inf)}


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's words become one: by their "mean" or "max", scaled to length one if `normalize`."""

    name: str = "mean"
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.name not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, not {self.name!r}")

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """(T, 2D) -> (1, 2D); zeros where there are no words."""
        pooled = POOLINGS[self.name](vectors) if len(vectors) else np.zeros(vectors.shape[1], vectors.dtype)
        if self.normalize:
            pooled = pooled / max(float(np.linalg.norm(pooled)), 1e-12)
        return pooled[None]


@dataclass(frozen=True)
class HalfVectors:
    """Vectors of one direction, (n, D) or (L+1, n, D): the given rows (words) and columns of a sentence's array."""

    rows: slice
    columns: slice
    vectors: np.ndarray


class RunningPool:
    """Pools the vectors of a sentence that come window by window, each direction by itself; accumulates in float64."""

    def __init__(self, pooling: Pooling, dim: int) -> None:
        self._pooling = pooling
        self._rule, self._start = RUNNING[pooling.name]
        self._pooled = np.full(dim, self._start)
        self._words = 0

    def add(self, half: HalfVectors) -> None:
        of_window = self._rule.reduce(half.vectors, axis=0, dtype=np.float64, initial=self._start)
        self._pooled[half.columns] = self._rule(self._pooled[half.columns], of_window)
        self._words = max(self._words, half.rows.stop)

    def vectors(self) -> np.ndarray:
        """(1, 2D) float32, once both directions of all words were added."""
        whole = self._pooled / self._words if self._pooling.name == "mean" else self._pooled
        return self._pooling(whole.astype(np.float32)[None])


@dataclass(frozen=True)
class OutputSpec:
    """The output of a batch: by default an array for each sentence.

    Attributes:
        layers: The layers of each vector.
        pooling: Not None: one vector for each sentence.
        storage_dtype: Not None: the vectors of all words end to end, as a store holds them: (N, 2D) or (N, L+1, 2D),
            "float32" or "float16".
    """

    layers: LayerSelection
    pooling: Pooling | None = None
    storage_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.storage_dtype is not None:
            check_storage_dtype(self.storage_dtype)
