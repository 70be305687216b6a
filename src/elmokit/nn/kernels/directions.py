"""Work on several cores: the two directions of a block, above all, and several blocks at a time."""

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


def _nothing() -> None:
    pass


def begin_on_both_cores(run: Callable[[int], None], device: torch.device) -> Callable[[], None]:
    """As `on_both_cores`, but comes back at once where there are two: with a function that waits for both."""
    if device.type != "cpu" or torch.get_num_threads() < 2:
        for half in range(2):
            run(half)
        return _nothing
    inference = torch.is_inference_mode_enabled()

    def run_without_graph(half: int) -> None:
        with torch.inference_mode(inference), torch.no_grad():
            run(half)

    futures = [_workers().submit(run_without_graph, half) for half in range(2)]

    def wait() -> None:
        for future in futures:
            future.result()

    return wait


def on_both_cores(run: Callable[[int], None], device: torch.device) -> None:
    """run(0) and run(1) on two cores where there are two; each then computes with one thread."""
    begin_on_both_cores(run, device)()


def _each_begun_early(begin: Callable[[Item], Callable[[], Result]], items: Iterable[Item]) -> Iterator[Result]:
    finish: Callable[[], Result] | None = None
    for item in items:
        finish_next = begin(item)
        if finish is not None:
            yield finish()
        finish = finish_next
    if finish is not None:
        yield finish()


def side_by_side(
    begin: Callable[[Item], Callable[[], Result]], items: Iterable[Item], device: torch.device
) -> Iterator[Result]:
    """begin(item)() of each item, in order, on all cores of a CPU.

    On two of them an item begins before the one ahead of it is finished, so that neither core waits for the other; on
    more of them each takes an item of its own.

    As many items are taken ahead of the one that is waited for as there are cores. One alone has the cores to itself.
    """
    threads, items = torch.get_num_threads(), iter(items)
    if device.type == "cpu" and threads == 2:
        yield from _each_begun_early(begin, items)
        return
    first = list(islice(items, 2)) if device.type == "cpu" and threads > 2 else []
    if len(first) < 2:
        yield from (begin(item)() for item in chain(first, items))
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="elmokit-block", initializer=_one_thread_each) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in chain(first, items):
                waiting.append(pool.submit(lambda item=item: begin(item)()))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            torch.set_num_threads(threads)  # torch remembers the last setting for threads to come
            for future in waiting:
                future.cancel()
