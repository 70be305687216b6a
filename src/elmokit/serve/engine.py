"""What computes: a thread that embeds requests of many clients in batches, and threads for other
jobs.

The engine's queue is bounded in words, which is what the time of a batch depends on. A batch takes
whatever has come in while the one before it was computed, so that batches grow with the load and a
lone request never waits for others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from elmokit.data import sentence_batches
from elmokit.embed import Embedder, Pooling
from elmokit.runtime import release_freed_memory
from elmokit.serve.schemas import RequestError
from elmokit.settings import StatePolicy
from elmokit.threads import limited_threads, thread_pool

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Output = tuple[
    str | int, Pooling | None
]  # of which layers; for each word or, with a pooling, for each sentence

LARGE_FACTOR = 4
RETRY_AFTER = "2"  # seconds, about the time to answer half of a full queue
# Seconds between returns of freed memory to the system. Batches of all sizes leave gaps that malloc
# keeps: a hundred megabytes after a few hundred batches of en-small.
SECONDS_TO_RELEASE = 10.0


def overloaded() -> RequestError:
    """The error for a request that finds a queue full."""
    message = "too many requests are waiting: try again later"
    return RequestError(429, "overloaded", message, {"retry-after": RETRY_AFTER})


# --- Vectors --------------------------------------------------------------------------------------


def cost(sentences: Iterable[Sequence[str]]) -> int:
    """The number of words of sentences, plus one for each sentence, so that empty ones are not
    free.
    """
    return sum(len(sentence) + 1 for sentence in sentences)


@dataclass(eq=False)
class Waiting:
    """A request in the queue in parts, each at most a batch; and the future of its vectors, one for
    each sentence.
    """

    parts: deque[list[Sequence[str]]]
    count: int  # of its sentences
    output: Output
    vectors: asyncio.Future[list[np.ndarray]]
    results: list[np.ndarray] = field(default_factory=list)  # of the parts that were embedded


Part = tuple[Waiting, list[Sequence[str]]]


class Engine:
    """A thread that embeds what is submitted to it, in batches. All methods are for the thread of
    the event loop.

    Args:
        embedder: The model. Results do not depend on the other requests in a batch.
        queue_words: Requests are refused while those that wait have so many words in their next
            parts, and large ones while there are `LARGE_FACTOR` times as many in all parts.
        batch_words: About the maximum `cost` of a batch. A larger request is embedded in parts, one
            after each turn of the others.
        observe: Called with the `cost` of each batch.
    """

    def __init__(
        self,
        embedder: Embedder,
        queue_words: int,
        batch_words: int,
        observe: Callable[[int], object],
    ) -> None:
        self._embedder, self._observe = embedder, observe
        self._state: StatePolicy = embedder.model.single_sentence_state
        self._queue_words, self._batch_words = queue_words, batch_words
        self._waiting: deque[Waiting] = deque()  # in the order of arrival
        self.words_waiting = self.words_ahead = (
            0  # `cost` of the queue, and of the parts before a new request's turn
        )
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="elmokit-engine", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether every request is refused."""
        return self.words_ahead >= self._queue_words

    def submit(
        self, sentences: list[Sequence[str]], output: Output
    ) -> asyncio.Future[list[np.ndarray]]:
        """Queue sentences to be embedded.

        Args:
            sentences: Lists of tokens.
            output: The vectors to compute.

        Returns:
            A future of an array for each sentence: (2D,) with a pooling, else (T, 2D), or (L+1, T,
            2D) for all layers. If it is cancelled, its turn in the queue is skipped.

        Raises:
            RequestError: The queue is full.
        """
        parts = deque(sentence_batches(sentences, self._batch_words))
        if self.is_full or (
            len(parts) > 1 and self.words_waiting >= LARGE_FACTOR * self._queue_words
        ):
            raise overloaded()
        request = Waiting(parts, len(sentences), output, asyncio.get_running_loop().create_future())
        with self._changed:
            self._waiting.append(request)
            self.words_waiting += cost(sentences)
            self.words_ahead += cost(parts[0])
            self._changed.notify()
        return request.vectors

    def close(self) -> None:
        """Answer the requests that wait, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _next_batch(self) -> list[Part]:
        """Wait for requests, and take the oldest that fit into a batch, at least one part of
        one.
        """
        batch: list[Part] = []
        words = 0
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            while self._waiting and (
                not batch or words + cost(self._waiting[0].parts[0]) <= self._batch_words
            ):
                request = self._waiting.popleft()
                part = request.parts.popleft()
                self.words_waiting -= cost(part)
                self.words_ahead -= cost(part)
                if request.vectors.done():  # cancelled, or failed
                    self.words_waiting -= sum(map(cost, request.parts))
                    continue
                batch.append((request, part))
                words += cost(part)
                if request.parts:
                    self._waiting.append(request)
                    self.words_ahead += cost(request.parts[0])
        return batch

    def _work(self) -> None:
        released = time.monotonic()
        while self._waiting or not self._is_closed:
            by_output: dict[Output, list[Part]] = {}
            for request, part in self._next_batch():
                by_output.setdefault(request.output, []).append((request, part))
            for parts in by_output.values():
                self._observe(sum(cost(part) for _, part in parts))
                self._answer(parts)
            if time.monotonic() - released > SECONDS_TO_RELEASE:
                release_freed_memory()
                released = time.monotonic()

    def _answer(self, parts: list[Part]) -> None:
        """Embed parts of requests for the same output, and resolve futures; an error affects only
        its own request.
        """
        sentences = [sentence for _, part in parts for sentence in part]
        results: list[Any]
        first, _ = parts[0]
        try:
            layers, pooling = first.output
            if pooling is None:
                vectors = iter(self._embedder.embed(sentences, layers, self._state))
            else:
                vectors = iter(
                    self._embedder.encode(
                        sentences, pooling.name, pooling.normalize, layers, self._state
                    )
                )
            results = [[next(vectors) for _ in part] for _, part in parts]
        except Exception as error:
            if len(parts) > 1:
                for each in parts:
                    self._answer([each])
                return
            logger.exception("a request could not be embedded")
            results = [error]

        def resolve() -> None:  # all at once: waking the event loop costs more than an answer
            for (request, _), result in zip(parts, results, strict=True):
                if request.vectors.done():  # cancelled, or failed
                    continue
                if isinstance(result, Exception):
                    request.vectors.set_exception(result)
                    continue
                request.results += result
                if len(request.results) == request.count:
                    request.vectors.set_result(request.results)

        with suppress(
            RuntimeError
        ):  # the server was stopped by a second signal, and the loop is closed
            first.vectors.get_loop().call_soon_threadsafe(resolve)


# --- Other work -----------------------------------------------------------------------------------


class Job(threading.Event):
    """Tells a running job, once it is set, that nobody waits for its result any more."""

    def check(self) -> None:
        """Raise `CancelledError` if the event is set."""
        if self.is_set():
            raise CancelledError

    def while_wanted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items; raises `CancelledError` as soon as the event is set."""
        for item in items:
            self.check()
            yield item


