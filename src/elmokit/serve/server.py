"""Run the server until it is stopped; answer all accepted requests."""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings
from dataclasses import replace
from math import ceil
from pathlib import Path

import uvicorn

from elmokit.embed import Embedder
from elmokit.serve import ServeConfig
from elmokit.serve.app import BUNDLED_CORPORA, allowed_hosts, create_app
from elmokit.serve.service import Service
from elmokit.tasks.fitting.model import load_task_model
from elmokit.text import TruncationWarning

# Seconds between switches of threads. Those that compute need the interpreter only briefly, but
# often: with Python's default they would wait 5 ms each time for a busy event loop.
SWITCH_INTERVAL = 0.0005
# Seconds until an idle connection is closed: longer than clients and proxies keep it open.
KEEP_ALIVE = 65
MAX_HEAD = 1 << 16  # bytes of a request before its body


def serve(
    model: str | Path | None = None,
    config: ServeConfig | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> None:
    """Serve a model until SIGTERM or SIGINT; requests that were accepted by then are answered.

    It ends as these signals end a program: SIGTERM with status 0, SIGINT with KeyboardInterrupt.

    Args:
        model: As in `elmokit.load`.
        config: Where to listen, and limits; None: the defaults of `ServeConfig`.
        device: As in `Embedder`.
        dtype: As in `Embedder`.

    Raises:
        ValueError: An argument is invalid, an address other than this machine's own has no key, or
            the corpus is not text.
        FileNotFoundError: There is no such model, task model or corpus.
        OSError: The address cannot be listened on.
    """
    config = config or ServeConfig()
    config = replace(config, api_key=config.api_key or os.environ.get("ELMOKIT_API_KEY") or None)
    if config.api_key is None and "*" in allowed_hosts(config.host):
        raise ValueError(
            f"anyone who reaches {config.host}, and every web page that its users open, could use "
            "this server: set a key (--api-key, or the environment variable ELMOKIT_API_KEY)"
        )
    # uvicorn raises its signals again at its end. As process 1 of a container, Python would ignore
    # this one while the model is loaded.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with (
        socket.create_server((config.host, config.port), family=family) as listening,
        warnings.catch_warnings(),
    ):
        embedder = Embedder(model, device, dtype, softmax=True)
        embedder.embed([["a"]])  # the first sentence takes longer: let it not be a client's
        bundled = BUNDLED_CORPORA.get(embedder.model.language or "")
        if config.corpus is None and bundled and embedder.model.tokenizer is not None:
            config = replace(config, corpus=bundled, tokenize=True)
        name = config.name or Path(model or "en-small").expanduser().resolve().name
        task_model = config.task_model and load_task_model(config.task_model, device)
        service = Service(embedder, config, name, task_model)
        settings = uvicorn.Config(
            create_app(service),
            http="h11",
            h11_max_incomplete_event_size=MAX_HEAD,
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=ceil(config.timeout),
        )
        warnings.simplefilter("ignore", TruncationWarning)  # counted in the metrics
        sys.setswitchinterval(SWITCH_INTERVAL)
        host, port = listening.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"elmokit: {name} at http://{address}/", flush=True)
        uvicorn.Server(settings).run([listening])
