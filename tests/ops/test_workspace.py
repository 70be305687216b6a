"""Blocks of memory: of one array at a time, and of another when none is in it any more."""

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.ops.autograd import retains_graph
from elmokit.ops.workspace import HUGE_PAGE, MAX_KEPT, MIN_CACHED, CachingAllocator, allocate

LARGE = (MIN_CACHED // 4,)


def kept(blocks: CachingAllocator) -> int:
    """Bytes that nobody uses."""
    return sum(block.size for block in [*blocks._free, *blocks._released])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(3, 5), (2, 0, 4), (1000, 1100), (3, 1 << 20)])
def test_an_array_has_its_shape_and_type(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    array = allocate(shape, dtype).fill_(7)
    assert array.shape == shape and array.dtype == dtype and array.is_contiguous() and bool((array == 7).all())
    assert array.numel() * array.itemsize < MIN_CACHED or array.data_ptr() % HUGE_PAGE == 0
    assert not array._is_view()


def test_memory_comes_back_with_the_last_array_in_it() -> None:
    blocks = CachingAllocator()
    array = blocks.allocate(LARGE, torch.float32)
    address, view = array.data_ptr(), array[5:9]
    del array
    assert blocks.allocate(LARGE, torch.float32).data_ptr() != address
    view.fill_(3)
    others = [blocks.allocate(LARGE, torch.float32).zero_() for _ in range(3)]
    assert bool((view == 3).all()) and address not in [other.data_ptr() for other in others]
    del view
    assert blocks.allocate(LARGE, torch.float32).data_ptr() == address


def test_a_numpy_array_keeps_its_memory_too() -> None:
    blocks = CachingAllocator()
    values = blocks.allocate(LARGE, torch.float32).fill_(1).numpy()
    gc.collect()
    blocks.allocate(LARGE, torch.float32).fill_(2)
    assert (values == 1).all()


@pytest.mark.parametrize(("share", "is_the_same"), [(1.0, True), (0.75, True), (0.5, True), (0.4, False)])
def test_a_free_block_is_given_to_an_array_of_at_least_half_its_size(share: float, is_the_same: bool) -> None:
    blocks = CachingAllocator()
    blocks.allocate((8 * MIN_CACHED,), torch.uint8)
    _array = blocks.allocate((int(share * 8 * MIN_CACHED),), torch.uint8)
    assert (blocks._allocated == 8 * MIN_CACHED) == is_the_same


def test_little_more_is_kept_than_was_ever_in_use() -> None:
    blocks, generator = CachingAllocator(), np.random.default_rng(0)
    most = 0
    for _ in range(200):
        arrays = [
            blocks.allocate((int(size),), torch.uint8)
            for size in generator.integers(MIN_CACHED, 20 * MIN_CACHED, size=3)
        ]
        most = max(most, sum(array.numel() for array in arrays))
        del arrays
        assert kept(blocks) <= MAX_KEPT * most * 1.125  # sizes are rounded up to an eighth more


def test_a_peak_is_forgotten() -> None:
    blocks = CachingAllocator()
    blocks.allocate((100 * MIN_CACHED,), torch.uint8)
    assert kept(blocks) >= 100 * MIN_CACHED
    for _ in range(9000):
        blocks.allocate((MIN_CACHED,), torch.uint8)
    assert kept(blocks) <= 2 * MIN_CACHED


def test_memory_of_a_repeated_step_is_not_released_within_it() -> None:
    """The peak comes once in a step, and decays until the next one."""
    blocks = CachingAllocator()

    def step() -> set[int]:
        arrays = [blocks.allocate((20 * MIN_CACHED,), torch.uint8) for _ in range(3)]
        addresses = {array.data_ptr() for array in arrays}
        del arrays
        return addresses | {blocks.allocate((MIN_CACHED,), torch.uint8).data_ptr() for _ in range(100)}

    first = step()
    assert all(step() == first for _ in range(20))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_can_take_memory() -> None:
    code = """if True:
        import os, torch
        from elmokit.ops import workspace
        workspace._allocator._lock.acquire()
        child = os.fork()
        if child == 0:
            array = workspace.allocate((1 << 20,), torch.float32).fill_(3)
            os._exit(0 if float(array.sum()) == 3 * (1 << 20) else 1)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_threads_never_share_an_array() -> None:
    blocks = CachingAllocator()

    def use(mark: int) -> bool:
        same = True
        for _ in range(200):
            array: Tensor = blocks.allocate(LARGE, torch.int64).fill_(mark)
            same &= bool((array == mark).all())
        return same

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(8)))


def test_a_pass_knows_whether_its_retains_graph() -> None:
    seen = []
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: seen.append(retains_graph()))
    y.backward(retain_graph=True)
    y.backward()
    assert seen == [True, False]
