"""The application: hosts, keys, metrics; heads and bodies that are damaged, endless or left."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from typing import Any

import httpx
import pytest
from running_server import RunningServer

from elmokit.embed.embedder import Embedder
from elmokit.serve import ServeConfig
from elmokit.serve.app import allowed_hosts

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
Ask = Callable[..., Any]
HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\n"


def test_every_endpoint_answers_and_is_among_those_that_get_damaged_bodies(
    server: RunningServer,
) -> None:
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    assert {path for path, methods in paths.items() if "post" in methods} == BODIES.keys()
    for path, body in BODIES.items():
        assert server.post(path, body).status_code == 200


def test_key_is_needed_for_all_but_the_page_and_health(embedder: Embedder, ask: Ask) -> None:
    service = {"embedder": embedder, "config": ServeConfig(api_key="se cret")}
    open_paths = ("/", "/openapi.json", "/health", "/ready")
    answers = ask(service, *(("GET", path, {}) for path in open_paths))
    answers += ask(service, *(("HEAD", path, {}) for path in ("/", "/health", "/ready")))
    assert {answer.status_code for answer in answers} == {200}
    given = ("Bearer se cre", "se cret", "Basic se cret", None)
    closed = [("POST", "/embed"), ("POST", "/"), ("GET", "/metrics"), ("GET", "/nothing")]
    for authorization, (method, path) in product(given, closed):
        headers = {} if authorization is None else {"authorization": authorization}
        (answer,) = ask(service, (method, path, {"headers": headers}))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        code = "wrong_key" if authorization else "missing_key"
        assert answer.json()["error"]["code"] == code
    for scheme in ("Bearer", "bearer"):
        options = {"json": BODIES["/embed"], "headers": {"authorization": f"{scheme} se cret"}}
        (answer,) = ask(service, ("POST", "/embed", options))
        assert answer.status_code == 200


def test_server_on_loopback_answers_only_to_its_names(server: RunningServer) -> None:
    for host in ("localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"):
        assert httpx.get(f"{server.url}/health", headers={"host": host}).status_code == 200
    evil = ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "[::1", "")
    for host in evil:
        for path in ("/", "/health", "/metrics", "/nothing"):
            assert httpx.get(server.url + path, headers={"host": host}).status_code == 400
    assert server.post("/neighbors", {}, headers={"host": "evil.example"}).status_code == 400
    for host in ("0.0.0.0", "::", "192.0.2.1", "2001:db8::1"):
        assert allowed_hosts(host) == ["*"]  # on a network, a server has names it cannot know
    for host, name in (("127.0.0.2", "127.0.0.2"), ("localhost", "localhost"), ("::1", "[::1]")):
        assert {*allowed_hosts(host)} == {"localhost", "127.0.0.1", "[::1]", name}


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
    ask: Ask,
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
    assert [answer.status_code for answer in answers] == [200 if is_allowed else 403] * 2
    assert page.status_code == 200
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


@pytest.mark.slow  # it floods a server
def test_overload_answers_every_request_or_refuses_it() -> None:
    body = {"input": [f"some {number} words" for number in range(60)]}
    score = {"inputs": ["a few words more"] * 30}
    with RunningServer("--device", "cpu", "--queue-words", 600, "--max-jobs", 3) as server:
        asked = [("/v1/embeddings", body), ("/score", score)] * 60
        with ThreadPoolExecutor(60) as pool:
            answers = list(pool.map(lambda request: server.post(*request), asked))
        for answer in answers:
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json()["error"]["code"] == "overloaded"
        assert {answer.status_code for answer in answers} == {200, 429}
        assert server.post(*asked[0]).status_code == server.post(*asked[1]).status_code == 200


def test_metrics_count_requests_by_endpoint_and_status_and_no_made_up_paths(
    server: RunningServer,
) -> None:
    def count(endpoint: str, status: int) -> int:
        text = httpx.get(f"{server.url}/metrics").text
        label = rf'endpoint="{endpoint}",status="{status}"'
        counts = re.findall(rf"elmokit_request_seconds_count{{{label}}} (\d+)", text)
        return int(counts[0]) if counts else 0

    before = count("/embed", 200), count("/embed", 422), count("other", 404)
    for body in ({"inputs": "a"}, {}):
        server.post("/embed", body)
    httpx.get(server.url + "/x" * 500)
    after = count("/embed", 200), count("/embed", 422), count("other", 404)
    assert after == tuple(number + 1 for number in before)
    assert "/x/x" not in httpx.get(f"{server.url}/metrics").text


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


def test_server_answers_beside_silent_connections_and_half_sent_heads(
    server: RunningServer,
) -> None:
    with ExitStack() as stack:
        for number in range(300):
            connection = socket.create_connection(("127.0.0.1", server.port), 20)
            stack.enter_context(connection)
            connection.sendall(HEAD[: number % 20])
        began = time.monotonic()
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert time.monotonic() - began < 5


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


def test_hundreds_of_damaged_bodies_are_never_an_error_of_the_server(server: RunningServer) -> None:
    draw = random.Random(0)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    statuses = set()
    for number in range(250):
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
        assert connection.recv(12) == b"HTTP/1.1 413"
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(33):  # 64 KB each
            connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 413"
    server.wait_until("elmokit_requests_in_progress", 1)  # the one that asks


def test_late_result_is_an_error_that_says_so(embedder: Embedder, ask: Ask) -> None:
    service = {"embedder": embedder, "config": ServeConfig(timeout=0.02)}
    (late,) = ask(service, ("POST", "/score", {"json": {"inputs": ["a few words"] * 99}}))
    assert late.status_code == 503
    assert "retry-after" in late.headers
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
        list(pool.map(leave, range(24)))
    server.wait_until("elmokit_requests_in_progress", 1)
    server.wait_until("elmokit_queue_words", 0)
    server.wait_until("process_open_fds", descriptors)
    assert server.post("/embed", BODIES["/embed"]).status_code == 200
