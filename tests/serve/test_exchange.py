"""Bodies of any kind: damaged ones, slow ones, endless ones, and clients that leave."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")
pytest.importorskip("httpx", reason="no httpx to ask the server with")

from fastapi import Request
from running_server import RunningServer

from elmokit.serve.errors import RequestError
from elmokit.serve.exchange import answer

BODIES = {
    "/v1/embeddings": {"input": ["a b", "c"], "model": "en-small", "encoding_format": "float"},
    "/embed": {"inputs": ["a b", ["c"]], "normalize": True, "layers": 1},
    "/embed_all": {"inputs": "a b", "layers": "all"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}},
    "/tokenize": {"inputs": ["I don't.", ["a"]]},
    "/compare": {"word": "a", "sentences": ["a b", "c a"]},
    "/neighbors": {"word": "play", "sentence": "I play .", "sentences": ["a play"], "count": 3, "layers": 0},
    "/senses": {"word": "a", "sentences": ["a b", "c a", "d a"], "clusters": 2, "max_uses": 5},
    "/score": {"inputs": ["a b"]},
    "/substitutes": {"sentence": "a b", "positions": [1], "top": 2, "direction": "both"},
    "/next_words": {"sentence": "a b", "top": 2},
    "/predict": {"inputs": ["Ann sees dogs", ["a", "b"]]},
}
# Values that stand anywhere in place of another one.
VALUES = [
    None, True, -1, 0, 10**30, 1.5, float("nan"), float("-inf"), "", "\x00", "\U0001f600" * 30, " ", "\u202e\u0301",
    "a\nb", "<S>", "word " * 300, "x" * 5000, [], [[]], [""], [[""]], {}, {"a": 1}, [None], [["a", None]],
    [[["a"]]], "mix", "all",
]  # fmt: skip
# Bodies that no JSON encoder writes.
RAW = [
    b"", b"{", b"null", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b'{"inputs":"\\ud800"}',
    b'{"inputs":"\xed\xa0\x80"}', b"9" * 5000, b'{"inputs":' + b"9" * 5000 + b"}", b'{"inputs":"a"}garbage',
    b'\xef\xbb\xbf{"inputs":"a"}', b"NaN",
    b'{"inputs":"a","inputs":1}', b"\x00" * 100,
]  # fmt: skip


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
        connection.request("POST", path, body, {"content-type": draw.choice(["application/json", "text/plain", "é"])})
        response = connection.getresponse()
        content = response.read()
        statuses.add(response.status)
        assert response.status < 500, (path, body[:200], content)
        json.loads(content)
    connection.close()
    assert {200, 422} <= statuses <= {200, 413, 422}
    assert server.post("/embed", BODIES["/embed"]).status_code == 200


def test_endless_body_is_refused_where_it_becomes_too_large(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        with suppress(OSError):  # the server closes the connection
            for _ in range(160):
                connection.sendall(chunk)
        with suppress(ConnectionResetError):  # its answer was lost in what was still sent
            assert connection.recv(12) == b"HTTP/1.1 413"
    assert server.metric("elmokit_requests_in_progress") == 1


def test_slow_body_and_slow_answer_end_at_the_time_limit() -> None:
    with RunningServer("--device", "cpu", "--timeout", 0.4) as server:
        with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
            connection.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{")
            began = time.monotonic()
            received = b"".join(iter(lambda: connection.recv(4096), b""))
            assert received.startswith(b"HTTP/1.1 408") and 0.3 < time.monotonic() - began < 10
        words = [f"word{number}" for number in range(12_000)]
        late = server.post("/score", {"inputs": [words]})
        assert late.status_code == 503 and "retry-after" in late.headers
        assert late.json()["error"]["code"] == "timeout"


def test_late_answers_are_timeouts_whatever_the_clock_of_the_event_loop_counts() -> None:
    uvloop = pytest.importorskip("uvloop", reason="no uvloop, whose clock counts milliseconds")

    async def receive() -> dict[str, str]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def late() -> str:
        with pytest.raises(RequestError) as caught:
            await answer(Request({"type": "http"}, receive), asyncio.get_running_loop().create_future(), 0.003)
        return caught.value.code

    async def many() -> set[str]:
        return {await late() for _ in range(100)}

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(many()) == {"timeout"}
    finally:
        loop.close()


def test_clients_that_are_killed_leave_nothing_behind(server: RunningServer) -> None:
    body = json.dumps({"inputs": [f"some {number} words " * 30 for number in range(100)]}).encode()
    request = b"POST /embed_all HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
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
