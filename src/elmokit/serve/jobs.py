"""Work other than embedding, one job at a time: long texts, searches, word maps, the language model, task models.

Such a job may take seconds. On a thread of its own it shares the processor with embedding, but no request for vectors
waits behind it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from elmokit.serve.errors import RequestError

Item = TypeVar("Item")

RETRY_AFTER = 2  # seconds, about as long as a job takes


class Abandoned(Exception):
    """Nobody waits for the job's result any more."""


class Job:
    """Tells a running job whether its result is still wanted."""

    def __init__(self) -> None:
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        self._abandoned.set()

    def check(self) -> None:
        """Raise `Abandoned` if nobody waits for the job any more."""
        if self._abandoned.is_set():
            raise Abandoned

    def while_wanted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items; raises `Abandoned` as soon as the job is abandoned."""
        for item in items:
            self.check()
            yield item


class JobQueue:
    """A thread that runs jobs in the order of their arrival. All methods are for the thread of the event loop."""

    def __init__(self, max_waiting: int = 32, name: str = "elmokit-jobs") -> None:
        """Start a thread named `name`; the queue refuses jobs while `max_waiting` of them wait or run."""
        self.max_waiting, self.waiting = max_waiting, 0
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[Job], Any]) -> asyncio.Future[Any]:
        """Queue a job.

        Args:
            function: The job, called with its `Job`.

        Returns:
            A future of its result. Cancelling it removes the job from the queue or, if it runs already, ends it at the
            next `Job.check`.

        Raises:
            RequestError: The queue is full.
        """
        if self.waiting >= self.max_waiting:
            raise RequestError("overloaded", "too many requests are waiting: try again later", RETRY_AFTER)
        job, loop, submitted = Job(), asyncio.get_running_loop(), Future[Any]()
        self.waiting += 1
        submitted.add_done_callback(lambda _: self._finish_in(loop))
        result = asyncio.wrap_future(submitted)
        result.add_done_callback(lambda future: job.abandon() if future.cancelled() else None)
        self._jobs.put((submitted, partial(function, job)))
        return result

    def close(self, timeout: float = 1.0) -> bool:
        """End the thread after the jobs that wait; returns whether it has ended within `timeout` seconds.

        A job that was abandoned may go on for a long time, and nothing can stop it.
        """
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _finish_in(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # an abandoned job may end when the server has ended, and its loop is closed
            loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self.waiting -= 1

    def _work(self) -> None:
        while next_job := self._jobs.get():
            future, function = next_job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del next_job, future, function  # not kept until the next job comes
