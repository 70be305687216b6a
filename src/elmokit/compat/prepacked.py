"""A frozen biLM whose weights anyone may change at any time, as programs for the original libraries do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elmokit.nn.bilm import BiLM
from elmokit.nn.inference import prepack
from elmokit.ops.dispatch import has_prepacked_products


class Prepacked:
    """Keeps the form of a frozen biLM in which its weights are prepacked, until one of them changes.

    PyTorch counts every change of a weight except through `.data`. A copy or pickle is empty.
    """

    def __init__(self) -> None:
        self._kept: tuple[list[tuple[int, int]], list[Tensor], BiLM] | None = None

    def __reduce__(self) -> tuple[type[Prepacked], tuple[()]]:
        return Prepacked, ()

    def bilm(self, weights: Sequence[Tensor], create: Callable[[], BiLM]) -> BiLM:
        """`create()`, a biLM with these weights, prepacked if all of them are frozen."""
        device, dtype = weights[0].device, weights[0].dtype
        is_frozen = not any(weight.requires_grad or weight.is_inference() for weight in weights)
        if not is_frozen or torch.is_autocast_enabled(device.type):
            self._kept = None
            return create()
        changes = [(weight.data_ptr(), weight._version) for weight in weights]
        if self._kept is None or self._kept[0] != changes:
            self._kept = None  # free its memory first
            bilm = create()
            bilm = prepack(bilm, None) if has_prepacked_products(device, dtype) else bilm
            # The weights are held so that no other tensor gets their address.
            self._kept = changes, [weight.detach() for weight in weights], bilm
        return self._kept[2]
