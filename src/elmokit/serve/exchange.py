"""One exchange with a client: read the body, within the limits; answer, unless the client leaves or time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, get_type_hints

from anyio import fail_after
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from elmokit.serve.config import ServeConfig
from elmokit.serve.errors import ClientGone, RequestError, invalid_body

Result = TypeVar("Result")


def json_response(value: Any) -> Response:
    """A JSON value as a response; numbers that are not finite, which JSON lacks, become null."""
    return Response(to_json(value, inf_nan_mode="null"), media_type="application/json")


async def _read_body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise RequestError("too_large", f"the body has more than {max_bytes:,} bytes: send less in a request")
        more = message.get("more_body", False)
    return bytes(body)


async def read_body(request: Request, config: ServeConfig) -> bytes:
    """The body of a request. RequestError if it is too large or slow, ClientGone if the client disconnects."""
    try:
        with fail_after(config.timeout):
            return await _read_body(request, config.max_body)
    except TimeoutError as error:
        raise RequestError("body_timeout", f"the body took more than {config.timeout:g} seconds") from error


async def answer(request: Request, result: asyncio.Future[Result], timeout: float) -> Result:
    """Wait for the result of a request's work, which is cancelled if the client disconnects or the time is up.

    Args:
        request: The request, whose body was read.
        result: The future of the work.
        timeout: Seconds to wait.

    Raises:
        ClientGone: The client closed the connection.
        RequestError: The work takes too long.
    """

    async def wait_until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    timed_out = False

    def end_waiting() -> None:
        nonlocal timed_out
        timed_out = True
        result.cancel()

    gone = asyncio.ensure_future(wait_until_gone())
    gone.add_done_callback(lambda _: result.cancel())
    timer = asyncio.get_running_loop().call_later(timeout, end_waiting)
    try:
        return await result
    except asyncio.CancelledError:
        if gone.done() and not gone.cancelled():
            raise ClientGone from None
        if timed_out:
            raise RequestError("timeout", f"no answer within {timeout:g} seconds: try again later", 5) from None
        raise
    finally:
        timer.cancel()
        gone.cancel()


class JsonRoute(APIRoute):
    """A route whose endpoint takes the request and its body, `endpoint(request, body)`, and returns a JSON value.

    The body is read as JSON, whatever its content type says, and pydantic parses its bytes, so that all errors in it
    are of one kind.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if "body" not in get_type_hints(self.endpoint):
            return super().get_route_handler()
        schema: type[BaseModel] = get_type_hints(self.endpoint)["body"]
        endpoint: Callable[[Request, BaseModel], Awaitable[Any]] = self.endpoint

        async def handle(request: Request) -> Response:
            try:
                body = schema.model_validate_json(await read_body(request, request.app.state.service.config))
            except ValidationError as error:
                raise invalid_body(error) from error
            value = await endpoint(request, body)
            return value if isinstance(value, Response) else json_response(value)

        return handle
