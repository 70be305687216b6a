"""The application as a whole: the schemas that it publishes, and its health."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing

import pytest

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")
pytest.importorskip("httpx", reason="no httpx to ask the server with")

import httpx
from running_server import RunningServer

from elmokit.embed.embedder import Embedder
from elmokit.serve.app import create_app
from elmokit.serve.config import ServeConfig
from elmokit.serve.engine import BatchMeter
from elmokit.serve.metrics import Metrics
from elmokit.serve.service import Service

REQUESTS = {
    "/v1/embeddings": "EmbeddingsRequest",
    "/embed": "EmbedRequest",
    "/embed_all": "EmbedAllRequest",
    "/similarity": "SimilarityRequest",
    "/tokenize": "TokenizeRequest",
    "/compare": "CompareRequest",
    "/neighbors": "NeighborsRequest",
    "/senses": "SensesRequest",
    "/score": "ScoreRequest",
    "/substitutes": "SubstitutesRequest",
    "/next_words": "NextWordsRequest",
    "/predict": "PredictRequest",
}


def test_openapi_names_every_request_and_the_one_form_of_errors(server: RunningServer) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    bodies = {
        path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for path, methods in document["paths"].items()
        if "post" in methods
    }
    assert bodies == REQUESTS
    assert {path for path, methods in document["paths"].items() if "get" in methods} == {
        "/v1/models", "/health", "/ready", "/info", "/metrics"
    }  # fmt: skip
    for path in REQUESTS:
        responses = document["paths"][path]["post"]["responses"]
        assert {"200", "401", "413", "422", "429", "503"} <= set(responses)
        schemas = {status: each["content"]["application/json"]["schema"] for status, each in responses.items()}
        assert {schemas[status]["$ref"].rpartition("/")[2] for status in schemas if status != "200"} == {"ErrorAnswer"}


def test_method_that_is_not_allowed_says_which_are(server: RunningServer) -> None:
    answer = httpx.get(f"{server.url}/embed")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"


def test_page_of_documentation_that_loads_scripts_of_another_host_is_not_there(server: RunningServer) -> None:
    assert [httpx.get(server.url + path).status_code for path in ("/docs", "/redoc")] == [404, 404]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_health_is_an_error_once_the_thread_that_computes_has_ended(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(words: int) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Metrics, "of_batches", BatchMeter(embedded=fail))

    async def ask(service: Service) -> list[httpx.Response]:
        transport = httpx.ASGITransport(create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = [await client.get("/health"), await client.post("/embed", json={"inputs": "a"})]
            stop = time.monotonic() + 20
            while service.engine.is_alive:
                assert time.monotonic() < stop
                await asyncio.sleep(0.001)
            return [*answers, await client.get("/health")]

    with closing(Service(embedder, ServeConfig())) as service:
        answers = asyncio.run(asyncio.wait_for(ask(service), 60))
    assert [answer.status_code for answer in answers] == [200, 200, 503]
    assert answers[0].json() == {"status": "alive"} and answers[2].json()["error"]["code"] == "unhealthy"
