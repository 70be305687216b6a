"""Load for a server: requests over persistent connections, with or without waiting for the previous
answers.

    python benchmarks/speed/http_load.py < JOB

A job is a JSON object with host, port, path, bodies (JSON values), and one of these settings:

- `clients`: the number of clients, each of which sends its next request when the previous one is
  answered, until all bodies have been sent;
- `rate` and `seconds`: the number of requests per second, which are sent whether or not earlier
  ones were answered.

Prints a JSON object with the total seconds, [status, seconds] of each request (status 0 means that
no answer came), and the number of requests that were sent again. With `rate`, the time of a request
begins when it was due. HTTP is implemented here, since a client library takes more processor time
than the server that is measured.

Like any client, it sends a request again, on another connection, if the server closed the first one
because it had been idle for a minute.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import cycle
from time import perf_counter
from typing import Any, cast

SECONDS_TO_ANSWER = 60
LONG_IDLE = 60  # seconds; the server closes connections that are idle for slightly longer
Outcome = tuple[int, float]


class Connection(asyncio.Protocol):
    """A connection with at most one pending request."""

    def __init__(self) -> None:
        self._buffer, self._length = bytearray(), -1
        self._status: asyncio.Future[int] | None = None
        self._idle_since, self._idle_seconds = perf_counter(), 0.0
        self.is_open, self.was_closed_idle = True, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        is_waiting = self._status is not None and not self._status.done()
        self.was_closed_idle = is_waiting and not self._buffer and self._idle_seconds > LONG_IDLE
        self._resolve(0)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._length < 0 and (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            self._length = end + 4 + int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        if 0 <= self._length <= len(self._buffer):
            self._resolve(int(self._buffer[9:12]))

    def _resolve(self, status: int) -> None:
        self._idle_since = perf_counter()
        if self._status is not None and not self._status.done():
            self._status.set_result(status)

    async def ask(self, request: bytes) -> int:
        """The status of the answer; 0 if there is none."""
        self._idle_seconds = perf_counter() - self._idle_since
        self._buffer.clear()
        self._length, self._status = -1, asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await asyncio.wait_for(self._status, SECONDS_TO_ANSWER)
        except asyncio.TimeoutError:
            self.close()
            return 0

    def close(self) -> None:
        self.is_open = False
        self._transport.close()


class Load:
    """The requests of a job and their outcomes."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job, self.outcomes = job, list[Outcome]()
        head = (
            f"POST {job['path']} HTTP/1.1\r\nHost: {job['host']}\r\nContent-Type: "
            f"application/json\r\n"
        )
        bodies = [json.dumps(body).encode() for body in job["bodies"]]
        self._requests = [
            f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies
        ]
        self._idle: list[Connection] = []
        self.sent_again = 0

    async def _connection(self) -> Connection:
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        host, port = self._job["host"], self._job["port"]
        return (await asyncio.get_running_loop().create_connection(Connection, host, port))[1]

    async def _ask(self, request: bytes, due: float) -> None:
        try:
            connection = await self._connection()
            status = await connection.ask(request) if connection.is_open else 0
            if connection.was_closed_idle:
                self.sent_again += 1
                return await self._ask(request, due)
        except OSError:
            status, connection = 0, None
        self.outcomes.append((status, perf_counter() - due))
        if connection is not None and connection.is_open:
            self._idle.append(connection)

    async def closed(self, clients: int) -> None:
        """Run `clients` clients, each with one request at a time, until all bodies have been
        sent.
        """
        requests = iter(self._requests)

        async def client(requests: Iterator[bytes]) -> None:
            for request in requests:
                await self._ask(request, perf_counter())

        await asyncio.gather(*(client(requests) for _ in range(clients)))

    async def open(self, rate: float, seconds: float) -> None:
        """Send `rate` requests per second, cycling through the bodies."""
        began, pending = perf_counter(), set[asyncio.Task[None]]()
        for number, request in zip(
            range(round(rate * seconds)), cycle(self._requests), strict=False
        ):
            due = began + number / rate
            if (wait := due - perf_counter()) > 0:
                await asyncio.sleep(wait)
            task = asyncio.ensure_future(self._ask(request, due))
            pending.add(task)
            task.add_done_callback(pending.discard)
        await asyncio.gather(*pending)

    async def run(self) -> dict[str, Any]:
        began = perf_counter()
        if "clients" in self._job:
            await self.closed(self._job["clients"])
        else:
            await self.open(self._job["rate"], self._job["seconds"])
        seconds = perf_counter() - began
        for connection in self._idle:
            connection.close()
        return {"seconds": seconds, "outcomes": self.outcomes, "sent_again": self.sent_again}


def main() -> None:
    job = json.load(sys.stdin)
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    json.dump(run(Load(job).run()), sys.stdout)


if __name__ == "__main__":
    main()
