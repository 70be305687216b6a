"""Work on any number of threads: chunks of a loop, the two stacks of a biLM, and batches in a pipeline.

As many threads are used as PyTorch would use (`torch.get_num_threads()` of the caller, which this never changes).
Tasks run on threads of our own, each of which PyTorch treats as single-threaded. A caller that waits may be
interrupted while its tasks go on: a task holds what it reads and writes, so nothing is freed under it.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from functools import cache, partial
from itertools import chain, islice
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
CPU = torch.device("cpu")


def _on_new_thread(task: Callable[[], Result]) -> Result:
    """The result of a task that cannot fail, run on a thread that ends with it."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(task()))
    thread.start()
    thread.join()
    return results[0]


class _Pool:
    """A number of threads that run tasks in the order in which they were submitted."""

    def __init__(self, size: int, computes: bool) -> None:
        self._computes = computes
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        # PyTorch remembers the last setting for threads that begin later. That of the caller may be another one: a pool
        # may be created on a thread of a pool.
        remembered = _on_new_thread(torch.get_num_threads)
        ready = threading.Barrier(size + 1)
        self._threads = [
            threading.Thread(target=self._work, args=(ready,), name=f"elmokit-{number}", daemon=True)
            for number in range(size)
        ]
        for thread in self._threads:
            thread.start()
        try:
            ready.wait()
        finally:
            _on_new_thread(partial(torch.set_num_threads, remembered))

    def _work(self, ready: threading.Barrier) -> None:
        torch.get_num_threads()  # a new thread adopts the remembered setting at its first call: before the next line
        torch.set_num_threads(1)
        _of_thread.pool = self if self._computes else None
        ready.wait()
        while (submitted := self._tasks.get()) is not None:
            future, task = submitted
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except BaseException as error:
                    future.set_exception(error)
            del submitted, future, task  # or what the task holds would be kept until the next one comes

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        self._tasks.put((future, task))
        return future

    def close(self) -> None:
        """Cancel the tasks that have not begun, and wait for those that have."""
        with suppress(Empty):
            while (submitted := self._tasks.get_nowait()) is not None:
                submitted[0].cancel()
                submitted[0].set_running_or_notify_cancel()  # or who waits for it would wait on
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()


class _OfThread(threading.local):
    threads: int | None = None  # how many the work of this thread may use; None: as many as PyTorch would
    pool: _Pool | None = None  # the pool for computing to which this thread belongs, if any


_of_thread = _OfThread()
_pools: dict[tuple[str, int], _Pool] = {}
_pools_lock = threading.Lock()


def _pool(kind: str, size: int) -> _Pool:
    with _pools_lock:
        if (kind, size) not in _pools:
            _pools[kind, size] = _Pool(size, computes=kind == "work")
        return _pools[kind, size]


def _after_fork() -> None:
    """A forked child has none of the pools' threads, nor OpenMP's. If elmokit was used, PyTorch computes with one."""
    global _pools_lock
    _pools_lock = threading.Lock()
    if _pools:
        _pools.clear()
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    """Wait for tasks of interrupted calls: Python stops their threads when it ends, which within PyTorch aborts the
    process."""
    for kind in ("items", "work"):  # in this order: items wait for work
        for key in list(_pools):
            if key[0] == kind:  # forgotten first: what is still called at exit gets a pool that runs tasks
                _pools.pop(key).close()


atexit.register(_at_exit)


def num_threads() -> int:
    """The number of threads that work started by this thread may use."""
    return _of_thread.threads or torch.get_num_threads()


def _in_the_same_mode(
    task: Callable[[], Result], threads: int, records_gradients: bool = False
) -> Callable[[], Result]:
    """The task, to run with the caller's modes of PyTorch (except for gradients) and this number of threads."""
    inference = torch.is_inference_mode_enabled()
    autocast = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    modes = [(device, torch.get_autocast_dtype(device)) for device in autocast]

    def run() -> Result:
        before = _of_thread.threads
        _of_thread.threads = threads
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(records_gradients), ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(torch.autocast(*mode))
                return task()
        finally:
            _of_thread.threads = before

    return run


def _finished(futures: list[Future[Result]]) -> list[Result]:
    """All results; if a task fails, the others have ended before its error is raised."""
    try:
        wait(futures)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return [future.result() for future in futures]


def _sees_operations() -> bool:
    """Whether the caller observes PyTorch's operations on its own thread, as FLOP counters do."""
    return any(getattr(torch._C, f"_len_torch_{kind}_stack", lambda: 0)() for kind in ("dispatch", "function"))


