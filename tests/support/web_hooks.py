"""A receiver of webhooks on the loopback interface, and what delivers them."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from titanic.aio import Client
from titanic.web.hooks.delivery import HookDelivery
from titanic.web.hooks.registry import STATES, Hook, Registry, id_of

SECRET = "nobody-may-see-this"
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


def new_hook(service: str, url: str = "https://a.example/x", states: tuple[str, ...] = STATES) -> Hook:
    """A hook that is nowhere yet."""
    return Hook(id_of(service, url), service, url, states, SECRET)


COURIER = 'work = ["web.*"]\nsubmit = ["web.*"]\nread = "all"\nclose = true\n'
"""What the user may do who delivers hooks."""


class Told(NamedTuple):
    """What a receiver was sent."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """An HTTP server that notes what it is sent. `answers`: what it answers, one after another; then 204."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.told: list[Told] = []
        self.answers: list[bytes] = []
        here = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                here.told.append(Told(self.path, dict(self.headers), body))
                self.wfile.write(here.answers.pop(0) if here.answers else b"HTTP/1.1 204 No Content\r\n\r\n")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.server.server_port}/hook?token=t"


class Hooks:
    """Delivers webhooks in a thread, and keeps some."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def put(self, url: str, service: str = "mail", states: tuple[str, ...] = STATES) -> Hook:
        """Keep a hook."""
        hook = new_hook(service, url, states)

        async def put() -> None:
            async with Client(self.endpoint, timeout=30) as client:
                await Registry(client).put(hook)

        asyncio.run(put())
        return hook

    def deliver(self, **settings: Any) -> Delivering:
        """A context in which hooks are delivered."""
        return Delivering(self.endpoint, settings)


class Delivering:
    """Delivers hooks in a loop of its own."""

    def __init__(self, endpoint: str, settings: dict[str, Any]) -> None:
        self._run = self._deliver(endpoint, settings)
        self._thread = threading.Thread(target=self._begin)
        self._stop: Future[Callable[[], object]] = Future()

    def __enter__(self) -> None:
        self._thread.start()
        self._stop.result(30)

    def __exit__(self, *_: object) -> None:
        self._stop.result()()
        self._thread.join()

    def _begin(self) -> None:
        asyncio.run(self._run)

    async def _deliver(self, endpoint: str, settings: dict[str, Any]) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        async with HookDelivery([endpoint], **{"allowed": LOOPBACK, "timeout": 30.0} | settings):
            self._stop.set_result(lambda: loop.call_soon_threadsafe(over.set))
            await over.wait()
