"""Shared parts of the OpenAPI document: schemas, parameters, headers and error responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from titanic.protocol.answers import ORIGIN
from titanic.protocol.submit_options import MAX_PRIORITY, MOST_SECONDS
from titanic.web.problems import PROBLEM_JSON, TITLES
from titanic.web.request_headers import MAX_KEY, MIN_SPAN

Part = dict[str, Any]
"""A part of an OpenAPI document."""

STATES = ("waiting", "delayed", "running", "done", "failed", "expired")

UUID: Part = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
PATH: Part = {"type": "string", "format": "uri-reference"}
TEXT: Part = {"type": "string"}
COUNT: Part = {"type": "integer", "minimum": 0}
MOMENT: Part = {"type": ["string", "null"], "format": "date-time", "description": "RFC 3339, in UTC; null: none."}

_BINARY: Part = {"schema": {"type": "string", "format": "binary"}}
_JSON: Part = {"application/json": {"schema": {}}}

ANY_BODY: Part = {**_JSON, "text/plain": {"schema": TEXT}, "application/octet-stream": _BINARY}
"""A request body of any type."""

ANY_ANSWER: Part = {**_JSON, "*/*": _BINARY}
"""A response body of any type."""


def ref(kind: str, name: str) -> Part:
    """A reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def listed(items: Part) -> Part:
    """The schema of a list."""
    return {"type": "array", "items": items}


def record(properties: Mapping[str, Part], optional: Mapping[str, Part] | None = None) -> Part:
    """The schema of an object with required and optional properties."""
    return {"type": "object", "properties": {**properties, **(optional or {})}, "required": list(properties)}


def answer(text: str, schema: Part | None = None, headers: Mapping[str, Part] | None = None) -> Part:
    """A response, with a JSON document if a schema is given."""
    found: Part = {"description": text}
    if schema is not None:
        found["content"] = {"application/json": {"schema": schema}}
    if headers:
        found["headers"] = dict(headers)
    return found


def header(text: str, schema: Part | None = None, *, required: bool = True) -> Part:
    """A header of a response."""
    return {"description": text, "schema": schema or TEXT, "required": required}


def parameter(where: str, name: str, text: str, schema: Part) -> Part:
    """A parameter in the `query`, the `header` or the `path`."""
    return {"in": where, "name": name, "description": text, "schema": schema, "required": where == "path"}


def wrong(*more: int) -> dict[str, Part]:
    """Error responses: those that every call may return, and these."""
    return {str(status): ref("responses", str(status)) for status in sorted({*EVERYWHERE, *more})}


EVERYWHERE = (400, 401, 403, 429, 503, 504)

SPAN: Part = {"type": "number", "minimum": MIN_SPAN, "maximum": MOST_SECONDS}
DELAY: Part = {"type": "number", "minimum": 0, "maximum": MOST_SECONDS}

SUBMIT_HEADERS = [
    parameter("header", "traceparent", "The trace of the request (W3C). It is passed to the worker.", TEXT),
    parameter("header", "Titanic-TTL", "Seconds after which the request expires if no worker has started it.", SPAN),
    parameter("header", "Titanic-Delay", "Seconds before the request may start.", DELAY),
    parameter(
        "header",
        "Titanic-Priority",
        "Requests with a higher priority start first.",
        {"type": "integer", "minimum": 0, "maximum": MAX_PRIORITY, "default": 4},
    ),
    parameter(
        "header",
        "Titanic-Max-Attempts",
        "Maximum number of attempts before the request fails.",
        {"type": "integer", "minimum": 1, "maximum": 65535},
    ),
    parameter("header", "Titanic-Limit", "Maximum seconds of one attempt.", SPAN),
    parameter(
        "header",
        "Idempotency-Key",
        "Submitting again with the same key returns the same request. Plain text, or a quoted string in the syntax of "
        "structured fields.",
        {
            "type": "string",
            "maxLength": MAX_KEY,
            "pattern": r'^([!#-}]([ -~]*[!-~])?|"([!#-\[\]-}]|\\["\\])([ !#-\[\]-~]|\\["\\])*")$',
        },
    ),
]