def run_side_by_side(tasks: list[Callable[[], Result]], device: torch.device = CPU) -> list[Result]:
    """Run tasks without gradients, on several threads if this one may use several, and return their results in order.

    Each task may use its share of the threads for loops of its own. For another device than the CPU, and where the
    caller observes operations, the tasks run one after another on this thread.
    """
    threads = num_threads() if device.type == "cpu" else 1
    if threads < 2 or len(tasks) < 2 or _sees_operations():
        with torch.no_grad():
            return [task() for task in tasks]
    share = -(-threads // len(tasks))
    own = [_in_the_same_mode(task, share) for task in tasks]
    if (pool := _of_thread.pool) is None:
        return _finished([_pool("work", threads).submit(task) for task in own])
    others = [pool.submit(task) for task in own[1:]]
    try:
        results = [own[0]()]
        for future, task in zip(others, own[1:], strict=True):
            # Run here each task that no other thread has begun: threads that wait for each other would wait forever.
            results.append(task() if future.cancel() else future.result())
    except BaseException:
        wait([future for future in others if not future.cancel()])  # they may write to the same arrays
        raise
    return results


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value and in its tuples and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def run_on_streams(tasks: Sequence[partial[Result]], device: torch.device) -> list[Result]:
    """Run tasks side by side on a CUDA device: the first on the caller's stream, each other one on a stream of its own.

    The caller's thread issues all of them, and records gradients if it does so: PyTorch runs a backward pass on the
    streams of the forward pass. What is shared between streams is their arguments and their results, which are
    recorded: memory is given to another tensor only when all streams are through with it.
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


def _has_modes() -> bool:
    """Whether the caller observes operations, or what they save for gradients, as checkpointing does."""
    autograd = getattr(torch._C, "_autograd", None)
    hooks = getattr(autograd, "_top_saved_tensors_default_hooks", lambda _: None)(False)
    return hooks is not None or _sees_operations()


def run_on_own_thread(task: Callable[[], Result], device: torch.device = CPU) -> Result:
    """Run a task on a thread of the pool, all of whose threads it may use, and return its result.

    The task records gradients if the caller does. It runs on the caller's thread where that observes operations.

    PyTorch's own operations are single-threaded in the pool. On the caller's thread each would wait, busily, until
    OpenMP's other threads have done their share: if another process has one of the cores, for a whole time slice.
    """
    if device.type != "cpu" or num_threads() < 2 or _of_thread.pool is not None or _has_modes():
        return task()
    own = _in_the_same_mode(task, num_threads(), torch.is_grad_enabled())
    return _finished([_pool("work", num_threads()).submit(own)])[0]


def parallel_for(work: Callable[[int], None], chunks: int) -> None:
    """Call work(0), ..., work(chunks - 1), in any order, without gradients. A thread takes the next chunk when it is
    free."""
    numbers = iter(range(chunks))

    def run() -> None:
        for number in numbers:
            work(number)

    run_side_by_side([run] * min(chunks, num_threads()))


def parallel_rows(work: Callable[[slice], None], rows: int, size: int, device: torch.device = CPU) -> None:
    """Call work(slice) for slices of `size` rows, as `parallel_for` does; off the CPU one slice has all of them."""
    size = size if device.type == "cpu" else max(rows, 1)
    parallel_for(lambda number: work(slice(number * size, min((number + 1) * size, rows))), max(1, -(-rows // size)))


def run_ahead(task: Callable[[], Result]) -> Future[Result]:
    """Begin a task, such as preparing the next batch, on a thread beside the caller's; one such task runs at a time."""
    return _pool("items", 1).submit(_in_the_same_mode(task, 1))


def _first_result(waiting: deque[Future[Result]]) -> Result:
    """Remove the first task once it has a result: until then, an interrupted `overlapped` waits for it."""
    result = waiting[0].result()
    waiting.popleft()
    return result


def overlapped(process: Callable[[Item], Result], items: Iterable[Item], ahead: int) -> Generator[Result, None, None]:
    """Yield process(item) for each item, in order; `ahead` of them run at a time, each on a thread of its own.

    So no core waits for the last rows of an item, nor a GPU for the CPU. Items are taken as they are needed. If the
    caller stops early, items that have not begun are cancelled, and the others are waited for.
    """
    if ahead < 2:
        yield from map(process, items)
        return
    items, threads, waiting = iter(items), num_threads(), deque[Future[Result]]()
    first = list(islice(items, 2))
    if len(first) < 2:
        for item in first:
            yield run_on_own_thread(partial(process, item))
        return
    pool = _pool("items", ahead)
    try:
        for item in chain(first, items):
            waiting.append(pool.submit(_in_the_same_mode(lambda item=item: process(item), threads)))
            del item
            if len(waiting) == ahead:
                yield _first_result(waiting)
        while waiting:
            yield _first_result(waiting)
    finally:
        for future in waiting:
            future.cancel()
        wait(waiting)
