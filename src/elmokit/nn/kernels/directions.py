"""Work on several cores: the two directions of a block, above all, and several blocks at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, islice
from threading import Barrier, Lock, local
from types import EllipsisType
from typing import TypeAlias, TypeVar, cast

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
Direction: TypeAlias = int | EllipsisType  # which part is taken of tensors that have one for each direction
BOTH = ...


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


class _OfThread(local):
    """What a thread was given before `_torch_on_one_core`; None outside of it."""

    threads: int | None = None


_of_thread = _OfThread()


def _num_threads() -> int:
    return _of_thread.threads or torch.get_num_threads()


@contextmanager
def _torch_on_one_core() -> Iterator[None]:
    """What this thread leaves to torch is computed on one core, what is here still on all that it was given.

    While both cores are at work a second thread of torch's is in their way: after each of its operations OpenMP keeps
    it busy for some milliseconds, waiting for the next one. That was a tenth of the time of embedding.
    """
    threads = _of_thread.threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _of_thread.threads = None
        torch.set_num_threads(threads)


def begin_on_both_cores(
    run: Callable[[int], None], device: torch.device, then: Callable[[], Result]
) -> Callable[[], Result]:
    """As `on_both_cores`, and after both then(); comes back at once where there are two: with a function that waits.

    then() runs on the core that is ready last, while the other one may go on with what is begun next.
    """
    if device.type != "cpu" or _num_threads() < 2:
        for half in range(2):
            run(half)
        made = then()
        return lambda: made
    inference, one_is_ready = torch.is_inference_mode_enabled(), Lock()

    def run_without_graph(half: int) -> Result | None:
        with torch.inference_mode(inference), torch.no_grad():
            run(half)
            return None if one_is_ready.acquire(blocking=False) else then()

    futures = [_workers().submit(run_without_graph, half) for half in range(2)]

    def wait() -> Result:
        first, second = (future.result() for future in futures)
        return cast(Result, second if first is None else first)

    return wait


def _nothing() -> None:
    pass


def on_both_cores(run: Callable[[int], None], device: torch.device) -> None:
    """run(0) and run(1) on two cores where there are two; each then computes with one thread."""
    begin_on_both_cores(run, device, _nothing)()


def each_direction(run: Callable[[Direction], None], device: torch.device) -> None:
    """Each direction on a core of the CPU; elsewhere both at once, whose products a GPU starts and computes as one."""
    if device.type == "cpu":
        on_both_cores(run, device)
    else:
        run(BOTH)


def _each_begun_early(begin: Callable[[Item], Callable[[], Result]], items: Iterable[Item]) -> Iterator[Result]:
    finish: Callable[[], Result] | None = None
    for item in items:
        with _torch_on_one_core():
            finish_next = begin(item)
            found = finish() if finish is not None else None
        if finish is not None:
            yield cast(Result, found)
        finish = finish_next
    if finish is not None:
        yield finish()


def side_by_side(
    begin: Callable[[Item], Callable[[], Result]], items: Iterable[Item], device: torch.device, comes_back_early: bool
) -> Iterator[Result]:
    """begin(item)() of each item, in order, on all cores of a CPU.

    Where begin() comes back before its work is done, on two cores or a GPU, an item begins before the one ahead of it
    is finished, so that no core waits for the other, nor a GPU for the CPU. On more cores each takes an item.

    As many items are taken ahead of the one that is waited for as there are cores. One alone has the cores to itself.
    """
    threads, items = torch.get_num_threads(), iter(items)
    if comes_back_early and (device.type != "cpu" or threads == 2):
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
