"""An HTTP listener for /metrics, /healthz and /readyz. Each request has a thread of its own, which reads snapshots.

MOST requests are answered at a time; the others wait in the system's backlog. While some wait, slow peers are
disconnected: a connection that sends no request or does not read its answer must neither block monitoring nor use up
the threads of the process.

Where other machines can connect, /metrics needs a token (`Authorization: Bearer …`). The other paths need none, because
load balancers and service managers have none.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from titanic.errors import CallerError, StoreError
from titanic.metrics import families

log = logging.getLogger(__name__)

MOST = 16
"""Maximum number of requests that are answered at a time."""

QUESTION, PATIENCE = 1.0, 10.0
"""Seconds for a request to arrive, and then for its answer to be made and read, while others wait."""

POLL_INTERVAL = 0.1
"""Seconds between two checks for slow peers, while others wait."""

Collect = Callable[[], Iterable[Metric]]
Fault = Callable[[], str]
"""What is wrong; empty: nothing."""
Admits = Callable[[str], bool]
"""Whether a bearer token permits reading the metrics."""
Ready = Callable[[bool], Metric]


class MetricsListener:
    """Answers HTTP requests in threads, from its creation until `stop`."""

    def __init__(
        self,
        host: str,
        port: int,
        collect: Collect,
        *,
        unhealthy: Fault,
        unready: Fault,
        admits: Admits | None = None,
        ready: Ready = families.ready,
    ) -> None:
        """`admits`: whether a bearer token permits reading the metrics; None: no token is needed. `ready`: makes the
        family that says what /readyz does. Raises CallerError when the address cannot be bound."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Figures(collect, unready, ready))
        registry.register(families.Process())
        registry.register(PLATFORM_COLLECTOR)
        registry.register(GC_COLLECTOR)

        try:
            self._server = (_Server6 if ":" in host else _Server)((host, port), _Asked)
        except OSError as error:
            where = f"{host or '*'}:{port}"
            taken = error.errno == errno.EADDRINUSE
            advice = "is another one running? give --metrics another port" if taken else "choose a local address"
            raise CallerError(f"cannot serve metrics at {where}", error.strerror or str(error), advice) from error
        self._server.registry = registry
        self._server.admits = admits
        self._server.pages = {"/healthz": unhealthy, "/readyz": unready}
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the socket and end the thread."""
        self._server.ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128  # with the default of 5, a few concurrent peers must wait a second and reconnect
    registry: CollectorRegistry
    admits: Admits | None
    pages: Mapping[str, Fault]

    def __init__(self, *arguments: Any) -> None:
        self.ending = threading.Event()
        self._places = threading.Semaphore(MOST)
        self._until: dict[socket.socket, float] = {}
        """The deadline of each connection, which applies while others wait."""
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a request as soon as fewer than MOST are busy."""
        while not self._places.acquire(timeout=POLL_INTERVAL):
            if self.ending.is_set():
                self.shutdown_request(request)
                return
            self._clear()
        self._until[request] = time.monotonic() + QUESTION
        super().process_request(request, client_address)

    def asked(self, request: Any) -> None:
        """Extend the deadline of a connection when its request has arrived."""
        self._until[request] = time.monotonic() + PATIENCE

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, answered or not."""
        if self._until.pop(request, None) is not None:
            self._places.release()
        super().shutdown_request(request)

    def _clear(self) -> None:
        now = time.monotonic()
        for request, until in self._until.copy().items():
            if now > until:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)  # this ends its thread

    def handle_error(self, request: object, client_address: object) -> None:
        """Log at debug level only: most likely the peer did not wait for the answer."""
        log.debug("could not answer %s", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Figures(Collector):
    def __init__(self, collect: Collect, unready: Fault, ready: Ready) -> None:
        self._collect = collect
        self._unready = unready
        self._ready = ready

    def collect(self) -> Iterable[Metric]:
        # Asked first: an answer that says "not ready" has nothing older, such as the workers of a broker now gone.
        yield self._ready(not self._unready())
        yield from self._collect()


class _Asked(BaseHTTPRequestHandler):
    """One HTTP request."""

    timeout = PATIENCE
    server_version = "titanic"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        """Answer a path."""
        self.server.asked(self.request)
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path in self.server.pages:
            fault = self.server.pages[path]()
            code = HTTPStatus.SERVICE_UNAVAILABLE if fault else HTTPStatus.OK
            self._answer(code, "text/plain; charset=utf-8", f"{fault or 'ok'}\n".encode())
        else:
            text = "the paths are /metrics, /healthz and /readyz\n"
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", text.encode())

    def do_HEAD(self) -> None:
        """Answer without a body, for load balancers."""
        self.do_GET()

    def _metrics(self) -> None:
        if (admits := self.server.admits) is not None and not admits(self._token()):
            log.warning("refused metrics to %s: it sent no token of a user with metrics = true", self.client_address[0])
            text = b"a bearer token of a user with metrics is needed; titanic keys token makes one\n"
            challenge = {"WWW-Authenticate": 'Bearer realm="titanic"'}
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain; charset=utf-8", text, challenge)
            return
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        try:
            body = encode(self.server.registry)
        except StoreError as error:  # /healthz reports it, too
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{error}\n".encode())
            return
        self._answer(HTTPStatus.OK, kind, body)

    def _token(self) -> str:
        """The bearer token of the request; empty when there is none, or more than one."""
        given = self.headers.get_all("Authorization", [])
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        return token.strip() if scheme.lower() == "bearer" else ""

    def _answer(self, code: HTTPStatus, kind: str, body: bytes, more: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(code)
        for name, value in more.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log at debug level only."""
        log.debug(format, *args)
