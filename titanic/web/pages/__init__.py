"""Pages of the web console. Each works without JavaScript; with it, pages refresh themselves."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from titanic.web.app_state import app_state, visitor_of
from titanic.web.pages import bulk, failures, overview, requests, schedules, services, users

PAGE_TTL = 1.0
"""Seconds for which a refreshed page is cached for its visitor."""


def _refreshing(route: Route) -> Route:
    """Cache a page while it refreshes itself, by session, because its forms contain the session's token."""
    if "GET" not in (route.methods or ()):
        return route

    async def page(request: Request) -> Response:
        if request.headers.get("x-live") != "1":
            answer: Response = await route.endpoint(request)
            return answer
        session = visitor_of(request).csrf
        return await app_state(request).cache.get(request, session, route.endpoint, request, ttl=PAGE_TTL)

    return Route(route.path, page)


ROUTES: list[BaseRoute] = [
    *bulk.ROUTES,
    *requests.ONE_ROUTES,
    *users.SESSION_ROUTES,
    *(
        _refreshing(route)
        for module in (overview, services, requests, failures, schedules, users)
        for route in module.ROUTES
    ),
]
