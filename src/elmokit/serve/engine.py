"""Dynamic batching: requests of many clients are embedded together, on one thread.

A batch takes whatever has come in while the one before it was computed, so that batches grow with
the load and a lone request never waits for others. The queue is bounded in words, which is what the
time of a batch depends on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elmokit.data import chunks
from elmokit.embed import Embedder, Pooling
from elmokit.runtime import release_freed_memory
from elmokit.serve.schemas import overloaded

logger = logging.getLogger(__name__)
Sentences = list[Sequence[str]]
# The layers, and the pooling of a sentence's word vectors; None: all word vectors.
Output = tuple[str | int | None, Pooling | None]

# Seconds between returns of freed memory to the system. Batches of all sizes leave gaps that malloc
# keeps: a hundred megabytes after a few hundred batches of en-small.
SECONDS_TO_RELEASE = 10.0


def cost(sentences: Iterable[Sequence[str]]) -> int:
    """The number of words, plus one for each sentence, so that empty ones are not free."""
    return sum(len(sentence) + 1 for sentence in sentences)


@dataclass(eq=False)
class PendingRequest:
    """A request in the queue, divided into parts of at most a batch each."""

    parts: deque[Sentences]
    count: int  # number of sentences
    output: Output
    vectors: asyncio.Future[list[np.ndarray]]
    embedded: list[np.ndarray] = field(default_factory=list)


class Engine:
    """Embeds what is submitted to it, in batches. All methods are for the event loop's thread.

    Args:
        embedder: The model. Results do not depend on the other requests in a batch.
        queue_words: Requests are refused while the next parts of waiting ones have this many words.
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
        self._queue_words, self._batch_words = queue_words, batch_words
        self._waiting: deque[PendingRequest] = deque()  # in the order of their turns
        self.words_waiting = 0  # `cost` of their next parts
        self._thread = ThreadPoolExecutor(1, "elmokit-engine")
        self._work: asyncio.Task[None] | None = None
        self._released = time.monotonic()

    def check_room(self) -> None:
        """RequestError if the queue is full."""
        if self.words_waiting >= self._queue_words:
            raise overloaded()

    def submit(self, sentences: Sentences, output: Output) -> asyncio.Future[list[np.ndarray]]:
        """Queue sentences to be embedded.

        Args:
            sentences: Lists of tokens, at least one.
            output: The vectors to compute.

        Returns:
            A future of an array for each sentence: (2D,) with a pooling, else (T, 2D), or (L+1, T,
            2D) for all layers. If it is cancelled, its turn in the queue is skipped.

        Raises:
            RequestError: The queue is full.
        """
        self.check_room()
        parts = deque(chunks(sentences, self._batch_words))
        request = PendingRequest(
            parts, len(sentences), output, asyncio.get_running_loop().create_future()
        )
        self._enqueue(request)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run())
        return request.vectors

    def _enqueue(self, request: PendingRequest) -> None:
        self._waiting.append(request)
        self.words_waiting += cost(request.parts[0])

    def _next_batch(self) -> dict[Output, list[tuple[PendingRequest, Sentences]]]:
        """Take the next parts of the requests whose turn it is: as many as fit, at least one."""
        batch: dict[Output, list[tuple[PendingRequest, Sentences]]] = {}
        words = 0
        while self._waiting:
            request = self._waiting[0]
            part_words = cost(request.parts[0])
            if batch and words + part_words > self._batch_words:
                break
            self._waiting.popleft()
            self.words_waiting -= part_words
            if request.vectors.done():  # cancelled, or failed
                continue
            batch.setdefault(request.output, []).append((request, request.parts.popleft()))
            words += part_words
            if request.parts:
                self._enqueue(request)
        return batch

    async def _run(self) -> None:
        while self._waiting:
            for output, parts in self._next_batch().items():
                self._observe(sum(cost(part) for _, part in parts))
                await self._answer(output, parts)
            if time.monotonic() - self._released > SECONDS_TO_RELEASE:
                release_freed_memory()
                self._released = time.monotonic()

    async def _answer(self, output: Output, parts: list[tuple[PendingRequest, Sentences]]) -> None:
        """Embed parts of requests; an error fails only the request that caused it."""
        sentences = [sentence for _, part in parts for sentence in part]
        loop = asyncio.get_running_loop()
        try:
            vectors = iter(await loop.run_in_executor(self._thread, self._embed, sentences, output))
        except Exception as error:
            if len(parts) > 1:
                for part in parts:
                    await self._answer(output, [part])
                return
            logger.exception("a request could not be embedded")
            ((request, _),) = parts
            if not request.vectors.done():
                request.vectors.set_exception(error)
            return
        for request, part in parts:
            request.embedded += [next(vectors) for _ in part]
            if len(request.embedded) == request.count and not request.vectors.done():
                request.vectors.set_result(request.embedded)

    def _embed(self, sentences: Sentences, output: Output) -> list[Any]:
        layers, pooling = output
        state = self._embedder.model.single_sentence_state
        if pooling is None:
            return list(self._embedder.embed(sentences, layers, state))
        return list(
            self._embedder.encode(
                sentences, pooling.name, pooling.normalize, layers=layers, state=state
            )
        )
