"""HTTP for programs, below /v1: requests, replies, lists and events as resources. See ../README.md.

A module has the routes of its calls in ROUTES, and beside them, in PATHS, what the OpenAPI document says of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from titanic.web.api import batch, events, hooks, leases, lists, openapi, reply, requests, session
from titanic.web.api.resource import Resource

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

LONGEST = 300
"""Bytes of a path that is remembered: those of services. Others come from who has no good in mind."""

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


def find(raw_path: bytes) -> tuple[Resource, Mapping[str, str]] | None:
    """What is at a path as it was sent, and the parameters in it; None: nothing. Raises Problem."""
    return _found(raw_path) if len(raw_path) <= LONGEST else _found.__wrapped__(raw_path)


@lru_cache(maxsize=1000)
def _found(raw_path: bytes) -> tuple[Resource, Mapping[str, str]] | None:
    for resource in ROUTES:
        if (parameters := resource.parameters(raw_path)) is not None:
            return resource, MappingProxyType(parameters)
    return None
