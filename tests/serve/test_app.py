"""The application: schemas, hosts, keys, a full queue, metrics; and bodies that are damaged, slow,
endless or left.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from running_server import RunningServer
from uvicorn.server import ServerState

from elmokit.embed.embedder import Embedder
from elmokit.serve import endpoints
from elmokit.serve.app import allowed_hosts
from elmokit.serve.config import ServeConfig
from elmokit.serve.engine import Engine
from elmokit.serve.server import Connection

BODIES = {
    "/v1/embeddings": {"input": ["a b", "c"], "model": "en-small", "encoding_format": "float"},
    "/embed": {"inputs": ["a b", ["c"]], "normalize": True, "layers": 1},
    "/embed_all": {"inputs": "a b", "layers": "all"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}},
    "/tokenize": {"inputs": ["I don't.", ["a"]]},
    "/compare": {"word": "a", "sentences": ["a b", "c a"]},
    "/neighbors": {
        "word": "play",
        "sentence": "I play .",
        "sentences": ["a play"],
        "count": 3,
        "layers": 0,
    },
    "/senses": {"word": "a", "sentences": ["a b", "c a", "d a"], "clusters": 2, "max_uses": 5},
    "/score": {"inputs": ["a b"]},
    "/substitutes": {"sentence": "a b", "positions": [1], "top": 2, "direction": "both"},
    "/next_words": {"sentence": "a b", "top": 2},
    "/predict": {"inputs": ["Ann sees dogs", ["a", "b"]]},
}
# Values that stand anywhere in place of another one.
VALUES = [
    None,
    True,
    -1,
    0,
    10**30,
    1.5,
    float("nan"),
    float("-inf"),
    "",
    "\x00",
    "\U0001f600" * 30,
    " ",
    "\u202e\u0301",
    "a\nb",
    "<S>",
    "word " * 300,
    "x" * 5000,
    [],
    [[]],
    [""],
    [[""]],
    {},
    {"a": 1},
    [None],
    [["a", None]],
    [[["a"]]],
    "mix",
    "all",
]
# Bodies that no JSON encoder writes.
RAW = [
    b"",
    b"{",
    b"null",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"\xff\xfe",
    b'{"inputs":"\\ud800"}',
    b'{"inputs":"\xed\xa0\x80"}',
    b"9" * 5000,
    b'{"inputs":' + b"9" * 5000 + b"}",
    b'{"inputs":"a"}garbage',
    b'\xef\xbb\xbf{"inputs":"a"}',
    b"NaN",
    b'{"inputs":"a","inputs":1}',
    b"\x00" * 100,
]
HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\n"


def test_openapi_describes_every_request_its_answer_and_the_one_form_of_errors(
    server: RunningServer,
) -> None:
    api = httpx.get(f"{server.url}/openapi.json").json()
    paths, (scheme,) = api["paths"], api["components"]["securitySchemes"].values()
    assert scheme["scheme"] == "bearer"
    assert {path for path, methods in paths.items() if "post" in methods} == BODIES.keys()
    assert {"/v1/models/{name}", "/health", "/info", "/metrics"} <= paths.keys()
    assert list(paths["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]
    assert "application/octet-stream" in paths["/embed_all"]["post"]["responses"]["200"]["content"]
    models = {
        route.path: route.response_model
        for route in endpoints.router.routes
        if isinstance(route, APIRoute)
    }
    for path, body in BODIES.items():
        of_path = paths[path]["post"]
        assert of_path["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith(
            "Request"
        )
        assert (
            of_path["security"]
            and of_path["responses"].pop("200")["content"]["application/json"]["schema"]
        )
        assert {"401", "413", "422", "429", "503"} <= of_path["responses"].keys()
        schemas = [
            each["content"]["application/json"]["schema"]["$ref"]
            for each in of_path["responses"].values()
        ]
        assert all(schema.endswith("/ErrorAnswer") for schema in schemas)
        TypeAdapter(models[path]).validate_python(server.post(path, body).json(), strict=True)


def test_reference_loads_nothing_from_elsewhere(server: RunningServer) -> None:
    answer = httpx.get(f"{server.url}/docs")
    assert (
        "default-src 'none'" in answer.headers["content-security-policy"]
        and len(answer.content) < 10_000
    )
    assert "http" not in answer.text and "innerHTML" not in answer.text


def test_paths_and_methods_that_are_not_there(server: RunningServer) -> None:
    answer = httpx.get(f"{server.url}/embed")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert answer.json()["error"]["code"] == "method_not_allowed"
    for path in ("/redoc", "/embed/"):
        assert httpx.get(server.url + path).json()["error"]["code"] == "not_found"


def test_key_is_needed_for_all_but_the_page_and_health(locked_server: RunningServer) -> None:
    for path in ("/", "/health", "/ready"):
        assert (
            httpx.get(locked_server.url + path).status_code
            == httpx.head(locked_server.url + path).status_code
            == 200
        )
    assert {
        httpx.get(locked_server.url + path).status_code for path in ("/docs", "/openapi.json")
    } == {200}
    wrong = [({"authorization": given}, "wrong_key") for given in ("Bearer se cre", "se cret")]
    for headers, code in [({}, "missing_key"), *wrong]:
        for path in ("/embed", "/"):  # texts are posted there, too
            answer = locked_server.post(path, BODIES["/embed"], headers=headers)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == code
    for path in ("/metrics", "/info", "/v1/models", "/nothing"):
        assert httpx.get(locked_server.url + path).status_code == 401
    assert (
        locked_server.post(
            "/embed", BODIES["/embed"], headers={"authorization": "Bearer se cret"}
        ).status_code
        == 200
    )


def test_server_on_loopback_answers_only_to_its_names(server: RunningServer) -> None:
    for host in ("localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"):
        assert httpx.get(f"{server.url}/health", headers={"host": host}).status_code == 200
    evil = (
        "evil.example",
        f"evil.example:{server.port}",
        "127.0.0.1.evil.example",
        "localhost:80:80",
        "[::1",
        "",
    )
    for host in evil:
        for path in ("/", "/health", "/ready", "/metrics", "/info", "/nothing"):
            answer = httpx.get(server.url + path, headers={"host": host})
            assert (
                answer.status_code == 403 and answer.json()["error"]["code"] == "host_not_allowed"
            )
    assert server.post("/neighbors", {}, headers={"host": "evil.example"}).status_code == 403
    for host in (
        "0.0.0.0",
        "::",
        "192.0.2.1",
        "2001:db8::1",
    ):  # on a network, a server has names that it cannot know
        assert allowed_hosts(host) is None
    for host, name in (("127.0.0.2", b"127.0.0.2"), ("localhost", b"localhost"), ("::1", b"[::1]")):
        assert allowed_hosts(host) == {b"localhost", b"127.0.0.1", b"[::1]", name}


@pytest.mark.parametrize(
    ("headers", "cors", "is_allowed"),
    [
        ({}, (), True),
        ({"origin": "http://localhost"}, (), True),  # the host of the test's client
        ({"origin": "http://localhost:81"}, (), False),
        ({"origin": "null"}, (), False),
        ({"origin": "https://a.example"}, ("https://b.example",), False),
        (
            {"origin": "https://b.example", "sec-fetch-site": "cross-site"},
            ("https://b.example",),
            True,
        ),
        ({"origin": "https://b.example"}, ("*",), True),
        ({"sec-fetch-site": "cross-site"}, (), False),
        ({"origin": "https://proxy.example", "sec-fetch-site": "same-origin"}, (), True),
    ],
)
def test_pages_of_other_sites_are_refused_unless_they_are_named(
    headers: dict[str, str],
    cors: tuple[str, ...],
    is_allowed: bool,
    embedder: Embedder,
    ask: Callable[..., Any],
) -> None:
    service = {"embedder": embedder, "config": ServeConfig(cors=cors)}
    requests = [
        ("POST", "/tokenize", {"json": {"inputs": "a"}}),
        ("GET", "/info", {}),
        ("GET", "/", {}),
    ]
    *answers, page = ask(
        service, *((method, path, {"headers": headers, **body}) for method, path, body in requests)
    )
    assert [answer.status_code for answer in answers] == [
        200 if is_allowed else 403
    ] * 2 and page.status_code == 200
    if not is_allowed:
        assert answers[0].json()["error"]["code"] == "origin_not_allowed"
    if cors:  # whether the browser lets its page read the answer, and asks in its name at all
        asks = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        (preflight,) = ask(service, ("OPTIONS", "/embed", {"headers": {**headers, **asks}}))
        assert preflight.is_success == is_allowed
        for answer in (answers[0], preflight) if is_allowed else ():
            assert answer.headers["access-control-allow-origin"] in (headers["origin"], "*")


def test_compressed_body_is_refused(server: RunningServer) -> None:
    answer = httpx.post(
        f"{server.url}/embed", content=b"\x1f\x8b", headers={"content-encoding": "gzip"}
    )
    assert answer.status_code == 415 and "compressed" in answer.json()["error"]["message"]


def test_full_queue_refuses_requests_for_vectors_before_their_bodies_are_read(
    embedder: Embedder, ask: Callable[..., list[httpx.Response]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body is read")
        yield b""

    start = Engine.__init__
    full = lambda engine, *options: (  # noqa: E731
        start(engine, *options),
        setattr(engine, "words_ahead", 65_536),
    )[0]
    monkeypatch.setattr(Engine, "__init__", full)
    unread = {"content": body(), "headers": {"content-length": "9"}}
    paths = ("/", "/v1/embeddings", "/embed", "/embed_all", "/similarity")
    requests = [("POST", path, unread) for path in paths]
    served = [
        ("GET", "/", {}),
        ("POST", "/tokenize", {"json": {"inputs": "a"}}),
    ]  # which do not wait for vectors
    *refused, page, tokens = ask(
        {"embedder": embedder, "config": ServeConfig()}, *requests, *served
    )
    for answer in refused:
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "overloaded"
    assert page.status_code == tokens.status_code == 200


def test_metrics_count_requests_by_endpoint_and_status(server: RunningServer) -> None:
    def count(endpoint: str, status: int) -> float:
        text = httpx.get(f"{server.url}/metrics").text
        name = f'elmokit_request_seconds_count{{endpoint="{endpoint}",status="{status}"}} '
        return next(
            (float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name)),
            0.0,
        )

    cases = [
        ("/embed", 200, {"inputs": "a"}),
        ("/embed", 422, {}),
        ("/tokenize", 200, {"inputs": "a"}),
    ]
    before = [count(endpoint, status) for endpoint, status, _ in cases]
    for endpoint, _, body in cases:
        server.post(endpoint, body)
    assert [count(endpoint, status) for endpoint, status, _ in cases] == [
        number + 1 for number in before
    ]
    for made_up in ("/embed/", "/%00", "/x" * 500):
        httpx.get(server.url + made_up)
    assert "/x/x" not in httpx.get(f"{server.url}/metrics").text and count("other", 404) >= 3
    assert server.metric("elmokit_requests_in_progress") == 1  # the one that asks
    assert server.metric("process_resident_memory_bytes") > 1e7


# --- Heads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [b"GET /", b"GET / HTTP/1.1\r\nX: ", HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: "],
)
def test_head_or_trailer_that_is_too_large_is_refused_before_it_ends(
    head: bytes, server: RunningServer
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(head)
        with pytest.raises(
            (BrokenPipeError, ConnectionResetError)
        ):  # the server closes the connection
            for _ in range(1000):
                connection.sendall(b"a" * 0x10000)


def test_whole_head_that_is_too_large_is_refused(server: RunningServer) -> None:
    for size, status in ((60_000, 200), (70_000, 431)):
        with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
            connection.sendall(
                b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * size + b"\r\n\r\n"
            )
            assert connection.recv(12) == b"HTTP/1.1 %d" % status


def test_connections_without_a_whole_head_are_closed_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elmokit.serve.server.HEAD_SECONDS", 0.3)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body"})

    async def seconds_until_closed(port: int, begin: bytes, drip: bytes) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began, answer = time.monotonic(), asyncio.ensure_future(reader.read())
        writer.write(begin)
        while not answer.done():
            writer.write(drip)
            await asyncio.sleep(0.02)
            assert time.monotonic() - began < 20
        with suppress(ConnectionError):
            assert (await answer).startswith(
                b"HTTP/1.1 200" if begin.endswith(b"\r\n\r\n") else b""
            )
        writer.close()
        return time.monotonic() - began

    async def run() -> list[float]:
        config = uvicorn.Config(
            app, http=Connection, ws="none", lifespan="off", timeout_keep_alive=1
        )
        config.load()
        listening = await asyncio.get_running_loop().create_server(
            lambda: Connection(config, ServerState(), {}), "127.0.0.1", 0
        )
        port, whole = (
            listening.sockets[0].getsockname()[1],
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        )
        ways = [(b"", b""), (b"GET /", b"x"), (whole, b""), (whole + b"GET /", b"x")]
        async with listening:
            return await asyncio.gather(*(seconds_until_closed(port, *way) for way in ways))

    *_, idle, half_later = asyncio.run(run())
    assert min(idle, half_later) > 0.9


# --- Bodies ---------------------------------------------------------------------------------------


def mutant(body: object, draw: random.Random) -> object:
    """The body with one of its values, at any depth, replaced, repeated or removed."""
    if draw.random() < 0.25 or not isinstance(body, dict | list) or not body:
        return draw.choice(VALUES)
    if isinstance(body, dict):
        key = draw.choice(list(body))
        if draw.random() < 0.15:
            return {name: value for name, value in body.items() if name != key}
        return body | {key: mutant(body[key], draw)}
    number = draw.randrange(len(body))
    return [*body[:number], mutant(body[number], draw), *body[number + draw.randrange(2) :]]


def damaged(text: bytes, draw: random.Random) -> bytes:
    """The bytes with some of them overwritten, cut off or inserted."""
    start = draw.randrange(len(text) + 1)
    end = start + draw.randrange(4)
    return text[:start] + bytes(draw.choices(range(256), k=draw.randrange(4))) + text[end:]


def test_a_thousand_damaged_bodies_are_never_an_error_of_the_server(server: RunningServer) -> None:
    draw = random.Random(0)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    statuses = set()
    for number in range(1000):
        path = draw.choice(list(BODIES))
        text = json.dumps(BODIES[path] if number % 3 else mutant(BODIES[path], draw)).encode()
        body = draw.choice(RAW) if number % 20 == 0 else damaged(text, draw) if number % 3 else text
        connection.request(
            "POST",
            path,
            body,
            {"content-type": draw.choice(["application/json", "text/plain", "é"])},
        )
        response = connection.getresponse()
        content = response.read()
        statuses.add(response.status)
        assert response.status < 500, (path, body[:200], content)
        json.loads(content)
    connection.close()
    assert {200, 422} <= statuses <= {200, 413, 422}
    assert server.post("/embed", BODIES["/embed"]).status_code == 200


def test_body_that_is_too_large_is_refused_when_it_is_announced_or_has_come(
    server: RunningServer,
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(HEAD + b"Content-Length: 99999999999\r\n\r\n{")
        answer = b"".join(
            iter(lambda: connection.recv(4096), b"")
        )  # until the server closes the connection
        assert answer.startswith(b"HTTP/1.1 413") and b"more than 2,097,152 bytes" in answer
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        with suppress(OSError):  # the server closes the connection
            for _ in range(160):
                connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        with suppress(ConnectionResetError):  # its answer was lost in what was still sent
            assert connection.recv(12) == b"HTTP/1.1 413"
    assert server.metric("elmokit_requests_in_progress") == 1


def test_slow_body_and_slow_answer_end_at_the_time_limit(locked_server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", locked_server.port), 20) as connection:
        connection.sendall(HEAD + b"Authorization: Bearer se cret\r\nContent-Length: 20\r\n\r\n{")
        began = time.monotonic()
        received = b"".join(iter(lambda: connection.recv(4096), b""))
        assert received.startswith(b"HTTP/1.1 408") and 0.3 < time.monotonic() - began < 10
    words = [f"word{number}" for number in range(12_000)]
    late = locked_server.post(
        "/score", {"inputs": [words]}, headers={"authorization": "Bearer se cret"}
    )
    assert late.status_code == 503 and "retry-after" in late.headers
    assert late.json()["error"]["code"] == "timeout"


def test_clients_that_are_killed_leave_nothing_behind(server: RunningServer) -> None:
    body = json.dumps({"inputs": [f"some {number} words " * 10 for number in range(100)]}).encode()
    request = (
        HEAD.replace(b"embed", b"embed_all") + b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    descriptors = server.metric("process_open_fds")

    def leave(number: int) -> None:
        with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
            # As where a process is killed: the connection is reset, not closed.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(request[: len(request) if number % 3 else number * 10])
            time.sleep(0.02 * (number % 4))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(60)))
    server.wait_until("elmokit_requests_in_progress", 1)
    server.wait_until("elmokit_queue_words", 0)
    server.wait_until("process_open_fds", descriptors)
    assert server.post("/embed", BODIES["/embed"]).status_code == 200
