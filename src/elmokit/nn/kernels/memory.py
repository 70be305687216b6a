"""Memory for large arrays that are made again and again, as in every step of a training.

The system hands memory out page by page, each zeroed at its first use, which takes longer than what is computed in it;
and the allocators that give freed memory out again leave gaps between large arrays that no other fits.
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

LEAST = 1 << 20  # bytes; less is taken and given back quickly as it is
HUGE_PAGE = 1 << 21  # bytes; from twice this on NumPy asks Linux for such pages, which are faster to find
STEPS = 8  # sizes from one power of two to the next, so that arrays of about the same size share a block
MOST_KEPT = 1.25  # lent and free together, as a multiple of what was lent at once lately
FORGETTING = 0.999  # what is left of that peak after another loan; a step of training takes a few dozen


def _rounded(size: int) -> int:
    step = (1 << size.bit_length() - 1) // STEPS
    return -(-size // step) * step


class _Block:
    """Memory that begins with a huge page."""

    def __init__(self, size: int) -> None:
        whole = np.empty(size + HUGE_PAGE, dtype=np.uint8)
        begin = -whole.ctypes.data % HUGE_PAGE
        self.size, self.bytes = size, whole[begin : begin + size]


def in_huge_pages(size: int) -> Tensor:
    """Bytes without values yet, for what is kept."""
    return torch.from_numpy(_Block(size).bytes)


class _Loan:
    """What tensors in a block hold on to: with the last of them the block comes back."""

    def __init__(self, block: _Block, size: int, returned: deque[_Block]) -> None:
        self.__array_interface__ = block.bytes[:size].__array_interface__
        self._block, self._returned = block, returned

    def __del__(self) -> None:
        self._returned.append(self._block)  # no more than this: it may run at any time, in any thread


class Blocks:
    """Lends memory to tensors, and what came back to the next. Several threads may use it."""

    def __init__(self) -> None:
        self._lock, self._returned = Lock(), deque[_Block]()
        self._free: list[_Block] = []  # those that came back first, first
        self._lent = self._peak = 0.0  # bytes

    def lend(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An array on the CPU without values yet."""
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        with self._lock:
            loan = _Loan(self._take(_rounded(size)), size, self._returned)
        memory = torch.from_numpy(np.asarray(loan)).untyped_storage()
        # not a view of bytes, which autograd would not take for a function's result
        array = torch.empty(0, dtype=dtype, device="cpu")
        return array.set_(memory, 0, tuple(shape))  # pyright: ignore[reportCallIssue]

    def _take(self, size: int) -> _Block:
        while self._returned:
            self._free.append(self._returned.popleft())
            self._lent -= self._free[-1].size
        block = self._fitting(size) or _Block(size)
        self._lent += size
        return block

    def _fitting(self, size: int) -> _Block | None:
        self._peak = max(FORGETTING * self._peak, self._lent + size)
        for place in reversed(range(len(self._free))):
            if self._free[place].size == size:
                return self._free.pop(place)
        while self._free and self._lent + size + sum(block.size for block in self._free) > MOST_KEPT * self._peak:
            self._free.pop(0)
        return None

    def unlock(self) -> None:
        """In a forked child: another thread may have held the lock, and is not there to let go."""
        self._lock = Lock()


_blocks = Blocks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_blocks.unlock)


def large(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An array without values yet, for what is about as large in the next step."""
    return _blocks.lend(shape, dtype) if device.type == "cpu" else torch.empty(tuple(shape), dtype=dtype, device=device)