SERVICE = parameter(
    "path",
    "service",
    "The name of a service: printable UTF-8 of 1 to 255 bytes, percent-encoded, also a slash. "
    "Names that begin with `mmi.` or `titanic.` are not for requests.",
    {"type": "string", "minLength": 1, "maxLength": 255, "format": "service-name"},
)

REQUEST = parameter(
    "path",
    "uuid",
    "The UUID of a request: 32 hexadecimal digits, with or without dashes.",
    {
        "type": "string",
        "pattern": "^[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}\\1[0-9a-fA-F]{4}\\1[0-9a-fA-F]{4}\\1[0-9a-fA-F]{12}$",
    },
)

LINKS = record({"self": PATH, "reply": PATH})

_REQUEST = record(
    {
        "uuid": UUID,
        "service": TEXT,
        "state": {"enum": [*STATES, "cancelled"]},
        "key": {"type": "string", "description": "Its idempotency key; empty: it has none."},
        "priority": {"type": "integer", "minimum": 0, "maximum": MAX_PRIORITY},
        "max_attempts": {"type": "integer", "minimum": 0, "description": "0: the server's default."},
        "options": {
            "type": "object",
            "description": "`limit`, `retry_first`, `retry_most` as far as given, in seconds.",
        },
        "submitted_at": MOMENT,
        "not_before": MOMENT,
        "expires_at": MOMENT,
        "body_frames": COUNT,
        "body_bytes": COUNT,
        "attempts": COUNT,
        "dispatched_at": MOMENT,
        "due": MOMENT,
        "finished_at": MOMENT,
        "reason": {"type": "string", "description": "Why it failed, the last time or for good."},
        "reply_frames": COUNT,
        "reply_bytes": COUNT,
        "links": ref("schemas", "Links"),
    },
    {
        "worker": {"type": "string", "description": "HOST:PID of the worker that has the request, if known."},
        "progress": {"type": "object", "description": "The progress that its worker reported: `done`, `of`, `text`."},
        "running_since": MOMENT,
        "deliveries": {**COUNT, "description": "How often it was sent to workers, if that is more than `attempts`."},
        "trace": TEXT,
        **{name: {"type": "string", "description": text} for name, text in ORIGIN.items()},
        "type": {"type": "string", "description": "The content type of its body."},
        "digest": TEXT,
    },
)

SCHEMAS: dict[str, Part] = {
    "Accepted": record({"uuid": UUID, "links": ref("schemas", "Links")}),
    "Links": LINKS,
    "Request": _REQUEST,
    "Problem": {
        **record(
            {"type": TEXT, "title": TEXT, "status": {"type": "integer"}, "detail": TEXT},
            {
                "uuid": UUID,
                "state": TEXT,
                "worker": {**listed(TEXT), "description": "The worker's description of the failure."},
                "stored": {**COUNT, "description": "For a batch: how many requests were stored before it failed."},
                "uuids": listed(UUID),
            },
        ),
        "description": "RFC 9457. `type`: for programs, `urn:titanic:problem:` and a name. `detail`: for people: what "
        "is wrong, why, and what to do.",
    },
}

WHAT_NOW = {
    400: "The request is wrong: repeating it does not help.",
    401: "You are not logged in.",
    403: "You lack a permission, or the request is cross-origin.",
    429: "You have too much open at the same time.",
    503: "Temporarily unavailable: no room, or the server is away or shutting down. Retry later.",
    504: "The server did not answer. With an idempotency key, retry.",
    404: "There is no such request.",
    409: "The request is in another state.",
    410: "The request no longer exists: closed, deleted after its time, or never accepted.",
    413: "The body is too large.",
    415: "The content type is not supported.",
    422: "The key was used with another body.",
    424: "The request has ended without a reply: it failed or expired.",
}

RETRY_AFTER = {"Retry-After": header("Seconds to wait.", {"type": "integer"})}


def _problem(status: int) -> Part:
    response: Part = {
        "description": f"{TITLES[status]}. {WHAT_NOW[status]}",
        "content": {PROBLEM_JSON: {"schema": ref("schemas", "Problem")}},
    }
    return response | ({"headers": RETRY_AFTER} if status in (503, 504) else {})


RESPONSES = {str(status): _problem(status) for status in WHAT_NOW}
