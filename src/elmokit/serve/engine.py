"""Dynamic batching: requests of many clients wait in one queue, and a thread embeds as many as fit into a batch.

The queue is bounded in words, which is what the time of a batch depends on. A batch takes whatever has come in while
the one before it was computed, so that batches grow with the load and a lone request never waits for others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import OutputSpec, Pooling
from elmokit.runtime import release_freed_memory
from elmokit.serve.errors import RequestError
from elmokit.settings import StatePolicy

logger = logging.getLogger(__name__)

RATE_SMOOTHING = 0.2  # weight of the last batch in the moving average of the speed
FIRST_RATE = 10_000.0  # words per second, until a batch has been measured
# Seconds between returns of freed memory to the system. Batches of all sizes leave gaps that malloc keeps: a hundred
# megabytes after a few hundred batches of en-small.
SECONDS_TO_RELEASE = 10.0


class Output(NamedTuple):
    """The vectors that a request asks for: of which layers, for each word or, with a pooling, for each sentence."""

    layers: str | int = "mix"
    pooling: Pooling | None = None


def cost(sentences: Iterable[Sequence[str]]) -> int:
    """The number of words of sentences, plus one for each sentence, so that empty ones are not free."""
    return sum(len(sentence) + 1 for sentence in sentences)


@dataclass(eq=False)
class Waiting:
    """A request in the queue, and the future of its vectors: an array for each sentence."""

    sentences: list[Sequence[str]]
    output: Output
    vectors: asyncio.Future[list[np.ndarray]]
    words: int
    submitted: float = field(default_factory=time.monotonic)


class BatchMeter(NamedTuple):
    """Callbacks: `waited` gets the seconds that each request has waited, `embedded` the `cost` of each batch."""

    waited: Callable[[float], None] = lambda seconds: None
    embedded: Callable[[int], None] = lambda words: None


class Engine:
    """A thread that embeds what is submitted to it, in batches. All methods are for the thread of the event loop."""

    def __init__(
        self, embedder: Embedder, queue_words: int = 65_536, batch_words: int = 4_096, meter: BatchMeter | None = None
    ) -> None:
        """Start the thread.

        Args:
            embedder: The model. Results do not depend on the other requests in a batch.
            queue_words: Maximum `cost` of the queue; a request that does not fit is refused, unless nothing waits.
            batch_words: Maximum `cost` of a batch; a larger request is a batch of its own.
            meter: Callbacks for measurements, called on the engine's thread.
        """
        self._embedder: Embedder = embedder
        self._state: StatePolicy = embedder.model.single_sentence_state
        self.queue_words, self._batch_words = queue_words, batch_words
        self._meter = meter or BatchMeter()
        self._waiting: dict[int, Waiting] = {}  # in the order of arrival
        self._words_waiting = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._rate = FIRST_RATE
        self._thread = threading.Thread(target=self._work, name="elmokit-engine", daemon=True)
        self._thread.start()

    @property
    def words_waiting(self) -> int:
        """The `cost` of the queue."""
        return self._words_waiting

    @property
    def is_full(self) -> bool:
        """Whether the queue accepts no request, however small."""
        return self._words_waiting >= self.queue_words

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs: before `close` it ends only through a bug."""
        return self._thread.is_alive()

    def overloaded(self) -> RequestError:
        """The error for a request that finds the queue full; `retry_after` is when it will be half empty."""
        seconds = max(1, math.ceil(self._words_waiting / 2 / self._rate))
        return RequestError("overloaded", "too many requests are waiting: try again later", seconds)

    def submit(self, sentences: list[Sequence[str]], output: Output) -> asyncio.Future[list[np.ndarray]]:
        """Queue sentences to be embedded.

        Args:
            sentences: Lists of tokens.
            output: The vectors to compute.

        Returns:
            A future of an array for each sentence: (2D,) with a pooling, else (T, 2D), or (T, L+1, 2D) for all layers.
            Cancelling it removes the request from the queue.

        Raises:
            RequestError: The queue is full.
        """
        words = cost(sentences)
        if self._words_waiting and self._words_waiting + words > self.queue_words:
            raise self.overloaded()
        request = Waiting(sentences, output, asyncio.get_running_loop().create_future(), words)
        request.vectors.add_done_callback(lambda future: self._remove(request) if future.cancelled() else None)
        with self._changed:
            self._waiting[id(request)] = request
            self._words_waiting += words
            self._changed.notify()
        return request.vectors

    def close(self) -> None:
        """Answer the requests that wait, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _remove(self, request: Waiting) -> None:
        with self._changed:
            if self._waiting.pop(id(request), None) is not None:
                self._words_waiting -= request.words

    def _next_batch(self) -> list[Waiting]:
        """Wait for requests and take the oldest that fit into a batch, at least one; none once the engine is closed."""
        batch: list[Waiting] = []
        words = 0
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            for request in self._waiting.values():
                if batch and words + request.words > self._batch_words:
                    break
                batch.append(request)
                words += request.words
            for request in batch:
                del self._waiting[id(request)]
            self._words_waiting -= words
        return batch

    def _work(self) -> None:
        released = time.monotonic()
        while self._run_batch(self._next_batch()):
            if time.monotonic() - released > SECONDS_TO_RELEASE:
                release_freed_memory()
                released = time.monotonic()

    def _run_batch(self, batch: list[Waiting]) -> bool:
        """Answer a batch; returns False for an empty one, which ends the thread."""
        began = time.monotonic()
        for request in batch:
            self._meter.waited(began - request.submitted)
        for requests in _by_output(batch):
            self._answer(requests)
        if words := sum(request.words for request in batch):
            self._meter.embedded(words)
            self._rate += RATE_SMOOTHING * (words / max(time.monotonic() - began, 1e-6) - self._rate)
        return bool(batch)

    def _answer(self, requests: list[Waiting]) -> None:
        """Embed requests for the same output, and resolve their futures; an error affects only its own request."""
        sentences = [sentence for request in requests for sentence in request.sentences]
        try:
            vectors = iter(self._embed(sentences, requests[0].output))
        except Exception as error:
            if len(requests) > 1:
                for request in requests:
                    self._answer([request])
                return
            logger.exception("a request could not be embedded")
            _in_its_loop(requests, [error])
            return
        _in_its_loop(requests, [[next(vectors) for _ in request.sentences] for request in requests])

    def _embed(self, sentences: list[Sequence[str]], output: Output) -> list[np.ndarray]:
        pipeline = self._embedder.pipeline
        batches = list(pipeline.sizes.split_evenly(sentences))
        spec = OutputSpec.of(pipeline.model, output.layers, output.pooling, "float32")
        vectors: list[np.ndarray] = []
        for batch, result in zip(batches, pipeline.embed_all(batches, spec, self._state), strict=True):
            (of_batch,) = result.vectors
            ends = np.cumsum(list(map(len, batch)))[:-1]
            vectors.extend(of_batch if output.pooling else np.split(of_batch, ends))
        return vectors


def _by_output(requests: list[Waiting]) -> list[list[Waiting]]:
    """Requests grouped by the vectors they ask for."""
    groups: dict[Output, list[Waiting]] = {}
    for request in requests:
        groups.setdefault(request.output, []).append(request)
    return list(groups.values())


def _in_its_loop(requests: list[Waiting], results: Sequence[list[np.ndarray] | Exception]) -> None:
    """Resolve futures on the thread of their event loop, all at once: waking the loop costs more than an answer."""

    def resolve() -> None:
        for request, result in zip(requests, results, strict=True):
            if request.vectors.done():
                continue  # cancelled meanwhile
            if isinstance(result, Exception):
                request.vectors.set_exception(result)
            else:
                request.vectors.set_result(result)

    try:
        requests[0].vectors.get_loop().call_soon_threadsafe(resolve)
    except RuntimeError:
        logger.warning("%d requests were not answered: their event loop is closed", len(requests))
