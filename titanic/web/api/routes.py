"""The routes of /v1, and the OpenAPI document that describes them.

Each module has the routes of its calls in ROUTES, and their part of the document in PATHS.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from titanic.version import __version__
from titanic.web.api import event_stream, hooks, leases, request_batch, requests, services
from titanic.web.api.openapi import Session, answer, components, wrong
from titanic.web.api.resource import ApiRoute
from titanic.web.app_state import visitor_of
from titanic.web.request_headers import read_query

DOCUMENT = "/v1/openapi.json"

DESCRIPTION = """A persistent request queue: submit a request now, fetch its reply later.

Errors are problem documents (RFC 9457). The server checks permissions for each call."""

_OWN: dict[str, dict[str, Any]] = {
    "/v1/session": {
        "get": {
            "operationId": "session",
            "summary": "Get the signed-in user",
            "responses": {
                "200": answer("The user, and the CSRF token of the session.", Session),
                **wrong(),
            },
        }
    },
    DOCUMENT: {
        "get": {
            "operationId": "openapi",
            "summary": "This document",
            "responses": {"200": answer("An OpenAPI document.", dict[str, Any]), **wrong()},
        }
    },
}

TAGS: dict[str, tuple[dict[str, dict[str, Any]], str]] = {
    "requests": ({**requests.PATHS, **request_batch.PATHS}, "Requests and their replies."),
    "services": (services.PATHS, "Services and statistics."),
    "events": (event_stream.PATHS, "Server-sent events."),
    "workers": (leases.PATHS, "Workers over HTTP."),
    "hooks": (hooks.PATHS, "Web hooks."),
    "gateway": (_OWN, "The gateway itself."),
}
"""The groups of operations, each with its paths and a sentence."""


def _tagged(tag: str, item: dict[str, Any]) -> dict[str, Any]:
    """A path with a tag for its operations."""
    return {name: part if name == "parameters" else {"tags": [tag], **part} for name, part in item.items()}


PATHS = {path: _tagged(tag, item) for tag, (paths, _) in TAGS.items() for path, item in paths.items()}


def document() -> dict[str, Any]:
    """Make the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Titanic", "version": __version__, "description": DESCRIPTION, "license": {"name": "MIT"}},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag, "description": text} for tag, (_, text) in TAGS.items()],
        "paths": dict(sorted(PATHS.items())),
        "components": components(),
        "security": [{}, {"token": []}],
    }


_DOCUMENT = json.dumps(document()).encode()


async def get_document(request: Request) -> Response:
    """Get the OpenAPI document."""
    read_query(request, ())
    return Response(_DOCUMENT, media_type="application/json")


async def get_session(request: Request) -> Response:
    """Get {user, csrf}; `csrf` is null if no token is needed."""
    visitor = visitor_of(request)
    return JSONResponse({"user": visitor.user, "csrf": visitor.csrf if visitor.needs_csrf else None})


ROUTES = [
    *requests.ROUTES,
    *request_batch.ROUTES,
    *services.ROUTES,
    *event_stream.ROUTES,
    *leases.ROUTES,
    *hooks.ROUTES,
    ApiRoute("/v1/session", GET=get_session),
    ApiRoute(DOCUMENT, GET=get_document),
]
