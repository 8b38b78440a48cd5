"""GET /v1/openapi.json: the calls of the door as an OpenAPI document. Each module has the paths of its routes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from titanic.version import __version__
from titanic.web.api import headers, schemas
from titanic.web.api.resource import Resource
from titanic.web.api.schemas import answer, wrong

PATH = "/v1/openapi.json"

PATHS: dict[str, dict[str, Any]] = {
    PATH: {
        "get": {
            "operationId": "openapi",
            "summary": "This document",
            "responses": {"200": answer("An OpenAPI document.", {"type": "object"}), **wrong()},
        }
    }
}

DESCRIPTION = """Requests that survive: submit one, go away, come back for the reply.

Errors are problem documents (RFC 9457). Who may do what is decided by the server, for each call."""


def document(paths: Mapping[str, Any]) -> dict[str, Any]:
    """The document of some paths."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Titanic", "version": __version__, "description": DESCRIPTION, "license": {"name": "MIT"}},
        "servers": [{"url": "/"}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas.SCHEMAS,
            "responses": schemas.RESPONSES,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def resource(paths: Mapping[str, Any]) -> Resource:
    """The document, to be fetched."""
    made = json.dumps(document(paths)).encode()

    async def get_document(request: Request) -> Response:
        headers.query(request, ())
        return Response(made, media_type="application/json")

    return Resource(PATH, GET=get_document)
