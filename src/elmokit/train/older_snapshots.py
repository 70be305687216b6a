"""Snapshots from before the two directions of the LSTMs had weights of their own: they lay in one tensor (2, ...)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from elmokit.nn.bilm import FIRST_STACK, SECOND_STACK, BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.train.optim import Optimizer
from elmokit.train.snapshots import Snapshot


def _parameters_before(bilm: BiLM, softmax: FullSoftmax) -> Iterator[tuple[int, list[nn.Parameter]]]:
    """In their order of then the number of dimensions of each parameter, and the parameters that it is now."""
    own = dict(bilm.named_parameters())
    for name, parameter in own.items():
        if name.startswith(FIRST_STACK):
            yield parameter.dim() + 1, [parameter, own[SECOND_STACK + name.removeprefix(FIRST_STACK)]]
        elif not name.startswith(SECOND_STACK):
            yield parameter.dim(), [parameter]
    for parameter in softmax.parameters():
        yield parameter.dim(), [parameter]


def _numbers_before(bilm: BiLM, softmax: FullSoftmax, optimizer: Optimizer) -> list[list[nn.Parameter]]:
    """By the number that a parameter had then, the parameters that it is now."""
    before = list(_parameters_before(bilm, softmax))
    *muon, other = optimizer.parts
    hidden = {id(parameter) for part in muon for group in part.param_groups for parameter in group["params"]}
    # Muon numbered each matrix by itself, then as now.
    numbers = [[parameter] for _, pair in before for parameter in pair if id(parameter) in hidden]
    rest = [(dim, pair) for dim, pair in before if id(pair[0]) not in hidden]
    if len(other.param_groups) > 1:  # matrices had numbers before the others
        rest.sort(key=lambda of: of[0] <= 1)
    return [*numbers, *(pair for _, pair in rest)]


def optimizer_tensors_of(
    snapshot: Snapshot, bilm: BiLM, softmax: FullSoftmax, optimizer: Optimizer
) -> dict[str, Tensor]:
    """What the optimiser of a snapshot remembers, by the numbers that its parameters have now."""
    tensors = snapshot.part("optimizer")
    if not any(name.startswith("layers.") for name in snapshot.part("bilm")):
        return tensors
    before = _numbers_before(bilm, softmax, optimizer)
    numbers = {id(parameter): number for number, parameter in enumerate(optimizer.parameters())}
    found = {}
    for key, tensor in tensors.items():
        number, slot = key.split(".", 1)
        parameters = before[int(number)]
        parts = tensor if len(parameters) > 1 and tensor.dim() else [tensor] * len(parameters)
        for parameter, part in zip(parameters, parts, strict=True):
            found[f"{numbers[id(parameter)]}.{slot}"] = part.clone()  # optimisers count steps in place
    return found
