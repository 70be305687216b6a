"""The engine: batches of what waits, bounded in words; and jobs, bounded in number and in time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request
from tiny_model import tiny_model

from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import Pooling
from elmokit.serve import ServeConfig
from elmokit.serve.engine import Engine
from elmokit.serve.schemas import RequestError
from elmokit.serve.service import Service
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
    return GatedEmbedder(tiny_model(), "cpu")


@pytest.fixture
def batches() -> list[int]:
    """The words of the batches that were embedded."""
    return []


@pytest.fixture
def make_engine(embedder: GatedEmbedder, batches: list[int]) -> Callable[..., Engine]:
    embedder.gate.set()
    return lambda queue_words=65_536, batch_words=4_096: Engine(
        embedder, queue_words, batch_words, batches.append
    )


async def block(engine: Engine) -> asyncio.Future[list[np.ndarray]]:
    """Submit a request of two words, and wait until the engine has taken it: what comes next is the
    next batch.
    """
    GatedEmbedder.gate.clear()
    blocking = engine.submit([["a"]], MEAN)
    while engine.words_waiting:
        await asyncio.sleep(0.001)
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
        waiting = [await block(engine)]
        for number, length in enumerate(lengths):
            waiting.append(engine.submit([["word"] * length], MEAN))
            waiting[-1].add_done_callback(lambda _, number=number: order.append(number))
        GatedEmbedder.gate.set()
        await asyncio.gather(*waiting)

    asyncio.run(run())
    assert batches == expected
    assert order == list(range(len(lengths)))


def test_large_request_is_embedded_in_parts_between_others(
    make_engine: Callable[..., Engine], batches: list[int], embedder: GatedEmbedder
) -> None:
    engine = make_engine(batch_words=10)
    sentences = [[f"word{number}", "b", "c"] for number in range(9)]  # two in a part

    async def run() -> list[list[np.ndarray]]:
        running = await block(engine)
        large = engine.submit(sentences, ("mix", None))
        small = engine.submit([["a"]], ("mix", None))
        GatedEmbedder.gate.set()
        results = await asyncio.gather(running, large, small)
        with pytest.raises(ValueError, match="poison"):
            await engine.submit([["poison"] * 9, *sentences], MEAN)
        return results

    _, large, small = asyncio.run(run())
    assert batches[:6] == [2, 8 + 2, 8, 8, 8, 4]
    assert len(small) == 1
    for vectors, expected in zip(large, embedder.embed(sentences), strict=True):
        np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_engine_refuses_what_does_not_fit_and_takes_it_later(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(queue_words=20, batch_words=10)

    async def run() -> None:
        running = await block(engine)
        large = engine.submit([["word"] * 40], MEAN)  # nothing waits yet
        with pytest.raises(RequestError) as refused:
            engine.submit([["a"]], MEAN)
        assert refused.value.code == "overloaded"
        assert refused.value.headers["retry-after"]
        GatedEmbedder.gate.set()
        await asyncio.gather(running, large)
        assert not engine.words_waiting
        assert len(await engine.submit([["a"]], MEAN)) == 1
        running = await block(engine)
        large = engine.submit([["word"] * 3] * 30, MEAN)  # of which the next batch counts
        small = engine.submit([["a"]], MEAN)
        GatedEmbedder.gate.set()
        await asyncio.gather(running, large, small)
        assert not engine.words_waiting

    asyncio.run(run())


def test_cancelled_request_is_skipped_and_a_failure_is_only_that_of_its_request(
    make_engine: Callable[..., Engine], batches: list[int]
) -> None:
    engine = make_engine()

    async def run() -> list[object]:
        running = await block(engine)
        cancelled = engine.submit([["b"] * 7], MEAN)
        others = [engine.submit([[word]], MEAN) for word in ("b", "poison", "c")]
        cancelled.cancel()
        running.cancel()  # too late: it is embedded, and nobody gets it
        GatedEmbedder.gate.set()
        return await asyncio.gather(*others, return_exceptions=True)

    results = asyncio.run(run())
    assert [isinstance(result, ValueError) for result in results] == [False, True, False]
    assert batches == [2, 6]
    assert not engine.words_waiting


# --- Jobs -----------------------------------------------------------------------------------------


@pytest.fixture
def service(embedder: GatedEmbedder) -> Service:
    embedder.gate.set()
    return Service(embedder, ServeConfig(max_jobs=2, timeout=5))


def request_of(client_leaves: asyncio.Event | None = None) -> Request:
    """A request whose body was read, of a client that leaves at an event."""

    async def receive() -> dict[str, str]:
        await (client_leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http"}, receive)


def test_service_takes_so_many_jobs_and_more_when_one_has_ended(service: Service) -> None:
    threads: list[int] = []

    def job(gate: threading.Event) -> int:
        threads.append(num_threads())
        gate.wait(20)
        return num_threads()

    async def run() -> None:
        gate = threading.Event()
        running = []
        for number in range(2):  # side by side; the first begins alone, and may use all cores
            running.append(
                asyncio.ensure_future(service.run(request_of(), lambda check: job(gate)))
            )
            while len(threads) == number:
                await asyncio.sleep(0.005)
        with pytest.raises(RequestError) as refused:
            await service.run(request_of(), lambda check: None)
        assert refused.value.code == "overloaded"
        assert refused.value.headers["retry-after"]
        gate.set()
        assert await asyncio.gather(*running) == [num_threads(), 1]
        assert await service.run(request_of(), lambda check: 3) == 3

    asyncio.run(run())


@pytest.mark.parametrize(("leaves", "status"), [(True, 499), (False, 503)])
def test_job_ends_soon_after_its_client_has_gone_or_its_time_is_up(
    leaves: bool, status: int, embedder: GatedEmbedder
) -> None:
    service = Service(embedder, ServeConfig(timeout=20 if leaves else 0.05))
    steps: list[int] = []

    def endless(check: Callable[[], None]) -> None:
        for number in count():
            check()
            steps.append(number)
            time.sleep(0.001)

    async def run() -> None:
        client_leaves = asyncio.Event()
        running = asyncio.ensure_future(service.run(request_of(client_leaves), endless))
        while len(steps) < 3:
            await asyncio.sleep(0.005)
        if leaves:
            client_leaves.set()
        with pytest.raises(RequestError) as ended:
            await running
        assert ended.value.status_code == status
        jobs = service.metrics.registry.get_sample_value
        while jobs("elmokit_jobs"):
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(run(), 20))
