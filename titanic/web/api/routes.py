"""The routes of /v1, and the OpenAPI document that describes them.

Each module has the routes of its calls in ROUTES, and their part of the document in PATHS.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from titanic.version import __version__
from titanic.web.api import batch, events, hooks, leases, requests, schemas
from titanic.web.api.resource import ApiRoute
from titanic.web.api.schemas import TEXT, answer, record, wrong
from titanic.web.app_state import visitor_of
from titanic.web.request_headers import read_query

DOCUMENT = "/v1/openapi.json"

DESCRIPTION = """Requests that survive: submit one, go away, come back for the reply.

Errors are problem documents (RFC 9457). The server checks permissions for each call."""

PATHS: dict[str, dict[str, Any]] = {
    **requests.PATHS,
    **batch.PATHS,
    **events.PATHS,
    **leases.PATHS,
    **hooks.PATHS,
    "/v1/session": {
        "get": {
            "operationId": "session",
            "summary": "Get the signed-in user",
            "responses": {
                "200": answer(
                    "`csrf` is the value of the header `X-CSRF-Token` for calls with a session cookie that change "
                    "something; null: not needed.",
                    record({"user": TEXT, "csrf": {"type": ["string", "null"]}}),
                ),
                **wrong(),
            },
        }
    },
    DOCUMENT: {
        "get": {
            "operationId": "openapi",
            "summary": "This document",
            "responses": {"200": answer("An OpenAPI document.", {"type": "object"}), **wrong()},
        }
    },
}


def document() -> dict[str, Any]:
    """Make the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Titanic", "version": __version__, "description": DESCRIPTION, "license": {"name": "MIT"}},
        "servers": [{"url": "/"}],
        "paths": dict(sorted(PATHS.items())),
        "components": {
            "schemas": schemas.SCHEMAS,
            "responses": schemas.RESPONSES,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
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
    *batch.ROUTES,
    *events.ROUTES,
    *leases.ROUTES,
    *hooks.ROUTES,
    ApiRoute("/v1/session", GET=get_session),
    ApiRoute(DOCUMENT, GET=get_document),
]
