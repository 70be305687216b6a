"""Optimizer state in snapshots of older versions, whose LSTM weights held both directions in one tensor, (2, ...)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.train.optim import Optimizer
from elmokit.train.snapshots import Snapshot

FIRST_STACK, SECOND_STACK = "sequence_encoder.stacks.0.", "sequence_encoder.stacks.1."


def _older_parameters(bilm: BiLM, softmax: FullSoftmax) -> Iterator[tuple[int, list[nn.Parameter]]]:
    """The parameters of the older version, in its order: number of dimensions, and the current parameter or pair."""
    present = dict(bilm.named_parameters())
    for name, parameter in present.items():
        if name.startswith(FIRST_STACK):
            yield parameter.dim() + 1, [parameter, present[SECOND_STACK + name.removeprefix(FIRST_STACK)]]
        elif not name.startswith(SECOND_STACK):
            yield parameter.dim(), [parameter]
    for parameter in softmax.parameters():
        yield parameter.dim(), [parameter]


def _by_older_number(bilm: BiLM, softmax: FullSoftmax, optimizer: Optimizer) -> list[list[nn.Parameter]]:
    """The current parameter or pair for each parameter number of the older optimizer state."""
    older = list(_older_parameters(bilm, softmax))
    *muon, other = optimizer.optimizers
    hidden = {id(parameter) for one in muon for group in one.param_groups for parameter in group["params"]}
    # Muon has always numbered the matrices of the two directions separately.
    numbered = [[parameter] for _, pair in older for parameter in pair if id(parameter) in hidden]
    rest = [(dim, pair) for dim, pair in older if id(pair[0]) not in hidden]
    if len(other.param_groups) > 1:  # AdamW, whose first parameter group is the matrices
        rest.sort(key=lambda parameter: parameter[0] <= 1)
    return [*numbered, *(pair for _, pair in rest)]


def optimizer_tensors_of(
    snapshot: Snapshot, bilm: BiLM, softmax: FullSoftmax, optimizer: Optimizer
) -> dict[str, Tensor]:
    """The optimizer state of a snapshot, with the current parameter numbers.

    Args:
        snapshot: A snapshot of this version or an older one, told apart by the names of the biLM's tensors.
        bilm: The model.
        softmax: Its softmax.
        optimizer: The optimizer of both.

    Returns:
        Tensors for `Optimizer.restore`.
    """
    tensors = snapshot.with_prefix("optimizer")
    if not any(name.startswith("layers.") for name in snapshot.with_prefix("bilm")):
        return tensors
    older = _by_older_number(bilm, softmax, optimizer)
    numbers = {id(parameter): number for number, parameter in enumerate(optimizer.parameters())}
    renumbered = {}
    for key, tensor in tensors.items():
        number, slot = key.split(".", 1)
        parameters = older[int(number)]
        values = tensor if len(parameters) > 1 and tensor.dim() else [tensor] * len(parameters)
        for parameter, value in zip(parameters, values, strict=True):
            # Clone: optimizers update their step counts in place.
            renumbered[f"{numbers[id(parameter)]}.{slot}"] = value.clone()
    return renumbered
