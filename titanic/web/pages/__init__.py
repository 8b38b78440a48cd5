"""Pages for people. Each works without JavaScript; with it, figures stay up to date."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.pages import (
    bulk,
    failures,
    login,
    overview,
    request,
    requests,
    schedules,
    service,
    services,
    store,
    users,
)

SHOWN = 1.0
"""Seconds for which a page that refreshes itself is not made again for the same visitor."""


async def _once_for_all(page: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    """The page; one for all open ones of a visitor. Its forms carry his token, and nobody else may see it."""

    async def made() -> Response:
        return await page(request)

    if request.headers.get("x-live") != "1":
        return await made()
    return await gateway_of(request).looks.share(request, visitor_of(request).csrf, made, SHOWN)


def _live(*rooms: Iterable[Route]) -> list[Route]:
    """The routes of pages that refresh themselves."""
    return [
        Route(route.path, partial(_once_for_all, route.endpoint)) if "GET" in (route.methods or ()) else route
        for room in rooms
        for route in room
    ]


ROUTES: list[BaseRoute] = [
    *login.ROUTES,
    *bulk.ROUTES,
    *request.ROUTES,
    *_live(
        overview.ROUTES,
        services.ROUTES,
        service.ROUTES,
        requests.ROUTES,
        failures.ROUTES,
        schedules.ROUTES,
        store.ROUTES,
        users.ROUTES,
    ),
]
