"""Pretraining on several processes, as `torchrun` starts them: each computes rows of every batch.

All of them read the same text and draw the same random numbers, except for dropout. So the order of
the text, the negative classes and, without dropout, the loss are those of one process with the same
batch. Only rank 0 writes files.
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


@dataclass(frozen=True)
class Processes:
    """This process among those of a run, and their communication."""

    rank: int = 0
    world_size: int = 1

    def local_rows(self, batch_size: int) -> slice:
        """The rows of a batch that this process computes.

        Raises:
            ValueError: There are fewer rows than processes.
        """
        if batch_size < self.world_size:
            raise ValueError(
                f"{self.world_size} processes cannot share a batch of {batch_size} rows: raise "
                f"batch_size"
            )
        # 7 rows on 3 processes: 0 1 | 2 3 | 4 5 6
        begin, end = (rank * batch_size // self.world_size for rank in (self.rank, self.rank + 1))
        return slice(begin, end)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        # One call for all, as each has a latency of its own:
        #
        #   tensors   (2,)  (2, 3)  ()      flat   l l | g g g g g g | b      (9,)
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        sums = flat.split([tensor.numel() for tensor in tensors])
        for tensor, summed in zip(tensors, sums, strict=True):
            tensor.copy_(summed.view_as(tensor))

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, in the order of their ranks."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """True if the flag is set in any process."""
        return any(self.all_gather(flag))

    def run_on_rank_zero(self, function: Callable[[], T]) -> T:
        """The result of a function that rank 0 calls while others wait; all raise its error."""
        if self.world_size == 1:
            return function()
        result: list[Any] = [None, None]
        if self.rank == 0:
            try:
                result[0] = function()
            except Exception as error:
                result[1] = error
        dist.broadcast_object_list(result)
        if result[1] is not None:
            raise result[1]
        return result[0]


SINGLE_PROCESS = Processes()


@contextmanager
def join_processes(device: str | None) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, if any: over NCCL on GPUs, else over Gloo.

    Args:
        device: "cpu" or "cuda", from the settings; None: GPUs where there are any.

    Raises:
        ValueError: There is no such device.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield SINGLE_PROCESS
        return
    is_cuda = pick_device(device).type == "cuda"
    if is_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # While rank 0 tokenizes text or evaluates, the others wait, by PyTorch's default for at most 10
    # or 30 minutes. `torchrun` ends them if rank 0 fails.
    dist.init_process_group("nccl" if is_cuda else "gloo", timeout=timedelta(days=7))
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
