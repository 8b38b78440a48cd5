"""Runs the application in uvicorn."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

import uvicorn

from titanic.errors import CallerError
from titanic.web.app import new_app
from titanic.web.app_state import AppState
from titanic.web.protocol import GatewayProtocol
from titanic.web.settings import WebSettings

ALIVE_EVERY = 5
"""Seconds between reports to the service manager."""

FILES = 256
"""File descriptors for everything but connections."""

CANNOT_BIND = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT)
"""What the system says of an address that is another's, is none of this machine's, or may not be had."""

KEEP_ALIVE = 20
"""Seconds for which a connection may wait for its next request."""


class WebServer:
    """Serves HTTP until it is stopped. As a context manager it runs in a thread of its own; then `url` is where."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        host, port = settings.bind
        self.app = app = new_app(settings)
        self._gateway: AppState = app.state.titanic
        tls = self._gateway.tls

        class Bounded(GatewayProtocol):
            most = min(settings.most_connections, _room())

        config = uvicorn.Config(
            app,
            host=host.strip("[]"),
            port=port,
            http=Bounded,
            ssl_context_factory=None if tls is None else tls.given,
            timeout_keep_alive=KEEP_ALIVE,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=3,
        )
        self._server = _Quiet(config, self._gateway)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        sockets = self._server.servers[0].sockets
        host, port = sockets[0].getsockname()[:2]
        scheme = "http" if self._gateway.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def __str__(self) -> str:
        """Where it listens, which server it asks and who may come, once it does."""
        return f"at {self.url}, for {','.join(self._settings.endpoint)}; {self._gateway.identity}"

    def reload(self) -> None:
        """Have the access file and the certificate read again. Any thread, and a signal handler, may call."""
        self._gateway.reload.set()

    def run(self, ready: Callable[[], None] | None = None, alive: Callable[[], None] | None = None) -> None:
        """Serve until `stop`. `ready` is called when it listens, `alive` every few seconds from then on, in the loop.
        Raises CallerError when it cannot listen, and whatever else keeps it from starting."""
        self._server.ready = ready

        async def notify() -> None:
            if alive is not None:
                alive()

        self._server.config.callback_notify = notify
        self._server.config.timeout_notify = ALIVE_EVERY
        with _faults_of_start(self._server) as faults:
            try:
                self._server.run()
            except SystemExit as error:
                raise next(map(self._told, faults), CallerError("it did not start")) from error

    def _told(self, fault: Fault) -> Exception:
        """What is raised for what kept it from starting."""
        if not fault.listening or not isinstance(fault.error, OSError):
            return fault.error
        host, port = self._settings.bind
        return CallerError(f"cannot listen at {host}:{port}", _reason(fault.error), _advice(fault.error))

    def stop(self) -> None:
        """Have it end. Any thread, and a signal handler, may call."""
        self._server.should_exit = True

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run, name="web", daemon=True)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise CallerError("it did not start")
            self._thread.join(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()


class Fault(NamedTuple):
    """What kept it from starting."""

    error: Exception
    listening: bool
    """Whether that was when it was to listen."""


@contextmanager
def _faults_of_start(server: uvicorn.Server) -> Iterator[list[Fault]]:
    """What keeps uvicorn from starting. It logs that and exits; here it becomes one message."""
    found: list[Fault] = []

    def keep(record: logging.LogRecord) -> bool:
        if server.started:
            return True
        if isinstance(record.msg, OSError):
            found.append(Fault(record.msg, listening=True))
        elif isinstance(error := sys.exc_info()[1], Exception):  # it logs the traceback of one that it handles
            found.append(Fault(error, listening=False))
        return not found

    log = logging.getLogger("uvicorn.error")
    log.addFilter(keep)
    try:
        yield found
    finally:
        log.removeFilter(keep)


def _reason(error: OSError) -> str:
    """What the system says; asyncio says it in more words, which differ by version."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno).lower()


def _advice(error: OSError) -> str:
    """What to do about it."""
    if isinstance(error, socket.gaierror) or error.errno in CANNOT_BIND:
        return "choose another --bind"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "let it have more open files: ulimit -n, or LimitNOFILE= in its unit"
    return "mend that, and start it again"


def _room() -> int:
    """How many connections the process may have open, besides what else it has."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, soft - FILES) if soft != resource.RLIM_INFINITY else 1 << 20


class _Quiet(uvicorn.Server):
    """Leaves signals to who runs it, tells when it listens, and ends what would keep it from ending."""

    ready: Callable[[], None] | None = None

    def __init__(self, config: uvicorn.Config, gateway: AppState) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.ready is not None:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.end_what_waits()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
