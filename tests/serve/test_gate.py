"""The gate: hosts, keys, sizes that are announced, a full queue, and the metrics of every request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")
pytest.importorskip("httpx", reason="no httpx to ask the server with")

import httpx
from running_server import RunningServer

from elmokit.cli import main
from elmokit.embed.embedder import Embedder
from elmokit.serve.app import create_app
from elmokit.serve.config import ServeConfig
from elmokit.serve.engine import Engine
from elmokit.serve.gate import allowed_hosts
from elmokit.serve.service import Service

BODY = {"inputs": "a"}


def test_key_is_needed_for_all_but_the_page_and_health() -> None:
    with RunningServer("--device", "cpu", environment={"ELMOKIT_API_KEY": "se cret"}) as server:
        for path in ("/", "/health", "/ready"):
            assert httpx.get(server.url + path).status_code == 200
        for path in ("/", "/health", "/ready"):
            assert httpx.head(server.url + path).status_code == 200
        assert server.post("/", BODY).status_code == 401  # texts are posted there, too
        for headers in ({}, {"authorization": "Bearer se cre"}, {"authorization": "se cret"}):
            answer = server.post("/embed", BODY, headers=headers)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "missing_key"
        for path in ("/metrics", "/info", "/openapi.json", "/v1/models", "/nothing"):
            assert httpx.get(server.url + path).status_code == 401
        assert server.post("/embed", BODY, headers={"authorization": "Bearer se cret"}).status_code == 200
        assert server.stop() == 0


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics", "/info", "/nothing"])
def test_server_on_loopback_refuses_a_host_that_is_not_its_own(path: str, server: RunningServer) -> None:
    for host in (
        "evil.example",
        f"evil.example:{server.port}",
        "127.0.0.1.evil.example",
        "localhost:80:80",
        "[::1",
        "",
    ):
        answer = httpx.get(server.url + path, headers={"host": host})
        assert answer.status_code == 403, host
        assert answer.json()["error"]["code"] == "host_not_allowed"
    assert server.post("/neighbors", {}, headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"])
def test_server_on_loopback_answers_to_its_names_with_any_port(host: str, server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/health", headers={"host": host}).status_code == 200


def test_allowed_hosts_are_limited_on_loopback_only() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "2001:db8::1"):  # on a network, a server has names that it cannot know
        assert allowed_hosts(host) is None
    for host, name in (("127.0.0.2", b"127.0.0.2"), ("localhost", b"localhost"), ("::1", b"[::1]")):
        assert allowed_hosts(host) == {b"localhost", b"127.0.0.1", b"[::1]", name}


def test_body_that_is_announced_too_large_is_refused_before_it_is_sent(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))  # until the server closes the connection
    assert answer.startswith(b"HTTP/1.1 413") and b"the body has more than 2,097,152 bytes" in answer


def test_full_queue_refuses_requests_for_vectors_before_their_bodies_are_read(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "is_full", True)

    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body is read")
        yield b""

    async def ask(service: Service) -> None:
        transport = httpx.ASGITransport(create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in ("/", "/v1/embeddings", "/embed", "/embed_all", "/similarity"):
                answer = await client.post(path, content=body(), headers={"content-length": "9"})
                assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
                assert answer.json()["error"]["code"] == "overloaded"
            assert (await client.get("/")).status_code == 200  # the page
            assert (await client.post("/tokenize", json=BODY)).status_code == 200  # which does not wait for vectors

    with closing(Service(embedder, ServeConfig())) as service:
        asyncio.run(asyncio.wait_for(ask(service), 60))


def test_overload_is_refused_with_429_and_loses_no_accepted_request() -> None:
    sizes = {"--max-words": 300, "--queue-words": 300, "--batch-words": 300, "--max-jobs": 1}
    with RunningServer("--device", "cpu", *(word for option in sizes.items() for word in option)) as server:

        def ask(number: int) -> httpx.Response:
            return server.post("/embed", {"inputs": [f"word {number} " * 100]})

        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(ask, range(100)))
        counts = {status: sum(answer.status_code == status for answer in answers) for status in (200, 429)}
        assert sum(counts.values()) == 100 and min(counts.values()) > 0
        refused = [answer for answer in answers if answer.status_code == 429]
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert {answer.json()["error"]["code"] for answer in refused} == {"overloaded"}
        server.wait_until("elmokit_queue_words", 0)
        assert ask(0).status_code == 200


def test_metrics_count_requests_by_endpoint_and_status(server: RunningServer) -> None:
    def count(endpoint: str, status: int) -> float:
        text = httpx.get(f"{server.url}/metrics").text
        name = f'elmokit_requests_total{{endpoint="{endpoint}",status="{status}"}} '
        return next((float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name)), 0.0)

    cases = [("/embed", 200, BODY), ("/embed", 422, {}), ("/tokenize", 200, BODY)]
    before = [count(endpoint, status) for endpoint, status, _ in cases]
    for endpoint, _, body in cases:
        server.post(endpoint, body)
    assert [count(endpoint, status) for endpoint, status, _ in cases] == [number + 1 for number in before]
    for made_up in ("/embed/", "/%00", "/x" * 500):
        httpx.get(server.url + made_up)
    assert "/x/x" not in httpx.get(f"{server.url}/metrics").text and count("other", 404) >= 3
    assert server.metric("elmokit_requests_in_progress") == 1  # the one that asks
    assert server.metric("process_resident_memory_bytes") > 1e7


def test_key_that_no_header_can_hold_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--api-key", "schlüssel"]) == 2
    assert "printable ASCII" in capsys.readouterr().err
