"""The engine: batches of what waits, bounded in words, and the vectors of a sentence whatever else is in its batch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import Pooling
from elmokit.nn.bilm import BiLM
from elmokit.serve.engine import BatchMeter, Engine, Output, cost
from elmokit.serve.errors import RequestError

MEAN = Output(pooling=Pooling())
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

    def make(**options: Any) -> Engine:
        engines.append(Engine(embedder, **{"meter": BatchMeter(embedded=batches.append), **options}))
        return engines[-1]

    yield make
    embedder.gate.set()
    for engine in engines:
        engine.close()


def wait_until_taken(engine: Engine) -> None:
    """Until the engine has taken what waits, so that what comes next waits for the next batch."""
    stop = time.monotonic() + 20
    while engine.words_waiting:
        assert time.monotonic() < stop
        time.sleep(0.001)


@pytest.mark.parametrize("layers", ["mix", "all", 0])
def test_engine_gives_each_word_the_vectors_of_the_embedder(
    layers: str | int, make_engine: Callable[..., Engine], embedder: GatedEmbedder
) -> None:
    engine = make_engine()

    async def both() -> tuple[list[np.ndarray], list[np.ndarray]]:
        first, second = engine.submit(SENTENCES, Output(layers)), engine.submit(SENTENCES[::-1], Output(layers))
        return await first, await second

    first, second = asyncio.run(both())
    expected = embedder.embed(SENTENCES, layers)
    for got in (first, second[::-1]):
        for vectors, of_embedder in zip(got, expected, strict=True):
            of_word = np.moveaxis(of_embedder, 0, 1) if layers == "all" else of_embedder
            np.testing.assert_allclose(vectors, of_word, atol=1e-6)


def test_engine_pools_as_the_embedder_does(make_engine: Callable[..., Engine], embedder: GatedEmbedder) -> None:
    engine = make_engine()

    async def pooled(pooling: Pooling) -> list[np.ndarray]:
        return await engine.submit(SENTENCES, Output("top", pooling))

    for pooling in (Pooling(), Pooling("max"), Pooling("mean", normalize=True)):
        expected = embedder.encode(SENTENCES, pooling.name, pooling.normalize, "top")
        np.testing.assert_allclose(asyncio.run(pooled(pooling)), expected, atol=1e-6)


def test_engine_embeds_together_what_waits(
    make_engine: Callable[..., Engine], embedder: GatedEmbedder, batches: list[int]
) -> None:
    engine = make_engine()

    async def run() -> None:
        embedder.gate.clear()
        first = engine.submit([["a"]], MEAN)
        wait_until_taken(engine)
        others = [engine.submit([["word"] * length], MEAN) for length in range(50)]
        embedder.gate.set()
        await asyncio.gather(first, *others)

    asyncio.run(run())
    engine.close()
    assert batches == [2, sum(range(51))]


def test_engine_keeps_batches_below_their_limit_and_in_order(
    make_engine: Callable[..., Engine], embedder: GatedEmbedder, batches: list[int]
) -> None:
    engine = make_engine(batch_words=10)
    order: list[int] = []

    async def run() -> None:
        embedder.gate.clear()
        waiting = [engine.submit([["a"] * 9], MEAN)]
        wait_until_taken(engine)
        for number, length in enumerate((4, 4, 30, 2, 2)):
            waiting.append(engine.submit([["word"] * length], MEAN))
            waiting[-1].add_done_callback(lambda _, number=number: order.append(number))
        embedder.gate.set()
        await asyncio.gather(*waiting)

    asyncio.run(run())
    engine.close()
    assert batches == [10, 10, 31, 6] and order == [0, 1, 2, 3, 4]


def test_engine_refuses_what_does_not_fit_and_takes_it_later(
    make_engine: Callable[..., Engine], embedder: GatedEmbedder
) -> None:
    engine = make_engine(queue_words=20)

    async def run() -> None:
        embedder.gate.clear()
        running = engine.submit([["a"]], MEAN)
        wait_until_taken(engine)
        large = engine.submit([["word"] * 40], MEAN)  # nothing waits yet
        assert engine.is_full
        with pytest.raises(RequestError) as refused:
            engine.submit([["a"]], MEAN)
        assert refused.value.code == "overloaded" and (refused.value.retry_after or 0) >= 1
        embedder.gate.set()
        await asyncio.gather(running, large)
        assert not engine.is_full and len(await engine.submit([["a"]], MEAN)) == 1

    asyncio.run(run())


def test_cancelled_request_leaves_the_queue(
    make_engine: Callable[..., Engine], embedder: GatedEmbedder, batches: list[int]
) -> None:
    engine = make_engine()

    async def run() -> None:
        embedder.gate.clear()
        running = engine.submit([["a"]], MEAN)
        wait_until_taken(engine)
        given_up, kept = engine.submit([["b"] * 7], MEAN), engine.submit([["c"] * 3], MEAN)
        given_up.cancel()
        await asyncio.sleep(0)
        assert engine.words_waiting == cost([["c"] * 3])
        running.cancel()  # too late: it is embedded, and nobody gets it
        embedder.gate.set()
        assert len(await kept) == 1

    asyncio.run(run())
    engine.close()
    assert batches == [2, 4]


def test_failure_is_only_that_of_the_request_that_caused_it(
    make_engine: Callable[..., Engine], embedder: GatedEmbedder
) -> None:
    engine = make_engine()

    async def run() -> list[object]:
        embedder.gate.clear()
        first = engine.submit([["a"]], MEAN)
        wait_until_taken(engine)
        others = [engine.submit([[word]], MEAN) for word in ("b", "poison", "c")]
        embedder.gate.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    results = asyncio.run(run())
    assert [isinstance(result, ValueError) for result in results] == [False, False, True, False]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_engine_whose_thread_has_ended_says_so_before_it_is_closed(make_engine: Callable[..., Engine]) -> None:
    def fail(words: int) -> None:
        raise RuntimeError("a defect")

    engine = make_engine(meter=BatchMeter(embedded=fail))
    assert engine.is_alive

    async def run() -> None:
        await engine.submit([["a"]], MEAN)

    asyncio.run(run())
    stop = time.monotonic() + 20
    while engine.is_alive:
        assert time.monotonic() < stop
        time.sleep(0.001)


def test_close_answers_what_was_accepted(make_engine: Callable[..., Engine], embedder: GatedEmbedder) -> None:
    engine = make_engine()

    async def run() -> list[list[np.ndarray]]:
        embedder.gate.clear()
        waiting = [engine.submit([["a"], ["b"]], MEAN) for _ in range(5)]
        threading.Timer(0.1, embedder.gate.set).start()
        await asyncio.get_running_loop().run_in_executor(None, engine.close)
        return await asyncio.gather(*waiting)

    assert [len(vectors) for vectors in asyncio.run(run())] == [2] * 5
