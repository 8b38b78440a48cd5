"""/healthz and /readyz, for service managers and load balancers: they have no token."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import broker
from titanic.errors import TitanicError
from titanic.web.auth.clients import ANYBODY
from titanic.web.gateway import Gateway, gateway_of

EVERY, PATIENCE = 1.0, 3.0
"""Seconds for which an answer of the server counts, and for which it is waited for."""


async def healthz(request: Request) -> Response:
    """The loop answers."""
    return PlainTextResponse("ok\n")


class Readiness:
    """Whether the server behind answers, asked once for all who want to know."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._asked = 0.0
        self._fault = ""

    async def fault(self, gateway: Gateway) -> str:
        """Why it is not ready; empty: it is. With an access file it has no key of its own to ask with: that it serves
        is all that it knows."""
        if not gateway.identity.is_open:
            return ""
        async with self._asking:
            if time.monotonic() - self._asked > EVERY:
                self._fault = await _asked(gateway)
                self._asked = time.monotonic()
            return self._fault


async def _asked(gateway: Gateway) -> str:
    found = gateway.clients.take(ANYBODY)
    try:
        async with asyncio.timeout(PATIENCE):
            await found.client.call("mmi.broker", "mmi.broker")
    except (TitanicError, broker.RemoteError, TimeoutError):
        return "the server does not answer"
    finally:
        gateway.clients.give_back(found)
    return ""


async def readyz(request: Request) -> Response:
    """It serves, and as far as it can tell the server answers."""
    readiness: Readiness = request.app.state.readiness
    fault = await readiness.fault(gateway_of(request))
    return PlainTextResponse(f"{fault or 'ok'}\n", 503 if fault else 200)


ROUTES = [Route("/healthz", healthz), Route("/readyz", readyz)]
