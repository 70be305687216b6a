"""A caching allocator for large arrays that are allocated again and again: in every step of training, for every batch.

The system hands memory out page by page, each zeroed at its first use, which takes longer than the computation in it;
and general allocators leave gaps between large arrays that no other fits. An array keeps its block: memory is free
again when the last tensor in it is gone, whoever holds it.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
from torch import Tensor

MIN_CACHED = 1 << 20  # bytes; less is allocated and released quickly as it is
HUGE_PAGE = 1 << 21  # bytes; from twice this on NumPy asks Linux for such pages, which are faster to find
STEPS = 8  # sizes from one power of two to the next, so that arrays of about the same size share a block
MAX_EXCESS = 2  # of a free block's size over that of the array which it is given to
MAX_KEPT = 1.25  # allocated and free together, as a multiple of what was allocated at once lately
MAX_KEPT_UNASKED = 2  # the same where free blocks still fit: far more, so that none is released that a step needs again
PEAK_DECAY = 0.999  # of that peak at each allocation; a step of training makes a few dozen


def _rounded(size: int) -> int:
    step = (1 << size.bit_length() - 1) // STEPS
    return -(-size // step) * step


class _Block:
    """Memory that begins with a huge page."""

    def __init__(self, size: int) -> None:
        whole = np.empty(size + HUGE_PAGE, dtype=np.uint8)
        begin = -whole.ctypes.data % HUGE_PAGE
        self.size, self.bytes = size, whole[begin : begin + size]


def huge_pages(size: int) -> Tensor:
    """So many bytes, of undefined values, where they are read faster: for weights, which are kept."""
    return torch.from_numpy(_Block(size).bytes)


class _Owner:
    """The owner of a block, which its tensors keep alive: when the last of them is gone, the block is released."""

    def __init__(self, block: _Block, size: int, released: deque[_Block]) -> None:
        self.__array_interface__ = block.bytes[:size].__array_interface__
        self._block, self._released = block, released

    def __del__(self) -> None:
        self._released.append(self._block)  # no more than this: it may run at any time, in any thread


class CachingAllocator:
    """Gives released blocks to the next arrays that fit into them. Several threads may use it."""

    def __init__(self) -> None:
        self._lock, self._released = Lock(), deque[_Block]()
        self._free: list[_Block] = []  # released first, first
        self._allocated = self._peak = 0.0  # bytes

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An array on the CPU whose values are undefined."""
        size = math.prod(shape) * dtype.itemsize
        if size < MIN_CACHED:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        with self._lock:
            owner = _Owner(self._block_of(_rounded(size)), size, self._released)
        memory = torch.from_numpy(np.asarray(owner)).untyped_storage()
        # not a view of bytes, which autograd would not take for a function's result
        array = torch.empty(0, dtype=dtype, device="cpu")
        return array.set_(memory, 0, tuple(shape))  # pyright: ignore[reportCallIssue]

    def _block_of(self, size: int) -> _Block:
        while self._released:
            self._free.append(self._released.popleft())
            self._allocated -= self._free[-1].size
        self._peak *= PEAK_DECAY
        fitting = [block for block in self._free if size <= block.size <= MAX_EXCESS * size]
        if fitting:
            block = min(fitting, key=lambda block: block.size)
            self._free.remove(block)
        else:
            self._release_more_than(MAX_KEPT * max(self._peak, self._allocated + size) - size)
            block = _Block(size)
        self._allocated += block.size
        self._peak = max(self._peak, self._allocated)
        if self._total() > MAX_KEPT_UNASKED * self._peak:
            self._release_more_than(MAX_KEPT * self._peak)
        return block

    def _total(self) -> float:
        return self._allocated + sum(block.size for block in self._free)

    def _release_more_than(self, limit: float) -> None:
        """Give free blocks back to the system until all blocks together have no more bytes than this."""
        while self._free and self._total() > limit:
            self._free.pop(0)

    def reset_lock(self) -> None:
        """In a forked child: another thread may have held the lock, and does not exist here."""
        self._lock = Lock()


_allocator = CachingAllocator()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_allocator.reset_lock)


def allocate(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """An array whose values are undefined, on the CPU where no device is given."""
    if device is None or device.type == "cpu":
        return _allocator.allocate(shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def allocate_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An array of the tensor's shape and device, whose values are undefined."""
    return allocate(tensor.shape, tensor.dtype if dtype is None else dtype, tensor.device)


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor itself, or its values in another number type."""
    return tensor if tensor.dtype == dtype else allocate_like(tensor, dtype).copy_(tensor)