class JobQueue:
    """Threads for work that may take seconds: no request for vectors waits behind it, nor a short
    job behind long ones.

    A job that begins while there is no other may use all threads for computing; others compute on
    their own.

    Args:
        kind: The name of the threads.
        max_waiting: Jobs are refused while so many of them wait or run.
        threads: How many short jobs run at a time, and besides them long ones.
    """

    def __init__(self, kind: str, max_waiting: int, threads: int) -> None:
        self._kind, self._max_waiting, self._threads = kind, max_waiting, threads
        self.unfinished: set[Job] = set()  # those that wait or run

    def submit(self, function: Callable[[Job], Any], is_long: bool = False) -> asyncio.Future[Any]:
        """Queue a job.

        Args:
            function: The job, called with its `Job`.
            is_long: It waits for other long jobs only.

        Returns:
            A future of its result. Cancelling it removes the job from the queue or, if it runs
            already, ends it at the next `Job.check`.

        Raises:
            RequestError: The queue is full.
        """
        if len(self.unfinished) >= self._max_waiting:
            raise overloaded()
        job = Job()
        pool = thread_pool(f"{'long' if is_long else 'short'} {self._kind}", self._threads)
        self.unfinished.add(
            job
        )  # before it can begin, so that it does not take itself for the only one
        submitted = pool.submit(self._run, function, job)
        submitted.add_done_callback(lambda _: self.unfinished.discard(job))
        result = asyncio.wrap_future(submitted)
        result.add_done_callback(lambda _: job.set())
        return result

    def _run(self, function: Callable[[Job], Any], job: Job) -> Any:
        with limited_threads(self._threads if len(self.unfinished) == 1 else 1, self._kind):
            return function(job)
