"""Runs chunks of a loop, the two stacks of a biLM, or batches of a pipeline on several threads.

As many threads are used as PyTorch would use (`torch.get_num_threads()` of the caller, which this
never changes). Tasks run on threads of our own, each of which PyTorch treats as single-threaded. A
caller that waits may be interrupted while its tasks go on: a task holds what it reads and writes,
so nothing is freed under it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import chain, islice
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
CPU = torch.device("cpu")


class _OfThread(threading.local):
    # limit for work started by this thread; None: PyTorch's setting
    threads: int | None = None
    group = ""  # pool namespace: groups never block each other
    # size of the "work" pool that this thread belongs to, if any
    pool_size: int | None = None


_of_thread = _OfThread()
_pools: dict[tuple[str, str, int], ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()


def _begin(pool_size: int | None) -> None:
    # a new thread adopts the remembered setting at its first call: before the next line
    torch.get_num_threads()
    torch.set_num_threads(1)
    _of_thread.pool_size = pool_size


def _on_new_thread(function: Callable[..., Result], *arguments: int) -> Result:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def thread_pool(kind: str, size: int) -> ThreadPoolExecutor:
    """The pool of `size` threads for "work", for "items" that wait for work, or another kind."""
    key = (_of_thread.group, kind, size)
    with _pools_lock:
        if key not in _pools:
            # PyTorch remembers the last setting for threads that begin later: all threads of the
            # pool begin now, and then the setting is restored. That of the caller may be another
            # one, on a thread of a pool.
            remembered, ready = _on_new_thread(torch.get_num_threads), threading.Barrier(size)
            pool = ThreadPoolExecutor(size, "elmokit", _begin, (size if kind == "work" else None,))
            wait([pool.submit(ready.wait) for _ in range(size)])
            _on_new_thread(torch.set_num_threads, remembered)
            _pools[key] = pool
        return _pools[key]


def _after_fork() -> None:
    """A forked child has none of the pools' threads, nor OpenMP's: PyTorch computes with one."""
    global _pools_lock
    _pools_lock = threading.Lock()
    if _pools:
        _pools.clear()
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def num_threads() -> int:
    """The number of threads that work started by this thread may use."""
    return _of_thread.threads or torch.get_num_threads()


@contextmanager
def limited_threads(number: int, group: str) -> Iterator[None]:
    """Within the `with` block, work that this thread starts uses `number` threads of a group."""
    before = _of_thread.threads, _of_thread.group
    _of_thread.threads, _of_thread.group = number, group
    try:
        yield
    finally:
        _of_thread.threads, _of_thread.group = before


def _in_the_same_mode(
    task: Callable[[], Result], threads: int, records_gradients: bool = False
) -> Callable[[], Result]:
    """Wrap a task to run with the caller's autocast/inference mode and a thread limit."""
    group, inference = _of_thread.group, torch.is_inference_mode_enabled()
    autocast = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    modes = [(device, torch.get_autocast_dtype(device)) for device in autocast]

    def run() -> Result:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(records_gradients),
            ExitStack() as stack,
        ):
            stack.enter_context(limited_threads(threads, group))
            for mode in modes:
                stack.enter_context(torch.autocast(*mode))
            return task()

    return run


def _finished(futures: list[Future[Result]]) -> list[Result]:
    """Wait for all tasks, then return their results or raise the first error."""
    try:
        wait(futures)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return [future.result() for future in futures]


def _is_observed() -> bool:
    """Whether the caller observes operations (FLOP counters) or saved tensors (checkpointing)."""
    hooks = getattr(
        getattr(torch._C, "_autograd", None), "_top_saved_tensors_default_hooks", lambda _: None
    )(False)
    return hooks is not None or any(
        getattr(torch._C, f"_len_torch_{kind}_stack", lambda: 0)()
        for kind in ("dispatch", "function")
    )


