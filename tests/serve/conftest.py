"""A server with everything in it, which most tests share, and applications without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import httpx
    from running_server import RunningServer

    from elmokit.embed.embedder import Embedder
    from elmokit.tasks.fitting.model import TaskModel


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    from elmokit.embed.embedder import Embedder

    return Embedder("en-small", "cpu", softmax=True)


@pytest.fixture(scope="session")
def tagger() -> TaskModel:
    """A tagger of toy sentences: "Ann sees red dogs"."""
    from toy_tasks import toy_tasks

    from elmokit.tasks import WordsConfig
    from elmokit.tasks.fitting import fit

    toy = toy_tasks()["tagging"]
    words = WordsConfig(elmo="none", word_dim=8)
    return fit(
        toy.task, toy.examples, toy.examples, words=words, config=replace(toy.config, max_epochs=12)
    )[0]


@pytest.fixture(scope="session")
def server(tagger: TaskModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    from running_server import CORPUS, RunningServer

    directory = tmp_path_factory.mktemp("serve") / "tagger"
    tagger.save(directory)
    with RunningServer("--device", "cpu", "--corpus", CORPUS, "--task-model", directory) as running:
        yield running


@pytest.fixture
def ask() -> Callable[..., list[httpx.Response]]:
    """Called with arguments of `Service` and requests, the answers, once all jobs of the service
    have ended.
    """
    import httpx

    from elmokit.serve.app import create_app
    from elmokit.serve.service import Service

    def ask_all(
        service_arguments: dict[str, Any], *requests: tuple[str, str, dict[str, Any]]
    ) -> list[httpx.Response]:
        service = Service(**service_arguments)
        transport = httpx.ASGITransport(create_app(service), raise_app_exceptions=False)

        async def answers() -> list[httpx.Response]:
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", timeout=60
            ) as client:
                answers = [
                    await client.request(method, path, **options)
                    for method, path, options in requests
                ]
            while service.metrics.registry.get_sample_value("elmokit_jobs"):
                await asyncio.sleep(0.02)
            return answers

        return asyncio.run(answers())

    return ask_all
