"""What all sockets share: fast ways to move frames, binding and connecting, and which endpoints others can reach.

`zmq.Socket.recv_multipart` and `send_multipart` cost 5.4 and 5.3 µs for five frames; the backend's own methods, used as
here, 2.8 and 3.3: an echo ROUTER does 98,000 round trips a second instead of 39,000.
"""

from __future__ import annotations

import errno
import math
import os
import re
import socket as stream
import sys
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import zmq

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from broker.core.mdp import Frames
from broker.errors import EndpointError, Means, Unprotected, UsageError

Socket = zmq.Socket[bytes]

DRAIN_LIMIT = 1000
"""Messages taken from a socket before others get their turn."""

MOST_FRAMES = 100_000
"""Frames of a message."""

ENVELOPE_FRAMES = 100
"""Frames around a body: addresses, header, command, and what a service adds that passes it on."""

MOST_BODY_FRAMES = MOST_FRAMES - ENVELOPE_FRAMES
"""Frames of a body."""

LINGER = 2000
"""Milliseconds that a closed socket may take to send a good-bye."""

MOST_SOCKETS = 65_535
"""libzmq's limit for a process."""

SPARE_FILES = 32
"""File descriptors left for other uses when connections are counted."""

LOOPBACK_CARD = "lo"

_LOCAL = os.urandom(8).hex()

OTHER_NETWORKS = ("ws", "wss", "tipc", "vmci", "hyperv", "udp", "pgm", "epgm", "norm")
"""Transports of libzmq besides TCP that leave the machine; a wheel's has hardly one of them."""

_backend: Any = zmq.backend.Socket
_recv = _backend.recv
_send = _backend.send
_DONTWAIT = int(zmq.DONTWAIT)
_SNDMORE = int(zmq.SNDMORE)


def open_files_limits() -> tuple[float, float]:
    """The soft and the hard limit of open files, infinite where there is none, as on Windows."""
    if resource is None:
        return math.inf, math.inf
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (math.inf if soft == resource.RLIM_INFINITY else soft), (
        math.inf if hard == resource.RLIM_INFINITY else hard
    )


def allow_sockets() -> None:
    """Allow the process as many sockets as files. libzmq allows 1,023 otherwise, and reads this only before the first
    one."""
    _, hard = open_files_limits()
    zmq.Context.instance().max_sockets = int(min(hard, MOST_SOCKETS))


allow_sockets()


def require_connections(count: int, what: str, *, watched: bool) -> None:
    """Raise the system's limit for so many more connections. Raises UsageError if that is impossible: connections that
    find no room later would be missing silently. `watched`: by a monitor."""
    allow_sockets()  # after a fork there is another context
    soft, hard = open_files_limits()
    open_now = sum(1 for _ in Path("/proc/self/fd").iterdir()) if Path("/proc/self/fd").is_dir() else SPARE_FILES
    needed = count * (4 if watched else 2) + open_now + SPARE_FILES
    limit, advice = hard, "raise it (ulimit -Hn, or LimitNOFILE= of a systemd unit), or use fewer jobs"
    if (sockets := count * (3 if watched else 1) + SPARE_FILES) > MOST_SOCKETS:
        needed, limit, advice = sockets, MOST_SOCKETS, "libzmq supports no more; use fewer jobs"
    if needed > limit:
        raise UsageError(f"{what} need {needed} open files, and the limit is {limit}; {advice}")
    if needed > soft and resource is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, resource.RLIM_INFINITY if hard == math.inf else int(hard)))


def receive(socket: Socket, inspect: Callable[[Any], None] | None = None) -> Frames | None:
    """Receive a message; None when there is none. `inspect` is called with its first frame. Raises ZMQError when the
    socket is gone.

    Of a message with more frames than a broker passes on, only the first frame is returned: the rest makes no sense
    without the others, and does not fill the memory. `skip` it before the next `receive`.
    """
    try:
        frame = _recv(socket, _DONTWAIT, False)
    except zmq.Again:
        return None
    if inspect is not None:
        inspect(frame)
    frames = [frame.bytes]
    while frame.more:
        frame = _recv(socket, 0, False)
        frames.append(frame.bytes)
        if len(frames) > MOST_FRAMES + ENVELOPE_FRAMES:
            return frames[:1]
    return frames


def skip(socket: Socket, most: int = 1 << 62) -> bool:
    """Discard the rest of a message, at most `most` frames. Return whether there is still more."""
    if not socket.rcvmore:
        return False
    while most and _recv(socket, 0, False).more:
        most -= 1
    return most == 0


def send(socket: Socket, frames: Frames) -> None:
    """Send a message, all or nothing, without waiting. Raises zmq.Again when the peer's queue is full."""
    last = len(frames) - 1
    for frame in frames[:last]:
        _send(socket, frame, _DONTWAIT | _SNDMORE)
    _send(socket, frames[last], _DONTWAIT)


def full(endpoint: str) -> str:
    """Return an endpoint with its protocol: `localhost:5555` is short for `tcp://localhost:5555`.

    Raises EndpointError for an impossible TCP port: libzmq would take it modulo 65536.
    """
    bare = re.fullmatch(r"([^:/\s]+|\[[^\]\s]+\]):(\d+|\*)", endpoint)
    whole = f"tcp://{endpoint}" if bare else endpoint
    match = re.fullmatch(r"tcp://.*:(\d+)", whole)
    if match is not None and int(match[1]) > 65535:
        raise EndpointError(f"invalid port: {endpoint}; use at most 65535")
    return whole


