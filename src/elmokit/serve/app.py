"""The application: the gate before every request, the page, the endpoints of the server itself, and
errors.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import socket
import time
from functools import cache
from importlib import resources
from ipaddress import ip_address
from itertools import chain
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import elmokit
from elmokit.analysis.word_map import page_part
from elmokit.serve import endpoints, explore
from elmokit.serve.engine import overloaded
from elmokit.serve.schemas import CLOSE, ErrorAnswer, RequestError, error_response
from elmokit.serve.service import KEY, Service, time_limit

READING = ["GET", "HEAD"]
OPEN = {
    "/",
    "/docs",
    "/openapi.json",
    "/health",
    "/ready",
}  # may be read without the key, and by links on other sites
PAGE_KINDS = ("html", "css", "js")  # of the files that make up the page
WHILE_DRAINING = {"/health", "/metrics"}
OF_VECTORS = {
    "/",
    "/v1/embeddings",
    "/embed",
    "/embed_all",
    "/similarity",
}  # endpoints that need the engine
ERRORS = (401, 403, 404, 405, 408, 413, 415, 422, 429, 431, 500, 503)  # statuses of answers
MAX_HEAD = 1 << 16  # bytes of a request before its body
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left; only logs and metrics see it


# --- The gate -------------------------------------------------------------------------------------


def allowed_hosts(host: str) -> frozenset[bytes] | None:
    """Names in the header Host that a server listening on an address accepts; None: every name.

    A web page can let its own name point to 127.0.0.1 (DNS rebinding): a browser then takes a
    server on its user's machine for the page's own, and lets the page read its answers. The header
    still has the page's name.
    """
    address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0]
    if not ip_address(str(address).partition("%")[0]).is_loopback:
        return None
    named = f"[{host}]" if ":" in host else host
    return frozenset({b"localhost", b"127.0.0.1", b"[::1]", named.lower().encode()})


class Gate:
    """ASGI middleware: records metrics, and refuses a request that cannot be served before its body
    is read.
    """

    def __init__(self, app: ASGIApp, service: Service, paths: set[str]) -> None:
        """Wrap an application; metrics are labeled with its `paths`, and "other" for all other
        paths.
        """
        self._app, self._service, self._paths = app, service, paths
        self._hosts = allowed_hosts(service.config.host)
        key = service.config.api_key
        self._authorization = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, began, status = self._service, time.perf_counter(), 500

        async def send_in_time(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            try:
                with time_limit(service.config.timeout):
                    await send(message)
            except TimeoutError as error:  # the client no longer reads
                raise ClientDisconnect from error

        service.in_progress += 1
        try:
            if refusal := self._refusal(scope):
                await error_response(refusal)(scope, receive, send_in_time)
            else:
                await self._app(scope, receive, send_in_time)
        except ClientDisconnect:
            status = CLIENT_CLOSED_REQUEST
        finally:
            service.in_progress -= 1
            endpoint = scope["path"] if scope["path"] in self._paths else "other"
            service.metrics.requests.labels(endpoint, status).observe(time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> RequestError | None:
        """The reason to refuse a request, from its headers alone; None if there is none."""
        service, path, headers = self._service, scope["path"], dict(scope["headers"])
        name = re.sub(rb":\d*$", b"", headers.get(b"host", b""))  # with any port
        if self._hosts is not None and name.lower() not in self._hosts:
            message = (
                "this server is for this machine: ask for localhost, or start it with "
                "another --host"
            )
            return RequestError(403, "host_not_allowed", message)
        if sum(map(len, chain.from_iterable(scope["headers"]))) > MAX_HEAD:
            return RequestError(
                431, "too_large", f"the headers have more than {MAX_HEAD:,} bytes", CLOSE
            )
        reads, given = scope["method"] in READING, headers.get(b"authorization", b"")
        is_open = reads and path in OPEN
        if not is_open and self._is_foreign(headers):
            message = (
                "a page of another site asks: the server must be started with --cors and "
                "that page's origin"
            )
            return RequestError(403, "origin_not_allowed", message)
        if not (
            is_open
            or self._authorization is None
            or hmac.compare_digest(given, self._authorization)
        ):
            message = (
                "this is not the API key of this server"
                if given
                else "this server needs its API key"
            )
            code, bearer = "wrong_key" if given else "missing_key", {"www-authenticate": "Bearer"}
            return RequestError(401, code, f"{message}: Authorization: Bearer KEY", bearer)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            return RequestError(
                415, "unsupported_media_type", "the body is compressed: send it as it is"
            )
        if service.is_draining and path not in WHILE_DRAINING:
            return RequestError(
                503, "draining", "this server is shutting down: ask another", {"retry-after": "1"}
            )
        if not reads and path in OF_VECTORS and service.engine.is_full:
            return overloaded()
        return None

    def _is_foreign(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a browser asks for a page of another site, which might use a server that only its
        user can reach.
        """
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if {"*", (origin or b"").decode("latin-1")} & set(self._service.config.cors):
            return False
        if site is not None:
            return site not in (b"same-origin", b"none")
        return origin is not None and origin.partition(b"://")[2] != headers.get(b"host")


