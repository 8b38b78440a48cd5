"""HTTP for programs, below /v1: requests, replies, lists and events as resources. See ../README.md.

A module has the routes of its calls in ROUTES, and beside them, in PATHS, what the OpenAPI document says of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from titanic.web.door import batch, events, hooks, leases, lists, openapi, reply, requests, session
from titanic.web.door.resource import Resource

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

ROUTES = [
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


@lru_cache(maxsize=256)
def find(raw_path: bytes) -> tuple[Resource, dict[str, str]] | None:
    """What is at a path as it was sent, and the parameters in it; None: nothing. Raises Problem."""
    for resource in ROUTES:
        if (parameters := resource.parameters(raw_path)) is not None:
            return resource, parameters
    return None
