"""What the two passes of a layer over a packed stream read and write; the kernels fill these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from elmokit.nn.kernels.memory import large
from elmokit.nn.packing import Packing

# What takes the slots of a step, of one direction or of both.
Slots: TypeAlias = tuple[EllipsisType, slice, slice]


@dataclass(frozen=True)
class Steps:
    """What both passes of a layer know of its steps. A clip that is None does not bind."""

    packing: Packing
    cell_clip: float | None
    proj_clip: float | None

    def _fresh_rows(self, device: torch.device) -> Sequence[Tensor | None]:
        """For each step the ranks whose state starts afresh there; None: no row."""
        resets, sizes = self.packing.resets, self.packing.batch_sizes
        if resets is None or not sizes:
            return [None] * len(sizes)
        counts = [int(n) for n in torch.stack([step.sum() for step in resets.split(list(sizes))])]
        # all at once: a GPU would wait for each
        ranks = torch.cat([torch.arange(n) for n in sizes])[resets].to(device)
        return [fresh if len(fresh) else None for fresh in ranks.split(counts)]

    def on(self, device: torch.device) -> list[tuple[int, Slots, Tensor | None]]:
        """Of each step: how many rows it has, its slots, and the rows that start afresh (None: no row)."""
        starts, sizes = self.packing.starts(), self.packing.batch_sizes
        slots = [(..., slice(*bounds), slice(None)) for bounds in pairwise(starts)]
        return list(zip(sizes, slots, self._fresh_rows(device), strict=True))


# Tensors that belong together, of both directions; `part` takes the same part of each: a direction, a step's slots.


class Weights(NamedTuple):
    recurrent: Tensor  # (2, 4H, D)
    projection: Tensor | None  # (2, D, H)
    beside: Tensor | None = None  # (2, 4H, K), of values that are multiplied beside h

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Weights:
        """`change` of each weight; what is None stays None."""
        projection, beside = (None if weight is None else change(weight) for weight in self[1:])
        return Weights(change(self.recurrent), projection, beside)

    def of_factors(self) -> Tensor:
        """(..., 4H, K + D): of what is beside h, and of h."""
        return self.recurrent if self.beside is None else torch.cat([self.beside, self.recurrent], dim=-1)


class Run(NamedTuple):
    """A forward pass: what it reads, and what it writes."""

    inputs: Tensor  # (2, N, 4H); with values beside h (2, 1, 4H), the same for every slot
    outputs: Tensor  # (2, N, D)
    h: Tensor  # (2, B, D), at the end the final state
    c: Tensor
    start_h: Tensor  # (2, 1, D), what a reset sets
    start_c: Tensor
    beside: Tensor | None = None  # (2, N, K), what is multiplied beside h


class Trace(NamedTuple):
    """What the backward pass needs of every slot."""

    gates: Tensor  # (2, N, 4H), after their functions
    hidden: Tensor  # (2, N, H), the output before the projection
    cell: Tensor
    factors: Tensor  # (2, N, K + D), what was multiplied: what was beside h, and h before the step
    previous_c: Tensor


class Gradients(NamedTuple):
    outputs: Tensor  # (2, N, D), in the end those of the projection before it was clipped
    h: Tensor  # (2, B, D), in the end that of the initial state
    c: Tensor
    gates: Tensor  # (2, N, 4H); compiled passes may write it over the trace's
    beside: Tensor | None  # (2, N, K)
    constant: Tensor | None  # (2, 4H), of inputs that are the same for every slot: the sum over all slots


def part(record: Any, index: int | EllipsisType | Slots) -> Any:
    """The same part of each tensor, sharing its memory."""
    return type(record)(*(None if tensor is None else tensor[index] for tensor in record))


def width_of(beside: Tensor | None) -> int:
    """How many values are multiplied beside h; of them or of their weight."""
    return 0 if beside is None else beside.shape[-1]


def empty_trace(run: Run, gates_in_place: bool) -> Trace:
    """Memory for the trace of a run, of the type of its products where they read it again; for its gates, which come in
    the order in which inputs are read, that may be the place of the inputs."""
    low, wide, device = run.inputs.dtype, run.c.dtype, run.c.device
    (_, slots, width), units = run.outputs.shape, run.c.shape[2]
    return Trace(
        gates=run.inputs if gates_in_place else large((2, slots, 4 * units), low, device),
        hidden=large((2, slots, units), low, device),
        cell=large((2, slots, units), wide, device),
        factors=large((2, slots, width_of(run.beside) + width), low, device),
        previous_c=large((2, slots, units), wide, device),
    )
