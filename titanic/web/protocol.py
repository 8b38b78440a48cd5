"""uvicorn's HTTP/1.1, hardened for untrusted clients: timeouts for requests and for reading answers, limits on headers
and connections, the client's certificate for handlers, and TLS.

An answer is sent in one piece. uvicorn writes its head and then its body, and each write is a system call, a packet,
and a read for the other side.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from titanic import logs
from titanic.errors import CallerError
from titanic.util.files import state_of
from titanic.web.request_headers import CERTIFICATE
from titanic.web.settings import WebSettings

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
        """Bytes of the headers received after the part in which the request began."""
        self._part = self._first = 0
        """Bytes of the last part received, and of the one in which the request began."""
        self._came = 0
        """Bytes received since the timer was started."""
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request; refuse the connection if there are too many."""
        self._answers = JoiningTransport(transport, self.loop, self._await_reader)
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
        super().connection_lost(exc)
        if self._unread is not None:
            self._unread.cancel()

    def eof_received(self) -> None:
        """Flush answers before the connection is closed: the client will send nothing more."""
        self._answers.flush()
        super().eof_received()
        self._await_reader()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        self._part = len(data)
        self._came += self._part
        if self._in_head:
            self._head += self._part
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
        self._head, self._first = 0, self._part

    def on_headers_complete(self) -> None:
        """Check the headers. Exceptions raised here are answered with 400."""
        if self.parser.should_upgrade():  # what follows would not be HTTP
            raise ValueError("protocol upgrades are not supported")
        if self._first + self._head > MOST_HEAD:  # otherwise the headers are smaller, whatever else came with them
            self._head = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
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
        self._await_reader()

    def resume_writing(self) -> None:
        """Cancel the timeout: the client reads again."""
        if self._unread is not None and not self.transport.is_closing():
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _await_reader(self, before: float = -math.inf) -> None:
        """Disconnect the client if it has taken no more than `before`, at the last check; else check again later."""
        if (taken := self._answers.taken()) > before:
            if self._unread is not None:
                self._unread.cancel()
            self._unread = self.loop.call_later(UNREAD, self._await_reader, taken)
        else:
            self.transport.abort()

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


SMALL = 16 << 10
"""Writes below this size are joined. Larger ones gain nothing from it, and would be copied."""


class JoiningTransport(asyncio.Transport):
    """A transport with the methods that uvicorn uses."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        closes: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self._closes = closes
        self._transport = transport
        self._loop = loop
        self._held = b""
        """A write that waits for the next one."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data, or hold it for the next write."""
        if self._held and len(data) < SMALL:
            data, self._held = self._held + data, b""
            self._transport.write(data)
        elif len(data) < SMALL:
            self._held = bytes(data)
            self._loop.call_soon(self.flush)
        else:
            self.flush()
            self._transport.write(data)

    def flush(self) -> None:
        """Send held data."""
        if self._held:
            held, self._held = self._held, b""
            if not self.is_closing():
                self._transport.write(held)

    def is_closing(self) -> bool:
        """Whether the connection is closed, or about to be."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the connection when all data is sent."""
        self.flush()
        self._transport.close()
        self._closes()

    def abort(self) -> None:
        """Close the connection at once."""
        self._held = b""
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection."""
        return self._transport.get_extra_info(name, default)

    def taken(self) -> int:
        """Return a number that grows while the client reads. How much is left to write says less: the system, and TLS,
        buffer megabytes."""
        left = self._transport.get_write_buffer_size()
        with suppress(OSError, AttributeError, ValueError):  # of a unix socket; a closed connection has none
            info = self.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
            return int.from_bytes(info[120:128], sys.byteorder) or -left  # bytes acknowledged, since Linux 4.1
        return -left

    def pause_reading(self) -> None:
        """Pause receiving."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume receiving."""
        self._transport.resume_reading()


log = logging.getLogger("titanic.web")


class Tls:
    """The TLS context for connections."""

    def __init__(self, settings: WebSettings) -> None:
        """Raises CallerError for files that cannot be used."""
        assert settings.tls_certificate is not None
        assert settings.tls_key is not None
        self._certificate, self._key = settings.tls_certificate, settings.tls_key
        self._authorities = settings.client_ca
        self._state = self._file_state()
        self.context = _new_context(self._certificate, self._key, self._authorities)

    def given(self, *_: object) -> ssl.SSLContext:
        """Return the context to uvicorn."""
        return self.context

    def refresh(self, *, always: bool = False) -> None:
        """Use a changed certificate for new connections. If it is not usable, the previous one stays in use. (Changed
        client authorities need a restart.)"""
        state = self._file_state()
        if state == self._state and not always:
            return
        self._state = state
        try:
            _new_context(self._certificate, self._key, self._authorities)  # half of a pair must not get into use
            self.context.load_cert_chain(self._certificate, self._key)
        except (CallerError, ssl.SSLError, OSError) as error:
            text = "not reloaded, the previous certificate stays in use: %s"
            log.error(text, error, extra=logs.event("reload-refused"))
            return
        log.info("%s reloaded", self._certificate, extra=logs.event("certificate-reloaded"))

    def _file_state(self) -> tuple[tuple[int, ...], ...]:
        return state_of(self._certificate), state_of(self._key)


def _new_context(certificate: Path, key: Path, authorities: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    what, path, advice = (
        "cannot use TLS",
        certificate,
        "give PEM files that belong together, the key without a password",
    )
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
        if authorities is not None:
            path, advice = authorities, "give a PEM file with the certificates of authorities"
            context.load_verify_locations(authorities)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (ssl.SSLError, OSError, ValueError) as error:
        fact = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        files = f"{path} and {key}" if path == certificate else str(path)
        raise CallerError(what, f"{files}: {fact}", advice) from error
    return context


def _no_password() -> str:
    """Fail instead of prompting at a terminal."""
    raise ValueError("the key has a password")
