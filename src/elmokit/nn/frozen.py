"""A biLM that is used and not trained, run with weights that were packed once and are packed anew when they change."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elmokit.nn.bilm import BiLM, BiLMOutput, BiLMState
from elmokit.nn.char_cnn import CharCNN, Filters, Highway
from elmokit.nn.hooks import is_hooked
from elmokit.nn.lstm import BidirectionalLSTM
from elmokit.nn.prepared import CPU, PreparedBiLM, prepare
from elmokit.nn.words_and_characters import WordsAndCharacters

PARTS = {BiLM, CharCNN, Filters, Highway, WordsAndCharacters, BidirectionalLSTM, nn.Linear, nn.ModuleList}
VALUES_REMEMBERED = 1000  # of each weight


def _is_as_built(module: nn.Module) -> bool:
    """Whether it computes what its weights and settings say: no hook, no parametrization, nothing in its place."""
    return type(module) in PARTS and not is_hooked(module)


def _settings(bilm: BiLM) -> tuple[Any, ...]:
    """All but the weights that a prepared form is made of."""
    return bilm.config, *((layer.cell_clip, layer.proj_clip, layer.forget_bias) for layer in bilm.layers)


def _is_frozen(weight: Tensor) -> bool:
    """Whether it asks for no gradient, and PyTorch counts every write to it: not those of other processes, for one."""
    is_plain = type(weight) in (nn.Parameter, Tensor) and weight.dtype == torch.float32 and weight.device == CPU
    return is_plain and not (weight.requires_grad or weight.is_inference() or weight.is_shared())


def _some_values(weight: Tensor) -> Tensor:
    """About a thousand, spread evenly."""
    step = weight.numel() // VALUES_REMEMBERED | 1
    return weight.detach().flatten()[::step].clone()


class _Remembered(NamedTuple):
    """What a weight was. Sharing its memory keeps other weights from coming to lie there."""

    weight: Tensor
    version: int
    values: Tensor

    @staticmethod
    def of(weight: Tensor) -> _Remembered:
        return _Remembered(weight.detach(), weight._version, _some_values(weight))

    def is_still(self, weight: Tensor) -> bool:
        """Writes through `.data` are not counted: they are seen where they reach one of the values."""
        same_place = self.weight.is_set_to(weight) and self.version == weight._version
        return same_place and torch.equal(self.values, _some_values(weight))


class _Kept(NamedTuple):
    weights: list[_Remembered]
    settings: tuple[Any, ...]
    prepared: PreparedBiLM

    def is_of(self, bilm: BiLM, weights: list[Tensor]) -> bool:
        if len(weights) != len(self.weights) or self.settings != _settings(bilm):
            return False
        return all(old.is_still(weight) for old, weight in zip(self.weights, weights, strict=True))


class PreparedWhileFrozen:
    """Runs a biLM, and holds its prepared form, the weights once more, while no parameter requires a gradient.

    It is for float32 on a CPU that has the products for it, gradients and autocast off; otherwise, and where something
    hooks into the biLM, the biLM runs itself. The prepared form is made in the time of a small batch, at the first call
    and whenever weights have changed. A write past PyTorch, through `.data` or NumPy, is seen if it reaches one of some
    thousand values of a weight: write in place under `torch.no_grad()`. A copy, as for another process, begins empty.
    """

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def __reduce__(self) -> tuple[type[PreparedWhileFrozen], tuple[()]]:
        return PreparedWhileFrozen, ()

    def run(self, bilm: BiLM, ids: Tensor, state: BiLMState | None = None) -> BiLMOutput:
        """`bilm(ids, state=state)`, by the prepared form where there can be one."""
        weights: list[Tensor] = [*bilm.parameters()]
        is_plain = ids.device == CPU and not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
        usable = is_plain and all(map(_is_frozen, weights)) and all(map(_is_as_built, bilm.modules()))
        prepared = self._up_to_date(bilm, weights) if usable else None
        if prepared is None:
            self._kept = None
            return bilm(ids, state=state)
        return prepared.forward(ids, state)

    def _up_to_date(self, bilm: BiLM, weights: list[Tensor]) -> PreparedBiLM | None:
        kept = self._kept
        if kept is None or not kept.is_of(bilm, weights):
            kept = self._kept = None  # its memory is needed
            prepared = prepare(bilm, torch.float32, CPU)
            if prepared is None:
                return None
            kept = self._kept = _Kept([_Remembered.of(weight) for weight in weights], _settings(bilm), prepared)
        return kept.prepared
