"""Pages of the web console. Each works without JavaScript; with it, pages refresh themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.pages import bulk, failures, overview, request, requests, schedules, services, users

PAGE_TTL = 1.0
"""Seconds for which a refreshed page is cached for its visitor."""


async def _cached(page: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    """Cache a page that refreshes itself, by session, because its forms contain the session's token."""

    async def made() -> Response:
        return await page(request)

    if request.headers.get("x-live") != "1":
        return await made()
    return await gateway_of(request).cache.get(request, visitor_of(request).csrf, made, PAGE_TTL)


def _refreshing(route: Route) -> Route:
    return Route(route.path, partial(_cached, route.endpoint)) if "GET" in (route.methods or ()) else route


ROUTES: list[BaseRoute] = [
    *bulk.ROUTES,
    *request.ROUTES,
    *users.SESSION_ROUTES,
    *(
        _refreshing(route)
        for module in (overview, services, requests, failures, schedules, users)
        for route in module.ROUTES
    ),
]
