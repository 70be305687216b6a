"""The application: endpoints, errors, and the gate before them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

import elmokit
from elmokit.serve import language, vectors
from elmokit.serve.errors import STATUSES, RequestError, error_response
from elmokit.serve.exchange import json_response
from elmokit.serve.gate import Gate
from elmokit.serve.metrics import CONTENT_TYPE
from elmokit.serve.page import page_response
from elmokit.serve.schemas import ErrorAnswer
from elmokit.serve.service import Service

router = APIRouter(tags=["server"])


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The page."""
    return page_response()


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health(request: Request) -> Any:
    """Whether the process is alive and can compute; status 503 if it needs a restart."""
    if not request.app.state.service.engine.is_alive:
        raise RequestError("unhealthy", "the thread that computes has ended: restart the server")
    return {"status": "alive"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready")
async def ready(request: Request) -> Response:
    """Whether requests are accepted; status 503 while the server drains."""
    if request.app.state.service.is_draining:
        raise RequestError("draining", "this server is shutting down")
    return json_response({"status": "ready"})


@router.get("/info")
async def info(request: Request) -> Any:
    """The model, what it can do, and the limits of requests."""
    return request.app.state.service.describe()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    return Response(request.app.state.service.metrics.text(), headers={"content-type": CONTENT_TYPE})


async def _refused(request: Request, error: Any) -> Response:
    return error_response(error)


async def _not_found(request: Request, error: Any) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    response = error_response(RequestError(code, f"{request.method} {request.url.path}: {error.detail}"))
    response.headers.update(error.headers or {})  # such as Allow, if the method is not allowed
    return response


async def _failed(request: Request, error: Exception) -> Response:
    return error_response(RequestError("internal_error", "the request failed; the server's log says why"))


def create_app(service: Service) -> FastAPI:
    """The application of a service.

    FastAPI's documentation pages load scripts from another host, so they are turned off; /openapi.json is served.
    """
    app = FastAPI(
        title="elmokit", version=elmokit.__version__, docs_url=None, redoc_url=None, redirect_slashes=False,
        responses={status: {"model": ErrorAnswer} for status in sorted(set(STATUSES.values()))},
    )  # fmt: skip
    app.state.service = service
    endpoints = set()
    for each in (vectors.router, language.router, router):  # tried in this order
        app.include_router(each)
        endpoints |= {route.path for route in each.routes if isinstance(route, APIRoute)}
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(Gate, service=service, endpoints=frozenset(endpoints))
    return app
