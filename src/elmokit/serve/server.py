"""Run the server until it is stopped, and answer the requests that were accepted by then."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import warnings
from dataclasses import replace
from math import ceil
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from elmokit.checkpoints import DEFAULT_MODEL, model_of
from elmokit.embed import Embedder
from elmokit.serve.app import MAX_HEAD, allowed_hosts, create_app
from elmokit.serve.config import ServeConfig
from elmokit.serve.explore import BUNDLED_CORPUS
from elmokit.serve.service import Service
from elmokit.tasks.fitting.model import load_task_model
from elmokit.text import TOKENIZER_OF, TruncationWarning

# Seconds between switches of threads. Those that compute need the interpreter only briefly, but
# often: with Python's default they would wait 5 ms each time for a busy event loop.
SWITCH_INTERVAL = 0.0005
# seconds until a connection is closed that is idle again: longer than clients and proxies keep it
# open
KEEP_ALIVE = 65
HEAD_SECONDS = 30  # until a connection is closed on which no request has come
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: "
    b"close\r\ncontent-length: 0\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """A connection to a client, which is closed if the head of a request is too large, or does not
    come in time.
    """

    _unparsed = 0  # bytes received since the last head, or part of a body, was complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            HEAD_SECONDS, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        timer, self.timeout_keep_alive_task = (
            self.timeout_keep_alive_task,
            None,
        )  # uvicorn ends it at the first byte
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEAD and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()
        if timer is not None and (self.cycle is None or self.cycle.response_complete):
            self.timeout_keep_alive_task = timer
        elif timer is not None:
            timer.cancel()

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)


class DrainingServer(uvicorn.Server):
    """Refuses new work at the first signal, and ends when the last request is answered, or at a
    second signal.

    Args:
        config: uvicorn's settings.
        service: Answers the requests, and counts those in progress.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on the one socket in `sockets`, and print its address."""
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        print(
            f"elmokit: {self._service.name} at "
            f"http://{f'[{host}]' if ':' in host else host}:{port}/",
            flush=True,
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; stop at the second."""
        self.should_exit = self.force_exit = self._service.is_draining
        self._service.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop; asked ten times a second."""
        return await super().on_tick(counter) or (
            self._service.is_draining and not self._service.in_progress
        )


def serve(
    model: str | Path | None = None,
    config: ServeConfig | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> None:
    """Serve a model until SIGTERM or SIGINT; requests that were accepted by then are answered
    before this returns.

    If a job whose client has gone still runs at shutdown, the process is ended by `os._exit`, since
    the job's thread cannot be stopped.

    Args:
        model: As in `elmokit.load`.
        config: Where to listen, and limits; None: the defaults of `ServeConfig`.
        device: As in `Embedder`.
        dtype: As in `Embedder`.

    Raises:
        ValueError: An argument is invalid, or the corpus is not text.
        FileNotFoundError: There is no such model, task model or corpus.
        OSError: The address cannot be listened on.
    """
    config = config or ServeConfig()
    config = replace(config, api_key=config.api_key or os.environ.get("ELMOKIT_API_KEY") or None)
    if config.api_key is None and allowed_hosts(config.host) is None:
        warnings.warn(
            f"anyone who reaches {config.host} may use this server: set a key with --api-key",
            stacklevel=2,
        )
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with (
        socket.create_server((config.host, config.port), family=family) as listening,
        warnings.catch_warnings(),
    ):
        embedder = Embedder(model, device, dtype, softmax=True)
        embedder.embed([["a"]])  # the first sentence takes longer: let it not be a client's
        is_english = (
            embedder.model.language in (None, "en")
            and embedder.model.tokenizer == TOKENIZER_OF["en"]
        )
        if config.corpus is None and is_english:
            config = replace(config, corpus=BUNDLED_CORPUS, tokenize=True)
        own_name = (
            DEFAULT_MODEL if model is None else model_of(Path(model).expanduser()).resolve().name
        )
        task_model = (
            load_task_model(config.task_model, device) if config.task_model is not None else None
        )
        service = Service(embedder, config, config.name or own_name, task_model)
        settings = uvicorn.Config(
            create_app(service),
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            http=Connection,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=ceil(config.timeout),
        )
        warnings.simplefilter("ignore", TruncationWarning)  # counted in the metrics
        sys.setswitchinterval(SWITCH_INTERVAL)
        try:
            DrainingServer(settings, service).run([listening])
        finally:
            has_ended = service.close()
    if not has_ended:  # Python would wait for the job
        os._exit(0)
