"""Errors as clients see them: one table of codes with their statuses, and one format, that of OpenAI's API."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import to_json
from starlette.responses import Response

# The code of an error -> its HTTP status.
STATUSES = {
    "invalid_request": 422,
    "missing_key": 401,
    "host_not_allowed": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "too_large": 413,
    "overloaded": 429,
    "internal_error": 500,
    "draining": 503,
    "timeout": 503,
    "unhealthy": 503,
}
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left; only logs and metrics see it
REASONS_SHOWN = 3  # in the message for a body that is not valid


class RequestError(Exception):
    """A request that is answered with an error.

    Attributes:
        code: A key of `STATUSES`.
        retry_after: Seconds after which the same request may succeed; None if not known.
    """

    def __init__(self, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code, self.retry_after = code, retry_after


class ClientGone(Exception):
    """The client closed the connection, or stopped reading, before it had its answer."""


def error_response(error: RequestError) -> Response:
    """The answer to a request that is refused."""
    status = STATUSES[error.code]
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in (408, 413):  # the rest of the body is not read
        headers["connection"] = "close"
    return Response(to_json(body), status, headers, "application/json")


def invalid_body(error: ValidationError) -> RequestError:
    """The error for a body that is not valid: the reasons in one line, without the body itself."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    reasons = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}".removeprefix(": ") for detail in details]
    more = f" (and {len(reasons) - REASONS_SHOWN} more)" if len(reasons) > REASONS_SHOWN else ""
    return RequestError("invalid_request", "; ".join(reasons[:REASONS_SHOWN]) + more)