# --- The page -------------------------------------------------------------------------------------


@cache
def page() -> Response:
    """The page, one document that shares the map of a word with the pages of `elmokit senses`."""
    frame, style, script = (
        resources.files("elmokit.serve").joinpath(f"page.{kind}").read_text("utf-8")
        for kind in PAGE_KINDS
    )
    style = re.sub(
        r"\s*([{};,])\s*|(?<=[a-z]:) ", r"\1", page_part("word_map.css") + style
    ).replace(";}", "}")
    script = page_part("word_map.js") + "\n" + script
    text = frame.replace("{style}", style).replace("{script}", script)
    text = re.sub(
        r"^ *(//.*)?\n|^ +|  //.*$", "", text, flags=re.MULTILINE
    )  # without comments and indentation
    return document(text)


def document(text: str) -> Response:
    """An HTML document whose policy allows its own style and script, by their hashes, its empty
    icon, and requests to this server.
    """

    def source(element: str) -> str:
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", text, flags=re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    policy = (
        f"default-src 'none'; script-src {source('script')}; style-src {source('style')}; img-src "
        "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }
    return Response(text, headers=headers, media_type="text/html")


# --- Endpoints of the server itself ---------------------------------------------------------------

router = APIRouter(tags=["server"])


@router.api_route("/", methods=READING, include_in_schema=False)
async def get_page() -> Response:
    """The page."""
    return page()


@router.get("/docs", include_in_schema=False)
async def get_reference() -> Response:
    """The requests and answers, as /openapi.json describes them."""
    return document(
        resources.files("elmokit.serve").joinpath("reference.html").read_text(encoding="utf-8")
    )


@router.head("/ready", include_in_schema=False)
@router.head("/health", include_in_schema=False)
@router.get("/ready")
@router.get("/health")
async def health() -> dict[str, str]:
    """Whether the process is alive; with /ready, whether it accepts requests, which it does until
    it drains.
    """
    return {"status": "ok"}


@router.get("/info", dependencies=[KEY])
async def info(request: Request) -> dict[str, Any]:
    """The model, what it can do, and the limits of requests."""
    service: Service = request.app.state.service
    embedder, limits = service.embedder, ("max_words", "queue_words", "max_body", "timeout")
    return {
        "version": elmokit.__version__,
        "model": service.name,
        "fingerprint": service.fingerprint,
        "dim": embedder.dim,
        "layers": embedder.num_layers,
        "tokenizer": embedder.model.tokenizer,
        "vocabulary": None if embedder.model.vocab is None else len(embedder.model.vocab),
        "predicts_words": service.predicts_words,
        "task": None if service.task_model is None else service.task_model.task.name,
        "has_corpus": service.config.corpus is not None,
        "limits": {name: getattr(service.config, name) for name in limits},
    }


@router.get("/metrics", dependencies=[KEY], response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    registry = request.app.state.service.metrics.registry
    return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})


@router.get("/v1/models", dependencies=[KEY])
async def models(request: Request) -> dict[str, Any]:
    """The one model of this server, in the form of OpenAI's API."""
    return {"object": "list", "data": [await model(request, request.app.state.service.name)]}


@router.get("/v1/models/{name:path}", dependencies=[KEY])
async def model(request: Request, name: str) -> dict[str, Any]:
    """The model of this name, in the form of OpenAI's API."""
    request.app.state.service.check_name(name)
    return {"id": name, "object": "model", "created": 0, "owned_by": "elmokit"}


# --- The application ------------------------------------------------------------------------------


async def _refused(request: Request, error: Any) -> Response:
    return error_response(error)


async def _failed(request: Request, error: Exception) -> Response:
    return error_response(
        RequestError(500, "internal_error", "the request failed; the server's log says why")
    )


def create_app(service: Service) -> FastAPI:
    """The application of a service.

    FastAPI's documentation pages load scripts from another host: there is one of our own.
    """
    app = FastAPI(
        title="elmokit",
        version=elmokit.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={status: {"model": ErrorAnswer} for status in ERRORS},
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.state.service = service
    routers = (endpoints.router, explore.router, router)
    for each in routers:
        app.include_router(each)
    paths = {route.path for each in routers for route in each.routes if isinstance(route, APIRoute)}
    app.add_middleware(Gate, service=service, paths=paths)
    if origins := service.config.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["retry-after", "x-truncated-words"],
        )
    return app
