"""The output of embedding: which layers, and a vector for each word or for each text."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.checkpoints import Pretrained
from elmokit.ops import upload
from elmokit.settings import StorageDtype, check, conform

# --- Layers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerSelection:
    """Layers (L+1, 2, N, D) -> their sum weighted by `weights` (1, 2, N, D), or without weights all
    `count` layers.
    """

    count: int
    weights: Tensor | None = None

    def __call__(self, streams: Tensor) -> Tensor:
        if self.weights is None:
            return streams
        (weights,) = upload([self.weights], streams.device)
        return torch.tensordot(weights, streams, dims=1)[None]

    @property
    def keeps_axis(self) -> bool:
        """Whether vectors have an axis of layers, which they have for all layers, even where there
        is only one.
        """
        return self.weights is None


def plain_layers(layers: str | int) -> str | int:
    """`layers`, with NumPy's integers as Python's, which JSON and the names in reports need."""
    return int(layers) if isinstance(layers, np.integer) else layers


def layer_names(count: int) -> list[str]:
    """The names of all layers in reports. A model with a single one has only the top layer, but no
    token layer.
    """
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
        choices = (
            f"layers must be mix, average, sum, top, or a number from 0 (the tokens) to "
            f"{count - 1} (the top)"
        )
        if layers == "all":
            raise ValueError(f"one vector is needed, of one layer or mix: {choices}")
        raise ValueError(f"{choices}, or all for every layer; not {layers!r}")
    return torch.eye(count, dtype=torch.float32, device="cpu")[operator.index(number)]


def select_layers(model: Pretrained, layers: str | int) -> LayerSelection:
    """The selection that `layers` names; ValueError if the model has no such layers."""
    if layers == "all":
        return LayerSelection(model.config.num_representations)
    return LayerSelection(1, layer_weights(model, layers))


# --- Pooling --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's words become one: by their "mean" or "max", scaled to length one
    if `normalize`.
    """

    name: Literal["mean", "max"] = "mean"
    normalize: bool = False

    def __post_init__(self) -> None:
        conform(Literal["mean", "max"], self.name, "pooling")

    def __call__(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """The vectors of the words of B texts, end to end (M, 2D) -> (B, 2D); zeros for a text
        without words.
        """
        # Not the default: it checks the lengths, for which it waits for a GPU.
        pooled = torch.segment_reduce(vectors, self.name, lengths=lengths, axis=0, unsafe=True)
        pooled.masked_fill_((lengths == 0)[:, None], 0.0)
        return F.normalize(pooled, dim=1) if self.normalize else pooled


@dataclass(frozen=True)
class OutputSpec:
    """The output of a batch: by default an array for each sentence.

    Attributes:
        layers: The layers of each vector.
        pooling: Not None: one vector for each sentence.
        storage_dtype: Not None: the vectors of all words end to end, as a store holds them: (M, 2D)
            or (M, L+1, 2D).
    """

    layers: LayerSelection
    pooling: Pooling | None = None
    storage_dtype: StorageDtype | None = None

    def __post_init__(self) -> None:
        check(self)

    @staticmethod
    def of(
        model: Pretrained,
        layers: str | int,
        pooling: Pooling | None = None,
        storage_dtype: StorageDtype | None = None,
    ) -> OutputSpec:
        """The output for `layers`, as `Embedder.embed` names them.

        Raises:
            ValueError: The model has no such layers, there is more than one with a pooling, or
                `storage_dtype` is none.
        """
        if pooling is not None:
            return OutputSpec(LayerSelection(1, layer_weights(model, layers)), pooling)
        return OutputSpec(select_layers(model, layers), None, storage_dtype)