def run_side_by_side(tasks: list[Callable[[], Result]], device: torch.device = CPU) -> list[Result]:
    """Run tasks without gradients, on several threads if this one may use several, and return their
    results in order.

    Each task may use its share of the threads for loops of its own. For another device than the
    CPU, and where the caller observes operations, the tasks run one after another on this thread.
    """
    threads = num_threads() if device.type == "cpu" else 1
    if threads < 2 or len(tasks) < 2 or _is_observed():
        with torch.no_grad():
            return [task() for task in tasks]
    share = -(-threads // len(tasks))
    tasks = [_in_the_same_mode(task, share) for task in tasks]
    if (size := _of_thread.pool_size) is None:
        return _finished([thread_pool("work", threads).submit(task) for task in tasks])
    # This is a thread of the pool: it runs the first task, and waits for none that has not begun.
    first, *rest = tasks
    futures = [thread_pool("work", size).submit(task) for task in rest]
    try:
        results = [first()]
        for future, task in zip(futures, rest, strict=True):
            # Run here each task that no other thread has begun: threads that wait for each other
            # would wait forever.
            results.append(task() if future.cancel() else future.result())
    except BaseException:
        # They may write to the same arrays.
        wait([future for future in futures if not future.cancel()])
        raise
    return results


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value and in its tuples and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def run_on_streams(tasks: Sequence[partial[Result]], device: torch.device) -> list[Result]:
    """Run tasks side by side on a CUDA device: the first on the caller's stream, each other one on
    a stream of its own.

    The caller's thread issues all of them, and records gradients if it does so: PyTorch runs a
    backward pass on the streams of the forward pass. What is shared between streams is their
    arguments and their results, which are recorded: memory is given to another tensor only when all
    streams are through with it.
    """
    caller = torch.cuda.current_stream(device)
    streams = [caller, *(_side_stream(device, number) for number in range(1, len(tasks)))]
    for task, stream in zip(tasks[1:], streams[1:], strict=True):
        stream.wait_stream(caller)
        for tensor in _tensors(task.args):
            tensor.record_stream(stream)
    results = []
    for task, stream in zip(tasks, streams, strict=True):
        with torch.cuda.stream(stream):
            results.append(task())
    for stream, result in zip(streams[1:], results[1:], strict=True):
        caller.wait_stream(stream)
        for tensor in _tensors(result):
            tensor.record_stream(caller)
    return results


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def run_on_own_thread(task: Callable[[], Result], device: torch.device = CPU) -> Result:
    """Run a task on a thread of the pool, all of whose threads it may use, and return its result.

    The task records gradients if the caller does. It runs on the caller's thread where that
    observes operations.

    PyTorch's own operations are single-threaded in the pool. On the caller's thread each would
    wait, busily, until OpenMP's other threads have done their share: if another process has one of
    the cores, for a whole time slice.
    """
    if (
        device.type != "cpu"
        or num_threads() < 2
        or _of_thread.pool_size is not None
        or _is_observed()
    ):
        return task()
    task = _in_the_same_mode(task, num_threads(), torch.is_grad_enabled())
    return _finished([thread_pool("work", num_threads()).submit(task)])[0]


def parallel_for(work: Callable[[int], None], chunks: int) -> None:
    """Call work(0), ..., work(chunks - 1) without gradients; a free thread takes the next chunk."""
    numbers = iter(range(chunks))

    def run() -> None:
        for number in numbers:
            work(number)

    run_side_by_side([run] * min(chunks, num_threads()))


def parallel_rows(
    work: Callable[[slice], None], rows: int, size: int, device: torch.device = CPU
) -> None:
    """Call work(slice) for slices of `size` rows, as `parallel_for`; off the CPU for all rows."""
    size = size if device.type == "cpu" else max(rows, 1)
    parallel_for(
        lambda number: work(slice(number * size, min((number + 1) * size, rows))),
        max(1, -(-rows // size)),
    )


def run_ahead(task: Callable[[], Result]) -> Future[Result]:
    """Start a task on a background thread, one at a time, such as preparing the next batch."""
    return thread_pool("items", 1).submit(_in_the_same_mode(task, 1))


def overlapped(
    process: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Generator[Result, None, None]:
    """Yield process(item) for each item, in order; `ahead` of them run at a time, each on a thread
    of its own.

    So no core waits for the last rows of an item, nor a GPU for the CPU. Items are taken as they
    are needed. If the caller stops early, items that have not begun are cancelled, and the others
    are waited for.
    """
    if ahead < 2:
        yield from map(process, items)
        return
    items = iter(items)
    first = list(islice(items, 2))
    if len(first) < 2:  # the threads of "items" would only hand it on
        yield from (run_on_own_thread(partial(process, item)) for item in first)
        return
    items = chain(first, items)
    del first  # or it would keep both items until the end
    pool, threads, waiting = thread_pool("items", ahead), num_threads(), deque[Future[Result]]()
    try:
        for item in items:
            waiting.append(pool.submit(_in_the_same_mode(partial(process, item), threads)))
            del item
            if len(waiting) == ahead:
                yield waiting[0].result()
                waiting.popleft()
        while waiting:
            yield waiting[0].result()
            waiting.popleft()
    finally:
        for future in waiting:
            future.cancel()
        wait(waiting)
