"""The application and its routes."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

import broker
from broker import Callback
from titanic.errors import CallerError, TitanicError
from titanic.web.api.event_stream import Feed
from titanic.web.api.leases import Leases
from titanic.web.api.routes import ROUTES as API_ROUTES
from titanic.web.app_state import AppState, Login, app_state, visitor_of
from titanic.web.auth.clients import ANYBODY
from titanic.web.auth.middleware import GatewayMiddleware
from titanic.web.hooks.delivery import new_delivery
from titanic.web.pages import ROUTES as PAGE_ROUTES
from titanic.web.problems import HTTPProblem
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
    fault = await request.app.readiness.fault(app_state(request))
    return PlainTextResponse(f"{fault or 'ok'}\n", 503 if fault else 200)


async def metrics(request: Request) -> Response:
    """Report the figures of this gateway to Prometheus; with access control, to users with `metrics`."""
    gateway: Gateway = request.app
    state, user = gateway.titanic, gateway.titanic.identity.find(visitor_of(request).user)
    if user is not None and not (user.metrics or user.admin):
        raise HTTPProblem(403, f"{user} may not see statistics; it needs metrics = true")
    held = {
        "event_streams": len(gateway.feed.quota),
        "leases": len(gateway.leases.quota),
        "body_bytes": len(state.bodies),
    }
    from titanic.metrics.gateway import GatewayFigures  # few ask for it

    figures = GatewayFigures(state.answers.copy(), state.identity.refusals.copy(), held)
    body, kind = await asyncio.to_thread(figures.exposition, request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": kind})


REFRESH_INTERVAL = 0.5
"""Seconds between two checks of the access file, the keys and the certificate for changes."""

REPORT_INTERVAL, LAST_REPORT = 5.0, 1.0
"""Seconds between two reports of what was refused, and the time for the last one at the end."""

STATIC = Path(__file__).parent / "static"


class Gateway(Starlette):
    """The application. It connects to the server on the first request. Another application may mount it: that one, the
    host, runs it with `lifespan`."""

    def __init__(self, settings: WebSettings, login: Login | None = None) -> None:
        """`login`: finds the name of the host's user in the scope of a request; None: not signed in there. The access
        file maps it to a user."""
        if login is not None and settings.access is None:
            what, fact = "`login` needs an access file", "without one, anyone may do anything"
            raise CallerError(what, fact, "give `access` and `keys`, and name each user's `login` in that file")
        self.titanic = AppState(settings, login)
        self.feed, self.leases = Feed(self.titanic.stats_poller), Leases(settings)
        self.readiness = Readiness()
        static = Mount("/static", StaticFiles(directory=STATIC), name="static")
        own = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics), static]
        super().__init__(routes=[*API_ROUTES, *PAGE_ROUTES, *own], lifespan=self.lifespan)

    def build_middleware_stack(self) -> ASGIApp:
        """A single middleware instead of Starlette's two and ours: each step costs every request."""
        return GatewayMiddleware(self.router.app, self.titanic)

    def shut_down(self) -> None:
        """End waiting calls and event streams before the process ends."""
        self.titanic.ending.set()
        self.feed.end()
        self.leases.end_waiting()

    @asynccontextmanager
    async def lifespan(self, host: object = None) -> AsyncIterator[None]:
        """Run the gateway. `host`: the application that mounts it; not used."""
        state = self.titanic
        refreshing, reporting = (asyncio.create_task(keep(state)) for keep in (_keep_refreshing, _keep_reporting))
        try:
            async with new_delivery(state.settings) if state.settings.hooks else nullcontext() as delivery:
                state.hooks = None if delivery is None else delivery.registry
                state.running = True
                with _before_shutdown(self.shut_down):
                    yield
        finally:
            state.running = False
            self.shut_down()
            refreshing.cancel()
            with suppress(TimeoutError):
                await asyncio.wait_for(reporting, LAST_REPORT)
            state.stats_poller.close()
            await self.leases.end()
            state.clients.close()


@contextmanager
def _before_shutdown(act: Callback) -> Iterator[None]:
    """Call `act` when a signal ends the process: a server waits for event streams before it ends the lifespan."""
    loop = asyncio.get_running_loop()
    main = threading.current_thread() is threading.main_thread()  # only that one may handle signals
    ends = signal.SIGINT, signal.SIGTERM
    before = {number: found for number in ends if main and callable(found := signal.getsignal(number))}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)
        before[signal.Signals(number)](number, frame)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)


async def _keep_refreshing(state: AppState) -> None:
    """Refresh the state for as long as the application runs."""
    while True:
        await asyncio.sleep(REFRESH_INTERVAL)
        state.refresh()


async def _keep_reporting(state: AppState) -> None:
    """Report refusals for as long as the application runs, and once at its end."""
    while not state.ending.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(state.ending.wait(), REPORT_INTERVAL)
        await state.clients.report(state.identity.audit, state.identity.reporter())
