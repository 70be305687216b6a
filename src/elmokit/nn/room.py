"""Room to compute in that is kept from one run to the next."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from elmokit.nn.kernels.memory import in_huge_pages


class Room:
    """Large arrays of a run, in memory that the next run uses again.

    The system hands out memory page by page, each zeroed at its first use: where arrays were new in every run, that
    took a tenth of the time. One run at a time can use a room. A copy, as for another process, begins empty.
    """

    def __init__(self) -> None:
        self._memory: dict[Hashable, Tensor] = {}

    def __reduce__(self) -> tuple[type[Room], tuple[()]]:
        return Room, ()

    def take(self, name: Hashable, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An array without values yet, good until the same name is taken again."""
        needed, kept = math.prod(shape) * dtype.itemsize, self._memory.get(name)
        if kept is None or len(kept) < needed:
            self._memory.pop(name, None)
            del kept  # let go before more is taken
            kept = self._memory[name] = in_huge_pages(needed + needed // 8)
        return kept[:needed].view(dtype).view(tuple(shape))


class Rooms:
    """As many rooms as are in use at a time, each kept for whoever comes next."""

    def __init__(self) -> None:
        self._free: list[Room] = []

    def __reduce__(self) -> tuple[type[Rooms], tuple[()]]:
        return Rooms, ()

    @contextmanager
    def one(self) -> Iterator[Room]:
        """A room that nobody else computes in."""
        try:
            room = self._free.pop()
        except IndexError:
            room = Room()
        yield room
        self._free.append(room)  # not after an error: a thread may still compute in it
