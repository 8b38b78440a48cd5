"""Access control at the broker's sockets: admission, the user of each connection, bounds of handshakes, and the log of
refusals."""

from __future__ import annotations

import logging
import math
import resource
import socket as stream
import struct
import time
from contextlib import suppress

import zmq

from broker.access.authorization import AccessRefusal, Guard
from broker.access.keys import Keys
from broker.access.users import NOBODY, Access
from broker.core.throttle import COUNTED, Throttle
from broker.io.loop import Channel
from broker.io.sockets import Socket, full
from broker.io.user_connections import ConnectionsOwner, UserConnections
from broker.io.zap import ZapHandler, enforce, secure

log = logging.getLogger("broker.access")

MOST_SAID = 64 << 10
"""Bytes of a handshake, at most; a real one has less than a thousand."""

NOT_IN = 64 + 170 + 26
"""Bytes sent at most to a peer that is not admitted: greeting, WELCOME, and what the system may count besides. READY
has at least 60."""

LOOK_EVERY = 0.25

_FIGURES = struct.Struct("=QQ")
_FIGURES_AT = 120  # in Linux' struct tcp_info: tcpi_bytes_acked, tcpi_bytes_received

LINE_EVERY = 1.0
"""Seconds in which one refusal of a user and action is logged and the others are counted."""

MOST_KINDS = 1_000_000
"""More users and actions than an access file has."""

SILENT_SHARE = 4
"""Share of the process's file descriptors for connections that have not sent anything: one in so many."""

MOST_SILENT = 10_000

RESERVED = 64
"""File descriptors reserved for the process itself: its store, log, health checks and metrics, and the connections of
administrators."""


class AccessControl:
    """The ZAP handler in a ZeroMQ context of its own, and the connections that it admitted."""

    def __init__(self, guard: Guard, keys: Keys | None, owner: ConnectionsOwner) -> None:
        self.guard = guard
        self.context: zmq.Context[Socket] = zmq.Context()
        self._keys = keys
        self.connections = UserConnections(guard, owner, *_connection_limits())
        self.zap = ZapHandler(self.context, guard.access, self)
        self.handshakes = Handshakes(self.connections)
        self.log = AccessLog(guard)

    def prepare(self, socket: Socket, endpoint: str) -> None:
        """Set security for the endpoint that a socket is bound to next. Raises EndpointError, UsageError."""
        enforce(socket)
        secure(socket, endpoint, self.guard.access, self._keys)

    def bound(self, endpoint: str, real: str) -> None:
        """Note that the socket listens; `real` has the real port."""
        self.connections.bound(real, keyed=full(endpoint) not in self.guard.access.endpoints)

    def swap(self, access: Access) -> None:
        """Apply another access file. Disconnect users that it does not have."""
        self.guard.swap(access)
        self.zap.swap(access)
        self.connections.swap()

    def close(self) -> None:
        """Close the handler and the context, after the other sockets. What was sent may still go out for a moment."""
        self.zap.close()
        self.context.term()

    def asked(self) -> None:
        """Note that a handshake reached the ZAP handler."""
        self.connections.asked()

    def refuse(self, address: str, key: str) -> None:
        """Report a peer that is no user."""
        self.guard.refused(NOBODY, "connect", b"", address, f"no user has the public key {key}" if key else "")


def _connection_limits() -> tuple[int, int]:
    """Return how many silent connections may be open, and how many others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    silent = min(MOST_SILENT, max(16, soft // SILENT_SHARE))
    return silent, max(16, soft - silent - RESERVED)


class Handshakes(Channel):
    """Ends handshakes that are too large.

    ZeroMQ reads a whole frame before it checks it, and one option limits all frames, those of handshakes too: a peer
    without a key could occupy as much memory as the largest message, for each connection. The system counts the bytes
    of a TCP connection both ways. A peer to which ZeroMQ has not sent READY, which is more than greeting and WELCOME,
    is not admitted yet.
    """

    def __init__(self, connections: UserConnections) -> None:
        self._connections = connections
        self._look_at = 0.0

    def tick(self, now: float) -> None:
        self._look_at = now + LOOK_EVERY
        unfinished = self._connections.unfinished
        for descriptor in [*unfinished]:
            heard, said = _figures(descriptor)
            if heard > NOT_IN:
                del unfinished[descriptor]
            elif said > MOST_SAID:
                del unfinished[descriptor]
                self._connections.end_handshake(descriptor)

    def next_deadline(self) -> float | None:
        return self._look_at if self._connections.unfinished else None


def _figures(descriptor: int) -> tuple[int, int]:
    """Return the bytes that a TCP peer has received and sent; for any other connection, more than a handshake has."""
    connection = None
    info = b""
    with suppress(OSError):  # it is gone
        connection = stream.socket(stream.AF_INET, stream.SOCK_STREAM, 0, fileno=descriptor)
        info = connection.getsockopt(stream.IPPROTO_TCP, stream.TCP_INFO, 256)
    if connection is not None:
        connection.detach()  # it is ZeroMQ's
    if len(info) < _FIGURES_AT + _FIGURES.size:  # a kernel of before 2015
        return NOT_IN + 1, 0
    heard, said = _FIGURES.unpack_from(info, _FIGURES_AT)
    return heard, said


class AccessLog(Channel):
    """Logs refusals: user, action, address and reason, never a body.

    For each user and action one line goes out. Those that follow within a second are counted in another, with the last
    of them.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._throttle: Throttle[tuple[str, str], AccessRefusal] = Throttle(lines=1, window=LINE_EVERY, most=MOST_KINDS)

    def flush(self, now: float) -> None:
        self._log_counts(now)
        for report in self._guard.take_reports():
            kind = (report.first.user, report.first.action)
            _, held = self._throttle.take(kind, report.first, now)
            if not held:
                self._write(report.first)
            if report.count > 1:
                self._throttle.take(kind, report.last, now, report.count - 1)

    def next_deadline(self) -> float | None:
        """Return when the next count is due."""
        return self._throttle.next_end

    def close(self) -> None:
        """Log all counts; nothing follows."""
        self.flush(time.monotonic())
        self._log_counts(math.inf)

    def _log_counts(self, now: float) -> None:
        """Log the counts whose second is over."""
        for _, more, last in self._throttle.ended(now):
            self._write(last, f" (the last of {more} more within {LINE_EVERY:g} s)")

    def _write(self, refusal: AccessRefusal, counted: str = "") -> None:
        peer = getattr(refusal.peer, "address", refusal.peer)
        log.warning(
            "refused: user %r, %s%s, from %s%s; %d so far%s",
            refusal.user,
            refusal.action,
            f" {refusal.service!r}" if refusal.service not in ("", refusal.action) else "",
            peer or "?",
            "; " + refusal.why.removeprefix("forbidden: ") if refusal.why else "",
            self._guard.refusals.get((refusal.user, refusal.action), 0),
            counted,
            extra={
                "event": "forbidden",
                "user": refusal.user,
                "action": refusal.action,
                "service": refusal.service,
                "peer": peer,
                **COUNTED,
            },
        )