def is_exposed(endpoint: str) -> bool:
    """Return whether other machines may reach an endpoint. One that cannot be resolved counts as exposed."""
    protocol, _, rest = full(endpoint).partition("://")
    if protocol != "tcp":
        return protocol in OTHER_NETWORKS
    match = re.fullmatch(r"(.*):[^:]*", rest, re.DOTALL)
    return match is not None and not _is_loopback(match[1].removeprefix("[").removesuffix("]"))


def protect(endpoint: str, *, open: bool, by: Means = Means.USERS) -> None:
    """Check an endpoint before something listens there without access control. Raises Unprotected if other machines may
    reach it and it is not `open`; an open one is logged. `by`: what would protect it."""
    if is_exposed(endpoint):
        if not open:
            raise Unprotected(endpoint, by)
        import logging  # a client does without

        logging.getLogger(__name__).warning(
            "%s is open: any client that reaches it may %s",
            endpoint,
            "submit, read, close and work" if by is Means.USERS else "use it",
        )


def _is_loopback(host: str) -> bool:
    if host in ("", "*"):
        return False
    if host == LOOPBACK_CARD:
        return True
    if any(host == card for _, card in stream.if_nameindex()):  # libzmq tries a card of the name first
        return False
    try:
        found = stream.getaddrinfo(host, None, type=stream.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = {str(address[0]).partition("%")[0] for *_, address in found}
    return bool(addresses) and all(ip_address(address).is_loopback for address in addresses)


def unreachable(endpoints: Iterable[str], patience: float = 0.5) -> str:
    """Return why none of these endpoints can be reached just now; empty when one may be.

    This asks the system, for `patience` seconds each; ZeroMQ would only keep trying.
    """
    reasons: dict[str, list[str]] = {}
    for endpoint in endpoints:
        reason = _refusal(full(endpoint), patience)
        if not reason:
            return ""
        reasons.setdefault(reason, []).append(endpoint)
    return ", ".join(f"{reason} at {' and '.join(names)}" for reason, names in reasons.items())


def _refusal(endpoint: str, patience: float) -> str:
    try:
        if (probe := connection_to(endpoint, patience)) is not None:
            probe.close()
    except TimeoutError:
        return "no connection"
    except BlockingIOError:  # many others want to connect, too
        return ""
    except (OSError, OverflowError, UnicodeError) as error:
        fact = getattr(error, "strerror", None) or str(error)
        return fact[:1].lower() + fact[1:]
    return ""


def connection_to(endpoint: str, patience: float) -> stream.socket | None:
    """Connect past ZeroMQ, within `patience` seconds; None: impossible for this kind of endpoint."""
    tcp = re.fullmatch(r"tcp://(?:[^;]*;)?\[?([^;\]]+)\]?:(\d+)", endpoint)
    if tcp is not None:
        return stream.create_connection((tcp[1], int(tcp[2])), patience)
    if not endpoint.startswith("ipc://"):
        return None
    connection = stream.socket(stream.AF_UNIX)
    try:
        connection.settimeout(patience)
        connection.connect(re.sub("^@", "\0", endpoint.removeprefix("ipc://")))
    except BaseException:
        connection.close()
        raise
    return connection


def local_name(name: str) -> str:
    """Return the abstract ipc name that an inproc endpoint stands for; other processes do not know it."""
    return f"@{_LOCAL}-{os.getpid()}/{name}"


def _address(endpoint: str) -> str:
    whole = full(endpoint)
    name = whole.removeprefix("inproc://")
    return whole if name == whole else f"ipc://{local_name(name)}"


def bind(socket: Socket, endpoint: str) -> str:
    """Bind a socket and return the endpoint with its real port. Raises EndpointError."""
    try:
        socket.bind(_address(endpoint))
    except zmq.ZMQError as error:
        raise EndpointError(f"cannot bind {endpoint}: {zmq.strerror(error.errno or 0)}; {_advice(error)}") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connect(socket: Socket, endpoint: str) -> None:
    """Connect a socket. Raises EndpointError."""
    try:
        socket.connect(_address(endpoint))
    except zmq.ZMQError as error:
        fact = zmq.strerror(error.errno or 0)  # that of pyzmq repeats the endpoint
        raise EndpointError(f"cannot connect to {endpoint}: {fact}; {_advice(error)}") from error


ADVICE = {
    errno.EADDRINUSE: "is another one running? stop it, or choose another endpoint",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose one of its addresses, or 0.0.0.0 for all",
    errno.ENODEV: "this machine has no such address: choose one of its addresses, or 0.0.0.0 for all",
    errno.ENOENT: "the directory of an ipc:// endpoint must exist: create it, or choose another endpoint",
    errno.EACCES: "choose a port above 1023, or a writable directory",
}
"""What to do about an endpoint that cannot be used, by errno."""

USUAL = "write it like tcp://127.0.0.1:5555 or ipc:///run/titanic.sock"
"""The advice otherwise."""


def _advice(error: zmq.ZMQError) -> str:
    return ADVICE.get(error.errno or 0, USUAL)


def monitored_event(frames: Frames | None) -> int:
    """Return the event in a monitor's message, 0 if there is none.

    Its first frame is a u16 event and a u32 value, in the machine's order. (`zmq.utils.monitor` does the same, but
    loads asyncio: 34 ms of every command's start.)
    """
    return int.from_bytes(frames[0][:2], sys.byteorder) if frames else 0
