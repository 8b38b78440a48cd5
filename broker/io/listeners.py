"""Listening sockets: TCP on addresses, host names and interfaces; ipc on paths and abstract names."""

from __future__ import annotations

import errno
import os
import re
import socket as stream
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.errors import EndpointError
from broker.io.sockets import ADVICE, USUAL, full, local_name

BACKLOG = 4096
"""Connections waiting to be accepted, if the system allows so many."""

UNREAD_SECONDS = 120
"""Seconds after which the system closes the connection of a peer that reads nothing."""

MAX_PATH = 107
"""Bytes of an ipc name (`sun_path`)."""

_SIOCGIFADDR = 0x8915
_UCRED = struct.Struct("=iII")

_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""Detects peers on machines that vanished: they close nothing."""


class ListeningSocket:
    """A socket that listens at one endpoint."""

    def __init__(self, endpoint: str) -> None:
        """Raises EndpointError."""
        whole = full(endpoint)
        protocol, _, address = whole.partition("://")
        self.asked = whole
        """The endpoint as it was given, in full."""
        self._file: tuple[Path, int] | None = None
        """The file of an ipc endpoint and its inode: `close` removes the file if it is still the same."""
        try:
            if protocol == "tcp":
                self.stream, self.endpoint = _listen_tcp(address)
            elif protocol == "ipc":
                self.stream, self.endpoint = self._listen_ipc(address)
            elif protocol == "inproc":
                self.stream, _ = self._listen_ipc(local_name(address))
                self.endpoint = whole
            else:
                raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))
        except OSError as error:
            fact = error.strerror or str(error)
            advice = ADVICE.get(error.errno or 0, USUAL)
            raise EndpointError(f"cannot bind {endpoint}: {fact}; {advice}") from error
        self.stream.setblocking(False)

    def _listen_ipc(self, name: str) -> tuple[stream.socket, str]:
        if name == "*":
            import tempfile  # rarely needed

            name = str(Path(tempfile.mkdtemp()) / "socket")
        abstract = name.startswith("@")
        path = ("\0" + name[1:]) if abstract else name
        if not name or len(path.encode()) > MAX_PATH:
            raise OSError(errno.ENAMETOOLONG if name else errno.EINVAL, "the name must have 1 to 107 bytes")
        listening = stream.socket(stream.AF_UNIX)
        try:
            if not abstract:
                Path(path).unlink(missing_ok=True)
            listening.bind(path)
            listening.listen(BACKLOG)
            if not abstract:
                self._file = Path(path), Path(path).stat().st_ino
        except BaseException:
            listening.close()
            raise
        return listening, f"ipc://{name}"

    def accept(self) -> tuple[stream.socket, Any] | None:
        """Accept a connection: its socket and the peer's address; None: there is none. Raises OSError."""
        try:
            connected, address = self.stream.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        if self.endpoint.startswith("inproc://") and peer_ids(connected)[0] != os.getpid():
            connected.close()
            return None
        connected.setblocking(False)
        if connected.family != stream.AF_UNIX:
            with suppress(OSError):  # closed by the peer already
                prepare_tcp(connected)
        return connected, address

    def close(self) -> None:
        """Stop listening."""
        self.stream.close()
        if self._file is not None:
            path, number = self._file
            with suppress(OSError):
                if path.stat().st_ino == number:
                    path.unlink()


def prepare_tcp(connected: stream.socket) -> None:
    """Set the options of a TCP connection."""
    connected.setsockopt(stream.IPPROTO_TCP, stream.TCP_NODELAY, 1)
    connected.setsockopt(stream.SOL_SOCKET, stream.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(stream, name):
            connected.setsockopt(stream.IPPROTO_TCP, getattr(stream, name), value)
    if hasattr(stream, "TCP_USER_TIMEOUT"):
        connected.setsockopt(stream.IPPROTO_TCP, stream.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000)


def peer_ids(connected: stream.socket) -> tuple[int | None, int | None]:
    """Return the process and the uid of an ipc connection's peer; None: not available."""
    if connected.family != stream.AF_UNIX or not hasattr(stream, "SO_PEERCRED"):
        return None, None
    pid, uid, _ = _UCRED.unpack(connected.getsockopt(stream.SOL_SOCKET, stream.SO_PEERCRED, _UCRED.size))
    return int(pid), int(uid)


def _listen_tcp(address: str) -> tuple[stream.socket, str]:
    match = re.fullmatch(r"(.*):(\*|\d+)", address)
    if match is None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    host, port = match[1], 0 if match[2] == "*" else int(match[2])
    family, where = _resolve(host, port)
    listening = stream.socket(family, stream.SOCK_STREAM)
    try:
        listening.setsockopt(stream.SOL_SOCKET, stream.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
        bound = listening.getsockname()
    except BaseException:
        listening.close()
        raise
    shown = f"[{bound[0]}]" if family == stream.AF_INET6 else bound[0]
    return listening, f"tcp://{shown}:{bound[1]}"


def _resolve(host: str, port: int) -> tuple[int, Any]:
    """Return the family and the address of a host: an address, a host name or an interface."""
    if host in ("*", ""):
        return stream.AF_INET, ("0.0.0.0", port)
    bare = host.removeprefix("[").removesuffix("]")
    if any(bare == card for _, card in stream.if_nameindex()):
        return stream.AF_INET, (_address_of(bare), port)
    try:
        found = stream.getaddrinfo(bare, port, type=stream.SOCK_STREAM, flags=stream.AI_PASSIVE)
    except (stream.gaierror, UnicodeError):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from None
    family, _, _, _, where = min(found, key=lambda one: one[0] != stream.AF_INET)
    return family, where


def _address_of(card: str) -> str:
    """Return the IPv4 address of an interface."""
    import fcntl  # rarely needed

    with stream.socket(stream.AF_INET, stream.SOCK_DGRAM) as probe:
        request = struct.pack("256s", card.encode()[:15])
        return stream.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
