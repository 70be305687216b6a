"""Work on several cores: the two directions of a block, above all; blocks side by side where there are more cores."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import chain, islice
from threading import Barrier
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def _one_thread_each() -> None:
    torch.get_num_threads()  # a thread takes over torch's remembered setting once: let that be before the next line
    torch.set_num_threads(1)


@lru_cache(maxsize=1)
def _workers() -> ThreadPoolExecutor:
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(2, thread_name_prefix="elmokit-direction", initializer=_one_thread_each)
    both_started = Barrier(2)
    for future in [pool.submit(both_started.wait) for _ in range(2)]:
        future.result()
    # torch remembers the last setting for threads to come: give it back its own
    torch.set_num_threads(threads)
    return pool


def _after_fork() -> None:
    """A forked child has the pool's object, but none of its threads; nor do OpenMP's survive, so it keeps to one."""
    _workers.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def on_both_cores(run: Callable[[int], None], device: torch.device) -> None:
    """run(0) and run(1) on two cores where there are two; each then computes with one thread."""
    if device.type != "cpu" or torch.get_num_threads() < 2:
        for half in range(2):
            run(half)
        return
    inference = torch.is_inference_mode_enabled()

    def run_without_graph(half: int) -> None:
        with torch.inference_mode(inference), torch.no_grad():
            run(half)

    for future in [_workers().submit(run_without_graph, half) for half in range(2)]:
        future.result()


def side_by_side(run: Callable[[Item], Result], items: Iterable[Item], device: torch.device) -> Iterator[Result]:
    """run(item) of each item, in order; on a CPU with more than two cores on all of them, an item on each.

    As many items are taken ahead of the one that is waited for as there are cores. One alone has the cores to itself.
    """
    threads, items = torch.get_num_threads(), iter(items)
    first = list(islice(items, 2)) if device.type == "cpu" and threads > 2 else []
    if len(first) < 2:
        yield from map(run, chain(first, items))
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="elmokit-block", initializer=_one_thread_each) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in chain(first, items):
                waiting.append(pool.submit(run, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            torch.set_num_threads(threads)  # torch remembers the last setting for threads to come
            for future in waiting:
                future.cancel()
