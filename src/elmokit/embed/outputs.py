"""The output of embedding: the layers, and one vector per word or per text."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.checkpoints import Pretrained
from elmokit.nn import TextMap
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

PoolingName = Literal["text", "mean", "max"]


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's words become one, which is scaled to length one if `normalize`.

    Attributes:
        name: "mean" or "max" of one representation of the words; or "text", the model's map of the
            means of all layers. None: "text" if the model has a map and no representation is
            chosen, else "mean".
        normalize: Whether to scale the vector.
    """

    name: PoolingName | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        conform(PoolingName | None, self.name, "pooling")


@dataclass(frozen=True)
class OutputSpec:
    """The output of a batch: by default an array for each sentence.

    Attributes:
        count: The layers of a vector, 1 or L+1.
        dim: Width of a vector.
        weights: (L+1,), of the layers in one vector; None: all layers, in an axis of their own.
        pooling: Not None: one vector for each sentence.
        text_map: Of the pooling "text".
        storage_dtype: Not None: the vectors of all words end to end, as a store holds them: (M, 2D)
            or (M, L+1, 2D).
    """

    count: int
    dim: int
    weights: Tensor | None = None
    pooling: Pooling | None = None
    storage_dtype: StorageDtype | None = None
    text_map: TextMap | None = None

    @staticmethod
    def of(
        model: Pretrained,
        layers: str | int | None,
        pooling: Pooling | None = None,
        storage_dtype: StorageDtype | None = None,
    ) -> OutputSpec:
        """The output for `layers`, as `Embedder.embed` names them; None: "mix".

        Raises:
            ValueError: The model has no such layers or no text map, there is more than one layer
                with a pooling, or `storage_dtype` is none.
        """
        conform(StorageDtype | None, storage_dtype, "storage_dtype")
        count, dim = model.config.num_representations, model.config.output_dim
        if pooling is not None:
            map_ = model.text_map if layers is None and pooling.name in (None, "text") else None
            if map_ is not None:
                return OutputSpec(count, map_.dim, None, pooling, None, map_)
            if pooling.name == "text":
                raise ValueError(
                    'pooling "text" needs a model with a text map (elmokit finetune --vectors), '
                    "which reads all layers: omit layers, or choose mean"
                )
        if layers == "all" and pooling is None:
            return OutputSpec(count, dim, None, None, storage_dtype)
        weights = layer_weights(model, "mix" if layers is None else layers)
        return OutputSpec(1, dim, weights, pooling, storage_dtype if pooling is None else None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of a vector before its 2D numbers: () or (L+1,)."""
        return () if self.pooling or self.weights is not None else (self.count,)

    def select(self, streams: Tensor) -> Tensor:
        """Layers (L+1, 2, N, D) -> their weighted sum (1, 2, N, D), or all of them."""
        if self.weights is None:
            return streams
        (weights,) = upload([self.weights], streams.device)
        return torch.tensordot(weights, streams, dims=1)[None]

    def pool(self, layers: Tensor, lengths: Tensor) -> Tensor:
        """The vectors of the words of B texts, end to end (count, M, 2D) -> (B, dim); zeros for a
        text without words.
        """
        assert self.pooling is not None
        name = "max" if self.pooling.name == "max" else "mean"
        # Not the default: it checks the lengths, for which it waits for a GPU.
        pooled = torch.stack(
            [
                torch.segment_reduce(layer, name, lengths=lengths, axis=0, unsafe=True)
                for layer in layers
            ]
        )
        vectors = pooled[0] if self.text_map is None else self.text_map(pooled)
        vectors.masked_fill_((lengths == 0)[:, None], 0.0)
        return F.normalize(vectors, dim=1) if self.pooling.normalize else vectors
