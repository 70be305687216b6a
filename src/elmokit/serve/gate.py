"""Middleware that counts each request and refuses it, before its body is read, if it cannot be served."""

from __future__ import annotations

import hmac
import re
import socket
import time
from ipaddress import ip_address

from anyio import fail_after
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elmokit.serve.errors import CLIENT_CLOSED_REQUEST, ClientGone, RequestError, error_response
from elmokit.serve.service import Service

READING = {"GET", "HEAD"}
READ_WITHOUT_KEY = {"/", "/health", "/ready"}
WHILE_DRAINING = {"/health", "/ready", "/metrics"}
OF_VECTORS = {"/", "/v1/embeddings", "/embed", "/embed_all", "/similarity"}  # endpoints that need the engine


def allowed_hosts(host: str) -> frozenset[bytes] | None:
    """Names in the header Host that a server listening on an address accepts; None: every name.

    A web page can let its own name point to 127.0.0.1 (DNS rebinding): a browser then takes a server on its user's
    machine for the page's own, and lets the page read its answers. The header still has the page's name.
    """
    address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0]
    if not ip_address(str(address).partition("%")[0]).is_loopback:
        return None
    named = f"[{host}]" if ":" in host else host
    return frozenset({b"localhost", b"127.0.0.1", b"[::1]", named.lower().encode()})


class Gate:
    """ASGI middleware: records metrics; checks the header Host, the key, draining, the queue and the content length."""

    def __init__(self, app: ASGIApp, service: Service, endpoints: frozenset[str]) -> None:
        """Wrap an application; metrics are labeled with `endpoints`, and "other" for all other paths."""
        self._app, self._service, self._endpoints = app, service, endpoints
        self._hosts = allowed_hosts(service.config.host)
        key = service.config.api_key
        self._authorization = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began, status, is_in_parts = time.perf_counter(), 500, False

        async def observed(message: Message) -> None:
            nonlocal status, is_in_parts
            if message["type"] == "http.response.start":
                status = message["status"]
            is_in_parts = is_in_parts or message.get("more_body", False)
            if not is_in_parts:  # it is buffered as a whole, so that sending it does not wait for the client
                await send(message)
                return
            try:
                with fail_after(self._service.config.timeout):
                    await send(message)
            except TimeoutError as error:  # the client no longer reads
                raise ClientGone from error

        self._service.in_progress += 1
        try:
            if refusal := self._refusal(scope):
                await error_response(refusal)(scope, receive, observed)
            else:
                await self._app(scope, receive, observed)
        except ClientGone:
            status = CLIENT_CLOSED_REQUEST
        finally:
            self._service.in_progress -= 1
            self._observe(scope["path"], status, time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> RequestError | None:
        """The reason to refuse a request, from its headers alone; None if there is none."""
        service, path, headers = self._service, scope["path"], dict(scope["headers"])
        if not self._has_allowed_host(headers):
            return RequestError(
                "host_not_allowed",
                "this server listens on this machine only, and the header Host names another: ask for localhost or "
                "127.0.0.1 (a proxy must send one of them), or start the server with another --host",
            )
        reads = scope["method"] in READING
        if not (reads and path in READ_WITHOUT_KEY) and not self._has_key(headers):
            return RequestError("missing_key", "this server needs its API key: Authorization: Bearer KEY")
        if service.is_draining and path not in WHILE_DRAINING:
            return RequestError("draining", "this server is shutting down: send the request to another", 1)
        if not reads and path in OF_VECTORS and service.engine.is_full:
            return service.engine.overloaded()
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > service.config.max_body:
            size = f"more than {service.config.max_body:,} bytes"
            return RequestError("too_large", f"the body has {size}: send less in a request")
        return None

    def _has_allowed_host(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the header Host names this server, with any port, or need not."""
        name = re.sub(rb":\d*$", b"", headers.get(b"host", b""))
        return self._hosts is None or name.lower() in self._hosts

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a request has the key, or needs none; compared in constant time."""
        given = headers.get(b"authorization", b"")
        return self._authorization is None or hmac.compare_digest(given, self._authorization)

    def _observe(self, path: str, status: int, seconds: float) -> None:
        endpoint = path if path in self._endpoints else "other"
        self._service.metrics.requests.labels(endpoint, str(status)).inc()
        self._service.metrics.seconds.labels(endpoint).observe(seconds)
