"""The output of embedding: the layers, and one vector per word or per text."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.checkpoints import Pretrained
from elmokit.ops import upload
from elmokit.settings import StorageDtype, conform

# --- Layers ---------------------------------------------------------------------------------------


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
        count: The layers of a vector, 1 or L+1.
        weights: (L+1,), of the layers in one vector; None: all layers, in an axis of their own.
        pooling: Not None: one vector for each sentence.
        storage_dtype: Not None: the vectors of all words end to end, as a store holds them: (M, 2D)
            or (M, L+1, 2D).
    """

    count: int
    weights: Tensor | None = None
    pooling: Pooling | None = None
    storage_dtype: StorageDtype | None = None

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
        conform(StorageDtype | None, storage_dtype, "storage_dtype")
        if layers == "all" and pooling is None:
            return OutputSpec(model.config.num_representations, None, None, storage_dtype)
        weights = layer_weights(model, layers)
        return OutputSpec(1, weights, pooling, storage_dtype if pooling is None else None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of a vector before its 2D numbers: () or (L+1,)."""
        return () if self.weights is not None else (self.count,)

    def select(self, streams: Tensor) -> Tensor:
        """Layers (L+1, 2, N, D) -> their weighted sum (1, 2, N, D), or all of them."""
        if self.weights is None:
            return streams
        (weights,) = upload([self.weights], streams.device)
        return torch.tensordot(weights, streams, dims=1)[None]
