"""Blocks of memory: of one array at a time, and of another when none is in it any more."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from elmokit.ops.memory import HUGE_PAGE, MIN_CACHED, CachingAllocator, allocate

LARGE = (MIN_CACHED // 4,)


def kept(blocks: CachingAllocator) -> int:
    """Bytes that nobody uses."""
    return sum(block.size for block in [*blocks._free, *blocks._released])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(3, 5), (2, 0, 4), (1000, 1100), (3, 1 << 20)])
def test_an_array_has_its_shape_and_type(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    array = allocate(shape, dtype).fill_(7)
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.is_contiguous()
    assert bool((array == 7).all())
    assert array.numel() * array.itemsize < MIN_CACHED or array.data_ptr() % HUGE_PAGE == 0
    assert not array._is_view()


def test_memory_comes_back_with_the_last_array_in_it() -> None:
    blocks = CachingAllocator()
    array = blocks.allocate(LARGE, torch.float32)
    address = array.data_ptr()
    view = array[5:9]
    del array
    assert blocks.allocate(LARGE, torch.float32).data_ptr() != address
    view.fill_(3)
    others = [blocks.allocate(LARGE, torch.float32).zero_() for _ in range(3)]
    assert bool((view == 3).all())
    assert address not in [other.data_ptr() for other in others]
    del view
    assert blocks.allocate(LARGE, torch.float32).data_ptr() == address


def test_a_numpy_array_keeps_its_memory_too() -> None:
    blocks = CachingAllocator()
    values = blocks.allocate(LARGE, torch.float32).fill_(1).numpy()
    gc.collect()
    blocks.allocate(LARGE, torch.float32).fill_(2)
    assert (values == 1).all()


def test_a_peak_is_forgotten() -> None:
    blocks = CachingAllocator()
    blocks.allocate((100 * MIN_CACHED,), torch.uint8)
    assert kept(blocks) >= 100 * MIN_CACHED
    for _ in range(9000):
        blocks.allocate((MIN_CACHED,), torch.uint8)
    assert kept(blocks) <= 2 * MIN_CACHED


def test_threads_never_share_an_array() -> None:
    blocks = CachingAllocator()

    def use(mark: int) -> bool:
        same = True
        for _ in range(50):
            array: Tensor = blocks.allocate(LARGE, torch.int64).fill_(mark)
            same &= bool((array == mark).all())
        return same

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(8)))
