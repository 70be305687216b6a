"""The layers that are asked for: all of them, one, or a mix."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from elmokit.checkpoints.pretrained import Pretrained


@dataclass(frozen=True)
class LayerChoice:
    """Of layers (L+1, 2, N, D) their sum by `weights`, (1, 2, N, D), or without weights all `count` of them."""

    count: int
    weights: Tensor | None = None

    def __call__(self, streams: Tensor) -> Tensor:
        return streams if self.weights is None else torch.tensordot(self.weights, streams, dims=1)[None]


def layer_weights(model: Pretrained, layers: str | int) -> Tensor:
    """(L+1,): what each layer adds to "mix", "average", "top" or the layer of that number; ValueError for another."""
    count = model.config.num_representations
    if layers == "mix" and model.mix is not None:
        return model.mix.gamma * torch.softmax(torch.tensor(model.mix.weights), dim=0)
    if layers in ("mix", "average"):
        return torch.full((count,), 1 / count)
    number = count - 1 if layers == "top" else layers
    if isinstance(number, bool | str) or not -count <= operator.index(number) < count:
        choices = f"mix, average, top, all, or a number from 0 to {count - 1}"
        raise ValueError(f"layers must be {choices}, not {layers!r}")
    return torch.eye(count)[operator.index(number)]


def layer_choice(model: Pretrained, layers: str | int, device: torch.device) -> LayerChoice:
    """What makes of a model's layers those that `layers` names; ValueError where there are no such."""
    if layers == "all":
        return LayerChoice(model.config.num_representations)
    return LayerChoice(1, layer_weights(model, layers).to(device))
