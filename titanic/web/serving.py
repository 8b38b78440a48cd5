"""Runs the application in uvicorn."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import uvicorn

from broker import Callback
from titanic.errors import CallerError
from titanic.web.asgi import Gateway
from titanic.web.protocol import PATIENCE, GatewayProtocol
from titanic.web.settings import WebSettings

ALIVE_EVERY = 5
"""Seconds between reports to the service manager."""

FILES = 256
"""File descriptors reserved for everything but connections."""

CANNOT_BIND = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT)
"""Errors for an address that is in use, is not local, or is not permitted."""

KEEP_ALIVE = 20
"""Seconds after which an idle connection is closed."""

MOST_SENDING = 86400.0
"""Seconds in which a client may read the rest of an answer after its TLS connection was closed here."""


class WebServer:
    """Serves HTTP until it is stopped. As a context manager it runs in a thread of its own, at `url`."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        host, port = settings.bind
        self.app = app = Gateway(settings)
        self._state = app.titanic
        tls, path = self._state.tls, host if host.startswith("/") else None
        if path is not None:
            _reserve(path)

        class Bounded(GatewayProtocol):
            most = min(settings.most_connections, _room())

        config = uvicorn.Config(
            app,
            host=host.strip("[]"),
            port=port,
            uds=path,
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
        self._server = _Quiet(config, app)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The URL that it listens at."""
        sockets = self._server.servers[0].sockets
        if isinstance(address := sockets[0].getsockname(), str):
            return f"unix:{address}"
        host, port = address[:2]
        scheme = "http" if self._state.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def __str__(self) -> str:
        """Its URL, the server's endpoints and its access control; only while it listens."""
        return f"at {self.url}, for {','.join(self._settings.endpoint)}; {self._state.identity}"

    def reload(self) -> None:
        """Reload the access file and the certificate. Any thread or signal handler may call this."""
        self._state.reload.set()

    def run(self, ready: Callback | None = None, alive: Callback | None = None) -> None:
        """Serve until `stop`. In the loop, `ready` is called once it listens, and then `alive` every few seconds.
        Raises CallerError when it cannot listen, and any other error that keeps it from starting."""

        async def notify() -> None:
            nonlocal ready
            if ready is not None:
                ready()
                ready = None
            if alive is not None:
                alive()

        self._server.config.callback_notify = notify
        self._server.config.timeout_notify = ALIVE_EVERY
        with _faults_of_start(self._server) as faults:
            try:
                self._server.run()
            except SystemExit as error:
                raise next(map(self._start_error, faults), CallerError("it did not start")) from error

    def _start_error(self, fault: StartFault) -> Exception:
        """The exception to raise for an error at the start."""
        if not fault.listening or not isinstance(fault.error, OSError):
            return fault.error
        host, port = self._settings.bind
        return CallerError(f"cannot listen on {host}:{port}", _reason(fault.error), _advice(fault.error))

    def stop(self) -> None:
        """Stop serving. Any thread or signal handler may call this."""
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


class StartFault(NamedTuple):
    """An error at the start."""

    error: Exception
    listening: bool
    """Whether the error occurred when binding the address."""


@contextmanager
def _faults_of_start(server: uvicorn.Server) -> Iterator[list[StartFault]]:
    """Collect the errors that uvicorn logs before it exits at the start, to report them as one message."""
    found: list[StartFault] = []

    def keep(record: logging.LogRecord) -> bool:
        if server.started:
            return True
        if isinstance(record.msg, OSError):
            found.append(StartFault(record.msg, listening=True))
        elif isinstance(error := sys.exc_info()[1], Exception):  # the traceback of the exception being handled
            found.append(StartFault(error, listening=False))
        return not found

    log = logging.getLogger("uvicorn.error")
    log.addFilter(keep)
    try:
        yield found
    finally:
        log.removeFilter(keep)


def _reserve(path: str) -> None:
    """Create a unix socket for owner and group: uvicorn opens a new one to all, but keeps the mode of an old one."""
    try:
        with socket.socket(socket.AF_UNIX) as old:
            old.bind(path)
            Path(path).chmod(0o660)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise CallerError(f"cannot listen on {path}", _reason(error), _advice(error)) from error


def _reason(error: OSError) -> str:
    """The system's error text; asyncio's is longer and differs by version."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno).lower()


def _advice(error: OSError) -> str:
    """How to fix an error at the start."""
    if isinstance(error, socket.gaierror) or error.errno in CANNOT_BIND:
        return "choose another --bind"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files: ulimit -n, or LimitNOFILE= in its unit"
    return "fix that and start it again"


def _room() -> int:
    """How many connections the limit of file descriptors allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, soft - FILES) if soft != resource.RLIM_INFINITY else 1 << 20


class _Quiet(uvicorn.Server):
    """Leaves signals to its caller, limits the time of TLS handshakes, and ends waiting calls at shutdown."""

    def __init__(self, config: uvicorn.Config, app: Gateway) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop, limits = asyncio.get_running_loop(), {}
        if self.config.ssl:
            limits = {"ssl_handshake_timeout": PATIENCE, "ssl_shutdown_timeout": MOST_SENDING}
        for name in ("create_server", "create_unix_server"):  # uvicorn has no settings for them
            setattr(loop, name, partial(getattr(loop, name), **limits))
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.shut_down()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
