"""Errors over HTTP: a problem document (RFC 9457) for the API, a page for browsers."""

from __future__ import annotations

import json

from starlette.responses import Response
from starlette.types import Scope

from broker import EndpointError
from titanic.errors import (
    CallerError,
    Forbidden,
    InvalidRequest,
    KeyRefused,
    Refused,
    RequestFailed,
    TimedOut,
    TitanicError,
    UnknownRequest,
)

PROBLEM_JSON = "application/problem+json"

TITLES = {
    400: "Bad request",
    401: "Not signed in",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    413: "Too large",
    415: "Unsupported media type",
    422: "Idempotency key reused",
    424: "Request failed",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
    504: "No answer",
}

TYPES = {
    401: "not-logged-in",
    403: "forbidden",
    410: "gone",
    422: "key-reused",
    424: "request-failed",
    429: "too-many",
    503: "not-now",
}
"""The types of problems that are not derived from their titles."""


class HTTPProblem(Exception):
    """An HTTP error. `detail` is for people: what is wrong, why, and what to do."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        title: str = "",
        type: str = "",
        headers: dict[str, str] | None = None,
        members: dict[str, object] | None = None,
    ) -> None:
        """`type`: its name for programs. `members`: further members of the document."""
        super().__init__(detail)
        self.status = status
        self.title = title or TITLES.get(status, "Error")
        self.type = type or TYPES.get(status) or TITLES.get(status, "error").lower().replace(" ", "-")
        self.detail = detail
        self.headers = headers or {}
        self.members = members or {}

    def document(self) -> dict[str, object]:
        """The members of RFC 9457."""
        type = f"urn:titanic:problem:{self.type}"
        return {"type": type, "title": self.title, "status": self.status, "detail": self.detail, **self.members}


KINDS: tuple[tuple[type[TitanicError], int, str], ...] = (
    (Forbidden, 403, ""),
    (UnknownRequest, 404, "unknown-request"),
    (InvalidRequest, 400, ""),
    (RequestFailed, 424, ""),
    (TimedOut, 504, ""),
    (KeyRefused, 503, "key-refused"),
    (Refused, 503, "refused"),
    (CallerError, 400, ""),
)
"""Status and type of each TitanicError: the first that matches; an empty type is that of the status."""


def of(error: TitanicError) -> HTTPProblem:
    """Convert a TitanicError."""
    status, type = next(((status, type) for kind, status, type in KINDS if isinstance(error, kind)), (500, ""))
    if isinstance(error.__cause__, EndpointError):  # it cannot connect: there are too many open files, for example
        status, type = 503, "refused"
    if str(error).startswith("the request cannot be retried"):  # its state forbids it
        status = 409
    if str(error).startswith("store full"):
        type = "store-full"
    return HTTPProblem(status, str(error), type=type, headers={"Retry-After": "5"} if status in (503, 504) else None)


def answer(problem: HTTPProblem) -> Response:
    """The problem document."""
    body = json.dumps(problem.document()).encode()
    return Response(body, problem.status, problem.headers, PROBLEM_JSON)


def is_for_programs(scope: Scope) -> bool:
    """Whether errors are reported as documents, not as pages."""
    path: str = scope["path"]  # not the path of `Request.url`, which is parsed from a text that contains Host
    return path.startswith("/v1/") or path in ("/v1", "/metrics")
