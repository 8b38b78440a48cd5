"""uvicorn's HTTP/1.1, hardened for untrusted clients: timeouts for requests and for reading answers, limits on headers
and connections, and the client's certificate for handlers.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from titanic.web.auth.identity import CERTIFICATE
from titanic.web.transport import JoiningTransport

MOST_HEAD, MOST_HEADERS, MOST_URL = 64 << 10, 100, 16 << 10
"""Bytes of the request line and headers together; headers; bytes of a URL."""

PATIENCE = 10.0
"""Seconds for a request to start, then for its headers. At least LEAST bytes of its body must arrive in each such
span."""

LEAST = 4096

UNREAD = 60.0
"""Seconds after which a client that reads nothing of its answer is disconnected."""


class GatewayProtocol(HttpToolsProtocol):
    """One connection."""

    most = 4096
    """Maximum number of connections. Further ones are closed at once."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.access_log = False  # URLs may contain private data
        self._reading = self._in_head = False
        """Whether a request is being received, and whether that is still its headers."""
        self._head = 0
        """Bytes received before the end of the headers."""
        self._came = 0
        """Bytes received since the timer was started."""
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request; refuse the connection if there are too many."""
        self._answers = JoiningTransport(transport, self.loop)
        super().connection_made(self._answers)
        if len(self.connections) > self.most:
            transport.abort()
            return
        tls = transport.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        self.app_state = {**self.app_state, CERTIFICATE: sha256(shown).hexdigest() if shown else ""}
        """Copied into the scope of each request as its state."""
        self._timer = self.loop.call_later(PATIENCE, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Flush answers before the connection is closed: the client will send nothing more."""
        self._answers.flush()
        super().eof_received()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        self._came += len(data)
        if self._in_head:
            self._head += len(data)
            if self._head > MOST_HEAD:
                self._refuse(b"431 Request Header Fields Too Large")
                return
        super().data_received(data)
        if self.transport.is_closing() or not self._reading:
            self._stop()
        elif self._timer is None:
            self._came = 0
            self._timer = self.loop.call_later(PATIENCE, self._late)

    def on_message_begin(self) -> None:
        """Start a request."""
        super().on_message_begin()
        self._stop()
        self._reading = self._in_head = True
        self._head = 0

    def on_headers_complete(self) -> None:
        """Check the headers. Exceptions raised here are answered with 400."""
        if self.parser.should_upgrade():  # what follows would not be HTTP
            raise ValueError("protocol upgrades are not supported")
        self._head = len(self.url) + 4 * len(self.headers)
        for name, value in self.headers:
            self._head += len(name) + len(value)
        if self._head > MOST_HEAD:
            raise ValueError("the headers are too large")
        if len(self.url) > MOST_URL:
            raise ValueError("the address is too long")
        if len(self.headers) > MOST_HEADERS:
            raise ValueError("too many headers")
        self._in_head = False
        super().on_headers_complete()
        self.headers = []  # for trailers, which are ignored: the request's headers have been processed

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with 400, and oversized headers with 431."""
        if self._in_head and self._head > MOST_HEAD:
            self._refuse(b"431 Request Header Fields Too Large")
        else:
            super().send_400_response(msg)

    def on_message_complete(self) -> None:
        """End a request."""
        self._reading = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Start the timeout: the client does not read its answer."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the timeout: the client reads again."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if not self._reading:  # not even a first request has started
            self.transport.close()
        elif self._in_head or (self._came < LEAST and not self.flow.read_paused):
            self._refuse(b"408 Request Timeout")
        else:
            self._came = 0
            self._timer = self.loop.call_later(PATIENCE, self._late)

    def _refuse(self, status: bytes) -> None:
        """Send this status, unless an answer was started, and close the connection."""
        cycle = None if self._in_head else self.cycle
        if (self.cycle is None or self.cycle.response_complete) or (cycle is not None and not cycle.response_started):
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self._stop()
        self.transport.close()
