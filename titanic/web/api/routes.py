"""The routes of /v1, and the OpenAPI document that describes them.

Each module has its calls and their part of the document in ROUTES.
"""

from __future__ import annotations

import json
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from titanic.protocol import tsp
from titanic.protocol.answers import check
from titanic.version import __version__
from titanic.web.api import event_stream, hooks, jobs, leases, request_batch, requests, services
from titanic.web.api.openapi import IN_PATH, Session, answer, components, endpoint, parameter, wrong
from titanic.web.api.resource import ApiRoute, query_of
from titanic.web.app_state import app_state, visitor_of
from titanic.web.request_headers import ROOT

DESCRIPTION = """A persistent request queue: submit a request now, fetch its reply later.

Errors are problem documents (RFC 9457). The server checks permissions for each call."""


async def get_document(request: Request) -> Response:
    """Get the OpenAPI document."""
    own = _DOCUMENT.replace(_SERVERS, _SERVERS.replace(b'"/"', json.dumps(ROOT.get() or "/").encode()), 1)
    return Response(own, media_type="application/json")


async def get_session(request: Request) -> Response:
    """Get {user, csrf}; `csrf` is null if no token is needed."""
    visitor = visitor_of(request)
    return JSONResponse({"user": visitor.user, "csrf": visitor.csrf if visitor.needs_csrf else None})


async def delete_sessions(request: Request) -> Response:
    """End all sessions of the user, or of another one."""
    await end_sessions(request, query_of(request).get("user", ""))
    return Response(status_code=204)


async def end_sessions(request: Request, user: str) -> None:
    """End all sessions of a user, by default the visitor. The server decides about those of another, and records it."""
    visitor = visitor_of(request)
    if user not in ("", visitor.user):
        options = {"do": "sessions", "user": user}
        check(await visitor.client.calls.ask(tsp.ADMIN, json.dumps(options).encode()))
    app_state(request).identity.sessions.end_all(user or visitor.user, time.time())


_ENDED = {"204": answer("They are ended."), **wrong()}
_OF = [parameter("query", "user", "Another user; that needs `admin`.", str)]
_SESSION = {"200": answer("The user, and the CSRF token of the session.", Session), **wrong()}
_OPENAPI = {"200": answer("An OpenAPI document.", dict[str, Any]), **wrong()}

TAGS: dict[str, tuple[list[ApiRoute], str]] = {
    "requests": ([*requests.ROUTES, *request_batch.ROUTES], "Requests and their replies."),
    "jobs": (jobs.ROUTES, "Many requests at a time."),
    "services": (services.ROUTES, "Services and statistics."),
    "events": (event_stream.ROUTES, "Server-sent events."),
    "workers": (leases.ROUTES, "Workers over HTTP."),
    "hooks": (hooks.ROUTES, "Webhooks."),
    "gateway": (
        [
            ApiRoute("/v1/session", GET=endpoint(get_session, "session", "Get the signed-in user", _SESSION)),
            ApiRoute(
                "/v1/sessions",
                DELETE=endpoint(delete_sessions, "end_sessions", "End all sessions of a user", _ENDED, parameters=_OF),
            ),
            ApiRoute("/v1/openapi.json", GET=endpoint(get_document, "openapi", "This document", _OPENAPI)),
        ],
        "The gateway itself.",
    ),
}
"""The groups of operations, each with its routes and a sentence."""

ROUTES = [route for routes, _ in TAGS.values() for route in routes]


def _item(tag: str, route: ApiRoute) -> dict[str, Any]:
    """What the document says of a path."""
    item: dict[str, Any] = {name: {"tags": [tag], **operation} for name, operation in route.operations.items()}
    if route.names:
        item["parameters"] = [parameter("path", name, *IN_PATH[name]) for name in route.names]
    return item


PATHS = {route.path: _item(tag, route) for tag, (routes, _) in TAGS.items() for route in routes}


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
_SERVERS = b'"servers": [{"url": "/"}]'
