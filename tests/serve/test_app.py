"""The application as a whole: the schemas that it publishes."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")
pytest.importorskip("httpx", reason="no httpx to ask the server with")

import httpx
from running_server import RunningServer

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
