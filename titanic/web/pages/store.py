"""The store: its room, how safe it is, what an archive lags behind, nodes, and how to make a backup."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.pages.asking import Missing, unless_forbidden

DURABILITY = {
    "synced": "What was acknowledged is on disk, and outlives a power cut.",
    "relaxed": "The disk is synced once a second: a power cut may lose what was acknowledged in the last one. A kill of"
    " the server loses nothing.",
    "memory": "It is in memory only: it outlives the server, but not the machine.",
}


async def store(request: Request) -> Response:
    """The page."""
    gateway, visitor = gateway_of(request), visitor_of(request)
    sample, nodes, archive = await asyncio.gather(
        unless_forbidden("how full the store is", gateway.live.sample(visitor)),
        unless_forbidden("which nodes share the store", visitor.client.nodes()),
        unless_forbidden("what the archive has", visitor.client.archive()),
    )
    missing = [one for one in (sample, nodes, archive) if isinstance(one, Missing)]
    stats: dict[str, Any] | None = None if isinstance(sample, Missing) else sample.stats
    path = stats["store"]["path"] if stats else ""
    return gateway.page(
        request,
        "store.html",
        stats=stats,
        nodes=None if isinstance(nodes, Missing) else nodes,
        archive=None if isinstance(archive, Missing) else archive,
        missing=missing,
        durability=DURABILITY.get(stats["durability"], "") if stats else "",
        database=path.startswith(("postgresql:", "postgres:")),
    )


ROUTES = [Route("/store", store)]
