"""The application: its routes, middleware and error handlers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import broker
from titanic.errors import TitanicError
from titanic.web import problems
from titanic.web.api.routes import ROUTES as API_ROUTES
from titanic.web.app_state import AppState, app_state, problem_response
from titanic.web.auth.clients import ANYBODY
from titanic.web.auth.middleware import STATUS, AuthMiddleware
from titanic.web.hooks.delivery import new_delivery
from titanic.web.pages import ROUTES as PAGE_ROUTES
from titanic.web.problems import Problem
from titanic.web.settings import WebSettings

READY_CACHED, READY_TIMEOUT = 1.0, 3.0
"""Seconds for which an answer of the server is cached, and the timeout for it."""


async def healthz(request: Request) -> Response:
    """Report that the process is alive."""
    return PlainTextResponse("ok\n")


class Readiness:
    """Whether the server answers, checked once for all callers."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._ping = 0.0
        self._fault = ""

    async def fault(self, state: AppState) -> str:
        """Why it is not ready; empty: it is. With an access file there is no key to ask the server with, so it is
        always ready."""
        if not state.identity.is_open:
            return ""
        async with self._asking:
            if time.monotonic() - self._ping > READY_CACHED:
                self._fault = await _ping(state)
                self._ping = time.monotonic()
            return self._fault


async def _ping(state: AppState) -> str:
    found = state.clients.acquire(ANYBODY)
    try:
        async with asyncio.timeout(READY_TIMEOUT):
            await found.client.call("mmi.broker", "mmi.broker")
    except (TitanicError, broker.RemoteError, TimeoutError):
        return "the server does not answer"
    finally:
        state.clients.release(found)
    return ""


async def readyz(request: Request) -> Response:
    """Report whether the server answers, as far as that can be checked."""
    readiness: Readiness = request.app.state.readiness
    fault = await readiness.fault(app_state(request))
    return PlainTextResponse(f"{fault or 'ok'}\n", 503 if fault else 200)


REFRESH_INTERVAL = 0.5
"""Seconds between two checks of the access file, the keys and the certificate for changes."""

STATIC = Path(__file__).parent / "static"

PAGES = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer browsers send the forms of our own pages with `Origin: null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of pages."""

DOCUMENTS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of the API, without those that concern links and windows: each costs time, thousands of times a
second."""

YEAR = 365 * 24 * 3600
"""Seconds for which browsers use HTTPS only, once they have used it (HSTS)."""


def _encoded(headers: dict[str, str], https: bool) -> dict[bytes, bytes]:
    """Encode headers for ASGI, with HSTS if this is HTTPS."""
    said = headers | ({"Strict-Transport-Security": f"max-age={YEAR}"} if https else {})
    return {name.lower().encode(): value.encode() for name, value in said.items()}


class SecurityHeaders:
    """Middleware that adds `DOCUMENTS` to the API's answers, `PAGES` to others, and notes each status for the log."""

    def __init__(self, app: ASGIApp, https: bool) -> None:
        self._app = app
        self._pages, self._documents = _encoded(PAGES, https), _encoded(DOCUMENTS, https)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = self._documents if problems.is_for_programs(scope) else self._pages

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[STATUS] = message["status"]
                said = message.get("headers", ())
                missing = headers
                for name, _ in said:  # in lower case, as in ASGI
                    if name in missing:
                        missing = {one: value for one, value in missing.items() if one != name}
                message["headers"] = [*said, *missing.items()]
            await send(message)

        await self._app(scope, receive, hardened)


async def _error_response(request: Request, error: Exception) -> Response:
    """The answer to an error that a handler raised."""
    if isinstance(error, TitanicError):
        return problem_response(request, problems.of(error))
    if isinstance(error, HTTPException):
        detail = error.detail
        if error.status_code == 404:
            programs = "no such endpoint; /v1/openapi.json describes all of them"
            detail = programs if problems.is_for_programs(request.scope) else ""
        elif error.status_code == 405:
            detail = f"this address does not allow {request.method}; open the page and use its forms"
        return problem_response(request, Problem(error.status_code, detail, headers=dict(error.headers or {})))
    assert isinstance(error, Problem)
    return problem_response(request, error)


async def _internal_error(request: Request, error: Exception) -> Response:
    """The answer to an unexpected error, which the server logs. `SecurityHeaders` does not see it."""
    headers = DOCUMENTS if problems.is_for_programs(request.scope) else PAGES
    return PlainTextResponse("Internal Server Error", 500, headers)


def new_app(settings: WebSettings) -> Starlette:
    """Make the application; its `state.titanic` is the AppState. It connects to the server on the first request."""
    state = AppState(settings)
    app = Starlette(
        routes=[
            *API_ROUTES,
            *PAGE_ROUTES,
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Mount("/static", StaticFiles(directory=STATIC), name="static"),
        ],
        middleware=[
            Middleware(SecurityHeaders, settings.is_https),
            Middleware(AuthMiddleware, settings, state.identity, state.clients),
        ],
        exception_handlers={
            Problem: _error_response,
            TitanicError: _error_response,
            HTTPException: _error_response,
            Exception: _internal_error,
        },
        lifespan=_lifespan,
    )
    app.state.titanic = state
    app.state.readiness = Readiness()
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    state: AppState = app.state.titanic
    refreshing = asyncio.create_task(_keep_refreshing(state))
    try:
        async with new_delivery(state.settings) if state.settings.hooks else nullcontext() as delivery:
            state.hooks = None if delivery is None else delivery.registry
            yield
    finally:
        refreshing.cancel()
        state.stats_poller.close()
        state.bulk_jobs.close()
        await state.leases.end()
        state.clients.close()


async def _keep_refreshing(state: AppState) -> None:
    """Refresh the state for as long as the application runs."""
    while True:
        await asyncio.sleep(REFRESH_INTERVAL)
        state.refresh()
