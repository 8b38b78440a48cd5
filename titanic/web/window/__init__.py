"""Pages for people. Each works without JavaScript; with it, figures stay up to date."""

from __future__ import annotations

from starlette.routing import BaseRoute

from titanic.web.window import (
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

ROUTES: list[BaseRoute] = [
    *login.ROUTES,
    *overview.ROUTES,
    *services.ROUTES,
    *service.ROUTES,
    *requests.ROUTES,
    *bulk.ROUTES,
    *request.ROUTES,
    *failures.ROUTES,
    *schedules.ROUTES,
    *store.ROUTES,
    *users.ROUTES,
]
