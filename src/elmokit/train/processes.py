"""Pretraining on several processes, as `torchrun` starts them: each computes its rows of every
batch.

All of them read the same text and draw the same random numbers, so the order of the text, the
negative classes and the loss are those of one process with the same batch. The first process alone
writes files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from elmokit.runtime import pick_device

T = TypeVar("T")
CPU = torch.device("cpu")
# While the first process tokenizes text or evaluates, the others wait in a collective operation,
# which by PyTorch's defaults fails after 10 or 30 minutes. `torchrun` ends them if the first one
# fails.
LONGEST_WAIT = timedelta(days=30)


@dataclass(frozen=True)
class Processes:
    """This process among those of a run, and their communication. A single process exchanges
    nothing.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = CPU  # of the tensors that are exchanged

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.rank == 0

    def rows(self, batch_size: int) -> slice:
        """The rows of a batch that this process computes. ValueError if there are fewer rows than
        processes.
        """
        if batch_size < self.count:
            raise ValueError(
                f"{self.count} processes cannot share a batch of {batch_size} rows: raise "
                f"batch_size"
            )
        return slice(
            self.rank * batch_size // self.count, (self.rank + 1) * batch_size // self.count
        )

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        together = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(together)
        for tensor, summed in zip(
            tensors, together.split([tensor.numel() for tensor in tensors]), strict=True
        ):
            tensor.copy_(summed.view_as(tensor))

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in the order of their ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return any(self.gather(flag))

    def of_first(self, make: Callable[[], T]) -> T:
        """The result of `make()`, called in the first process while the others wait; an error is
        raised in all.
        """
        if self.count == 1:
            return make()
        result: list[Any] = [None, None]
        if self.is_first:
            try:
                result[0] = make()
            except Exception as error:
                result[1] = error
        dist.broadcast_object_list(result)
        if result[1] is not None:
            raise result[1]
        return result[0]


ALONE = Processes()


def is_one_of_several() -> bool:
    """Whether `torchrun` started this process along with others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined_processes(device: str | None) -> Iterator[Processes]:
    """Join the other processes that `torchrun` started, if any: over NCCL with a GPU for each, else
    over Gloo.

    Args:
        device: "cpu" or "cuda", from the settings; None: GPUs where there are any.

    Raises:
        ValueError: There is no such device.
    """
    if not is_one_of_several():
        yield ALONE
        return
    own = pick_device(device)
    if own.type == "cuda":
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if own.type == "cuda" else "gloo", timeout=LONGEST_WAIT)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), own)
    finally:
        dist.destroy_process_group()
