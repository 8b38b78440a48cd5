"""HTTP/1.1 as uvicorn speaks it, with what a server that strangers reach needs besides: requests come in time and have
bounds, answers are read in time, and a handler is told which certificate the client has shown.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from titanic.web.auth.identity import CERTIFICATE
from titanic.web.transport import JoiningTransport

MOST_HEAD, MOST_HEADERS, MOST_URL = 64 << 10, 100, 16 << 10
"""Bytes of a request's line and headers together, headers, bytes of an address."""

PATIENCE = 10.0
"""Seconds for a request to begin, and then for its headers to come. Of its body LEAST must come in each."""

LEAST = 4096

UNREAD = 60.0
"""Seconds for which a client may read nothing of its answer."""


class GatewayProtocol(HttpToolsProtocol):
    """One connection."""

    most = 4096
    """Connections at a time. Those beyond are closed at once."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.access_log = False  # addresses may have in them what is nobody's business
        self._reading = self._in_head = False
        """Whether a request has begun and not ended, and whether its headers have not."""
        self._head = 0
        """Bytes of what came before the end of the headers."""
        self._came = 0
        """Bytes that came since the timer began."""
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody connects."""
        self._answers = JoiningTransport(transport, self.loop)
        super().connection_made(self._answers)
        if len(self.connections) > self.most:
            transport.abort()
            return
        tls = transport.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        self.app_state = {**self.app_state, CERTIFICATE: sha256(shown).hexdigest() if shown else ""}
        """Each request has a copy of it as its scope's state."""
        self._timer = self.loop.call_later(PATIENCE, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._stop()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """The client will send nothing more. The connection is closed behind this; what was answered goes out first."""
        self._answers.flush()
        super().eof_received()

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
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
        """A request begins."""
        super().on_message_begin()
        self._stop()
        self._reading = self._in_head = True
        self._head = 0

    def on_headers_complete(self) -> None:
        """The body may follow. What is raised here is answered with 400."""
        if self.parser.should_upgrade():  # whatever follows would be no HTTP
            raise ValueError("there is no other protocol here")
        self._head = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self._head > MOST_HEAD:
            raise ValueError("the headers are too large")
        if len(self.url) > MOST_URL:
            raise ValueError("the address is too long")
        if len(self.headers) > MOST_HEADERS:
            raise ValueError("too many headers")
        self._in_head = False
        super().on_headers_complete()
        self.headers = []  # of those behind a body: what they are to say has been decided

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or more than is taken."""
        if self._in_head and self._head > MOST_HEAD:
            self._refuse(b"431 Request Header Fields Too Large")
        else:
            super().send_400_response(msg)

    def on_message_complete(self) -> None:
        """All of a request is here."""
        self._reading = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client does not read as fast as is written."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
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
        if not self._reading:  # not even a first request has begun
            self.transport.close()
        elif self._in_head or (self._came < LEAST and not self.flow.read_paused):
            self._refuse(b"408 Request Timeout")
        else:
            self._came = 0
            self._timer = self.loop.call_later(PATIENCE, self._late)

    def _refuse(self, status: bytes) -> None:
        """Say why, unless an answer has begun, and close the connection."""
        cycle = None if self._in_head else self.cycle
        if (self.cycle is None or self.cycle.response_complete) or (cycle is not None and not cycle.response_started):
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self._stop()
        self.transport.close()
