"""HTTP for programs, below /v1: requests, replies, lists and events as resources. See ../README.md.

A module has the routes of its calls in ROUTES, and beside them, in PATHS, what the OpenAPI document says of them.
"""

from __future__ import annotations

from typing import Any

from starlette.routing import BaseRoute

from titanic.web.door import batch, events, hooks, leases, lists, openapi, reply, requests, session

PATHS: dict[str, dict[str, Any]] = {
    **requests.PATHS,
    **batch.PATHS,
    **reply.PATHS,
    **lists.PATHS,
    **events.PATHS,
    **leases.PATHS,
    **hooks.PATHS,
    **session.PATHS,
    **openapi.PATHS,
}

ROUTES: list[BaseRoute] = [
    *requests.ROUTES,
    *batch.ROUTES,
    *reply.ROUTES,
    *lists.ROUTES,
    *events.ROUTES,
    *leases.ROUTES,
    *session.ROUTES,
    *hooks.ROUTES,
    openapi.resource(PATHS),
]
