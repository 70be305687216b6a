"""Arrays from a caching allocator, and copies to and from a GPU."""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

import numpy as np
import torch
from torch import Tensor

# --- A caching allocator --------------------------------------------------------------------------
#
# For large arrays that are allocated again and again: in every step of training, for every batch.
# The system hands out memory page by page and zeroes each page at its first use, which takes longer
# than the computation in it; and general allocators leave gaps between large arrays that fit no
# other. A block is free again when the last tensor in it is gone, whoever held it.

# bytes; smaller arrays come from PyTorch's allocator, which is fast enough for them
MIN_CACHED = 1 << 20
# bytes; for arrays of at least twice this size Linux is asked for such pages, which read faster
HUGE_PAGE = 1 << 21
STEPS = 8  # block sizes per power of two, so that arrays of about the same size share a block
MAX_EXCESS = 2  # a free block is given to an array of at least 1/2 of its size
# all blocks, free ones included, as a multiple of the recent peak; applied before a new block is
# made
MAX_KEPT = 1.25
# the same, after each allocation: higher, to keep the blocks that the next step of training needs
MAX_KEPT_AFTER = 2
# the factor of the recent peak at each allocation; a step of training makes a few dozen
PEAK_DECAY = 0.999


def _rounded(size: int) -> int:
    step = (1 << size.bit_length() - 1) // STEPS
    return -(-size // step) * step


def _pages(size: int) -> np.ndarray:
    """Memory mapped by itself: large arrays of malloc leave gaps between those that stay."""
    if sys.platform != "linux":
        return np.empty(size, dtype=np.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= 3 * HUGE_PAGE:
        with suppress(OSError):  # the kernel may lack huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=np.uint8)


class _Block:
    """Memory that begins at the boundary of a huge page."""

    def __init__(self, size: int) -> None:
        whole = _pages(size + HUGE_PAGE)
        begin = -whole.ctypes.data % HUGE_PAGE
        self.size, self.bytes = size, whole[begin : begin + size]


def huge_pages(size: int) -> Tensor:
    """`size` bytes (uint8) of undefined values in huge pages, which read faster: for weights."""
    return torch.from_numpy(_Block(size).bytes)


class _Owner:
    """Releases a block when the last tensor in it is gone."""

    def __init__(self, block: _Block, size: int, released: deque[_Block]) -> None:
        self.__array_interface__ = block.bytes[:size].__array_interface__
        self._block, self._released = block, released

    def __del__(self) -> None:
        self._released.append(self._block)  # nothing else: this may run at any time, in any thread


class CachingAllocator:
    """Gives released blocks to the next arrays that fit into them. Several threads may use it."""

    def __init__(self) -> None:
        self._lock, self._released = Lock(), deque[_Block]()
        self._free: list[_Block] = []  # in the order of their release
        self._allocated = self._peak = 0.0  # bytes

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An array on the CPU whose values are undefined."""
        size = math.prod(shape) * dtype.itemsize
        if size < MIN_CACHED:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        with self._lock:
            owner = _Owner(self._block_of(_rounded(size)), size, self._released)
        memory = torch.from_numpy(np.asarray(owner)).untyped_storage()
        # not a view of the bytes, which autograd does not accept as a function's result
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
        if self._total() > MAX_KEPT_AFTER * self._peak:
            self._release_more_than(MAX_KEPT * self._peak)
        return block

    def _total(self) -> float:
        return self._allocated + sum(block.size for block in self._free)

    def _release_more_than(self, limit: float) -> None:
        """Return free blocks to the system, oldest first, until all have at most `limit` bytes."""
        while self._free and self._total() > limit:
            self._free.pop(0)

    def reset_lock(self) -> None:
        """In a forked child, replace the lock: a thread that is gone may hold it."""
        self._lock = Lock()


_allocator = CachingAllocator()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_allocator.reset_lock)


def allocate(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> Tensor:
    """An array whose values are undefined, on the CPU if no device is given."""
    if device is None or device.type == "cpu":
        return _allocator.allocate(shape, dtype)
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def allocate_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An array of the tensor's shape and device, whose values are undefined."""
    return allocate(tensor.shape, tensor.dtype if dtype is None else dtype, tensor.device)


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor itself, or its values in another dtype."""
    return tensor if tensor.dtype == dtype else allocate_like(tensor, dtype).copy_(tensor)


# --- Copies to and from a GPU ---------------------------------------------------------------------
#
# Through pinned memory, so that the caller waits only for results.

ALIGNMENT = 16  # bytes


def upload(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors to a device in one asynchronous transfer; on the CPU, return them."""
    if device.type == "cpu":
        return list(tensors)
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors]
    # PyTorch does not reuse pinned memory before the copy from it has ended.
    buffer = torch.empty(
        sum(sizes), dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda"
    )

    def views(whole: Tensor) -> list[Tensor]:
        parts = zip(whole.split(sizes), tensors, strict=True)
        return [
            part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape) for part, tensor in parts
        ]

    for view, tensor in zip(views(buffer), tensors, strict=True):
        view.copy_(tensor)
    return views(buffer.to(device, non_blocking=True))


def download(tensor: Tensor) -> Tensor:
    """A copy of a tensor in main memory, or the tensor itself if it is there."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    copied = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    copied.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).record_event().synchronize()
    return copied
