"""Run the server until it is stopped, and answer the requests that were accepted by then."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from math import ceil
from pathlib import Path

from elmokit.serve.config import ServeConfig
from elmokit.serve.listening import bound_socket

NEEDED = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}
SWITCH_INTERVAL = 0.0005  # seconds
KEEP_ALIVE = 65  # seconds until an idle connection is closed: longer than clients and proxies keep it open


def require_libraries() -> None:
    """ValueError if a library that the server needs is not installed."""
    if missing := [package for module, package in NEEDED.items() if find_spec(module) is None]:
        raise ValueError(
            f"the server needs {' and '.join(missing)}: pip install fastapi uvicorn httptools uvloop prometheus-client "
            "(elmokit's extra serve)"
        )


def serve(
    model: str | Path | None = None,
    config: ServeConfig | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> None:
    """Serve a model until SIGTERM or SIGINT; requests that were accepted by then are answered before this returns.

    If a job whose client has gone still runs at shutdown, the process is ended by `os._exit`, since the job's thread
    cannot be stopped.

    Args:
        model: As in `elmokit.load`.
        config: Where to listen, and limits; None: the defaults of `ServeConfig`.
        device: As in `Embedder`.
        dtype: As in `Embedder`.

    Raises:
        ValueError: A library is missing, or an argument is invalid.
        FileNotFoundError: There is no such model, task model or corpus.
        OSError: The address cannot be listened on.
    """
    require_libraries()
    import uvicorn

    from elmokit.embed.embedder import TruncationWarning
    from elmokit.serve.app import create_app
    from elmokit.serve.draining import DrainingServer
    from elmokit.serve.service import Service

    chosen = config or ServeConfig()
    key = chosen.api_key or os.environ.get("ELMOKIT_API_KEY") or None
    with bound_socket(chosen.host, chosen.port) as bound:
        service = Service.load(model, replace(chosen, api_key=key), device, dtype)
        settings = uvicorn.Config(
            create_app(service), log_level="warning", access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=ceil(chosen.timeout),
        )  # fmt: skip
        try:
            with _short_switch_interval(), warnings.catch_warnings():
                warnings.simplefilter("ignore", TruncationWarning)  # counted in the metrics
                DrainingServer(settings, service).run([bound])
        finally:
            has_ended = service.close()
    if not has_ended:  # Python would crash if it ended while a thread computes
        os._exit(0)


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Let Python switch between threads more often.

    Threads that compute need the interpreter only briefly, but often: with Python's default interval they would wait
    5 ms each time for a busy event loop.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
