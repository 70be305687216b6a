"""The engine: batches of what waits, bounded in words; and jobs: one at a time, bounded in number,
ended in time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import Pooling
from elmokit.nn.bilm import BiLM
from elmokit.serve.engine import Engine, Job, JobQueue
from elmokit.serve.schemas import RequestError
from elmokit.threads import num_threads

MEAN = ("mix", Pooling())
SENTENCES = [["a", "cat"], [], ["the", "dog", "sees", "the", "cat"], ["yes"]]


class GatedEmbedder(Embedder):
    """Embeds only while its gate is open; a batch with the word "poison" fails."""

    gate = threading.Event()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        embed_all = self.pipeline.embed_all

        def gated(batches: Any, *args: Any) -> Any:
            self.gate.wait(20)
            batches = list(batches)
            if any("poison" in sentence for batch in batches for sentence in batch):
                raise ValueError("poison")
            return embed_all(batches, *args)

        self.pipeline.embed_all = gated


@pytest.fixture(scope="module")
def embedder() -> GatedEmbedder:
    torch.manual_seed(5)
    return GatedEmbedder(Pretrained(BiLM(BiLMConfig.preset("tiny"))), "cpu")


@pytest.fixture
def batches() -> list[int]:
    """The words of the batches that were embedded."""
    return []


@pytest.fixture
def make_engine(embedder: GatedEmbedder, batches: list[int]) -> Iterator[Callable[..., Engine]]:
    embedder.gate.set()
    engines: list[Engine] = []

    def make(queue_words: int = 65_536, batch_words: int = 4_096) -> Engine:
        engines.append(Engine(embedder, queue_words, batch_words, batches.append))
        return engines[-1]

    yield make
    embedder.gate.set()
    for engine in engines:
        engine.close()


def block(engine: Engine) -> asyncio.Future[list[np.ndarray]]:
    """Submit a request of two words, and wait until the engine has taken it: what comes next is the
    next batch.
    """
    GatedEmbedder.gate.clear()
    blocking = engine.submit([["a"]], MEAN)
    stop = time.monotonic() + 20
    while engine.words_waiting:
        assert time.monotonic() < stop
        time.sleep(0.001)
    return blocking


@pytest.mark.parametrize("layers", ["mix", "all", 0])
def test_engine_gives_the_vectors_of_the_embedder(
    layers: str | int, make_engine: Callable[..., Engine], embedder: GatedEmbedder
) -> None:
    engine = make_engine()

    async def submit(*requests: Any) -> list[list[np.ndarray]]:
        return await asyncio.gather(*(engine.submit(*request) for request in requests))

    forth, back = asyncio.run(
        submit((SENTENCES, (layers, None)), (SENTENCES[::-1], (layers, None)))
    )
    for got in (forth, back[::-1]):
        for vectors, expected in zip(got, embedder.embed(SENTENCES, layers), strict=True):
            np.testing.assert_allclose(vectors, expected, atol=1e-6)
    for pooling in (Pooling(), Pooling("max"), Pooling("mean", normalize=True)):
        (pooled,) = asyncio.run(submit((SENTENCES, ("top", pooling))))
        expected = embedder.encode(SENTENCES, pooling.name, pooling.normalize, "top")
        np.testing.assert_allclose(pooled, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("batch_words", "lengths", "expected"),
    [(4096, range(50), [2, sum(range(51))]), (10, (4, 4, 30, 2, 2), [2, 10, 31, 6])],
)
def test_engine_embeds_together_what_waits_up_to_its_limit_and_in_order(
    batch_words: int,
    lengths: Any,
    expected: list[int],
    make_engine: Callable[..., Engine],
    batches: list[int],
) -> None:
    engine = make_engine(batch_words=batch_words)
    order: list[int] = []

    async def run() -> None:
        waiting = [block(engine)]
        for number, length in enumerate(lengths):
            waiting.append(engine.submit([["word"] * length], MEAN))
            waiting[-1].add_done_callback(lambda _, number=number: order.append(number))
        GatedEmbedder.gate.set()
        await asyncio.gather(*waiting)

    asyncio.run(run())
    assert batches == expected and order == list(range(len(lengths)))


def test_large_request_is_embedded_in_parts_between_others(
    make_engine: Callable[..., Engine], batches: list[int], embedder: GatedEmbedder
) -> None:
    engine = make_engine(batch_words=10)
    sentences = [[f"word{number}", "b", "c"] for number in range(9)]  # two in a part

    async def run() -> list[list[np.ndarray]]:
        running, large = block(engine), engine.submit(sentences, ("mix", None))
        small = engine.submit([["a"]], ("mix", None))
        GatedEmbedder.gate.set()
        results = await asyncio.gather(running, large, small)
        with pytest.raises(ValueError, match="poison"):
            await engine.submit([["poison"] * 9, *sentences], MEAN)
        return results

    _, large, small = asyncio.run(run())
    assert batches[:6] == [2, 8 + 2, 8, 8, 8, 4] and len(small) == 1
    for vectors, expected in zip(large, embedder.embed(sentences), strict=True):
        np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_engine_refuses_what_does_not_fit_and_takes_it_later(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(queue_words=20, batch_words=10)

    async def run() -> None:
        running = block(engine)
        large = engine.submit([["word"] * 40], MEAN)  # nothing waits yet
        with pytest.raises(RequestError) as refused:
            engine.submit([["a"]], MEAN)
        assert refused.value.code == "overloaded" and refused.value.headers["retry-after"]
        GatedEmbedder.gate.set()
        await asyncio.gather(running, large)
        assert not engine.words_waiting and len(await engine.submit([["a"]], MEAN)) == 1
        running, many = block(engine), [["word"] * 3] * 30  # of which the next batch counts
        large = engine.submit(many, MEAN)
        with pytest.raises(RequestError):
            engine.submit(many, MEAN)  # but all of it for another large one
        small = engine.submit([["a"]], MEAN)
        GatedEmbedder.gate.set()
        await asyncio.gather(running, large, small)
        assert engine.words_waiting == engine.words_ahead == 0

    asyncio.run(run())


def test_cancelled_request_is_skipped_and_a_failure_is_only_that_of_its_request(
    make_engine: Callable[..., Engine], batches: list[int]
) -> None:
    engine = make_engine()

    async def run() -> list[object]:
        running, cancelled = block(engine), engine.submit([["b"] * 7], MEAN)
        others = [engine.submit([[word]], MEAN) for word in ("b", "poison", "c")]
        cancelled.cancel()
        running.cancel()  # too late: it is embedded, and nobody gets it
        GatedEmbedder.gate.set()
        return await asyncio.gather(*others, return_exceptions=True)

    results = asyncio.run(run())
    assert [isinstance(result, ValueError) for result in results] == [False, True, False]
    assert batches == [2, 6] and not engine.words_waiting


def test_close_answers_what_was_accepted(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()

    async def run() -> list[list[np.ndarray]]:
        waiting = [block(engine), *(engine.submit([["a"], ["b"]], MEAN) for _ in range(5))]
        threading.Timer(0.1, GatedEmbedder.gate.set).start()
        await asyncio.get_running_loop().run_in_executor(None, engine.close)
        return await asyncio.gather(*waiting)

    assert [len(vectors) for vectors in asyncio.run(run())] == [1] + [2] * 5


# --- Jobs -----------------------------------------------------------------------------------------


@pytest.fixture
def jobs() -> JobQueue:
    return JobQueue("tests", max_waiting=2, threads=1)


def test_queue_takes_so_many_jobs_and_more_when_one_has_ended(jobs: JobQueue) -> None:
    async def run() -> None:
        gate = threading.Event()
        first, second = jobs.submit(lambda job: gate.wait(20)), jobs.submit(lambda job: "second")
        with pytest.raises(RequestError) as refused:
            jobs.submit(lambda job: None)
        assert refused.value.code == "overloaded" and refused.value.headers["retry-after"]
        gate.set()
        assert (await first, await second) == (True, "second")
        assert not jobs.unfinished and await jobs.submit(lambda job: 3) == 3

    asyncio.run(run())


def test_jobs_run_side_by_side_and_short_ones_do_not_wait_for_long_ones() -> None:
    jobs, gate, threads = JobQueue("side by side", max_waiting=9, threads=3), threading.Event(), []

    def wait(job: Job) -> int:
        threads.append(num_threads())
        gate.wait(20)
        return num_threads()

    async def run() -> None:
        long = []
        for number in range(1, 4):
            long.append(jobs.submit(wait, is_long=True))
            while len(threads) < number:
                await asyncio.sleep(0.005)
        assert [await jobs.submit(lambda job: num_threads()) for _ in range(3)] == [1, 1, 1]
        gate.set()
        assert await asyncio.gather(*long) == [3, 1, 1]  # the first began alone

    asyncio.run(run())


def test_cancelled_job_ends_at_its_next_item_or_never_runs(jobs: JobQueue) -> None:
    taken: list[int] = []

    def endless(job: Job) -> None:
        for number in job.while_wanted(count()):
            taken.append(number)
            time.sleep(0.001)

    async def run() -> None:
        running, waiting = jobs.submit(endless), jobs.submit(lambda job: taken.append(-1))
        while not taken:
            await asyncio.sleep(0.005)
        waiting.cancel()
        await asyncio.sleep(0)
        running.cancel()
        assert await asyncio.wait_for(jobs.submit(lambda job: "next"), 20) == "next"

    asyncio.run(run())
    assert -1 not in taken
