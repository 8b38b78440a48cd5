"""A peer that speaks ZMTP 3.1 by itself, for what no ZeroMQ library would send."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from support.relay import connected


@contextmanager
def zmtp(endpoint: str, kind: bytes, *properties: tuple[bytes, bytes]) -> Iterator[socket.socket]:
    """A connection to a tcp:// or ipc:// endpoint, after the handshake, from a socket of this kind, which says this of
    itself, too. Raises ConnectionResetError when it is refused."""
    with connected(endpoint) as stream:
        stream.settimeout(60)
        stream.sendall(b"\xff" + bytes(8) + b"\x7f" + b"\3\1" + b"NULL".ljust(20, b"\0") + bytes(32))
        said = ((b"Socket-Type", kind), *properties)
        ready = b"\5READY" + b"".join(bytes([len(name)]) + name + len(what).to_bytes(4) + what for name, what in said)
        stream.sendall(b"\4" + bytes([len(ready)]) + ready)
        with stream.makefile("rb") as heard:
            heard.read(64)  # its greeting
            _, size = heard.read(2).ljust(2, b"\0")
            if not heard.read(size).startswith(b"\5READY"):
                raise ConnectionResetError("the handshake was refused")
        yield stream


def message(*frames: bytes) -> bytes:
    """A message's bytes; its frames have less than 256."""
    more = [1] * (len(frames) - 1) + [0]
    return b"".join(bytes([flag, len(frame)]) + frame for flag, frame in zip(more, frames, strict=True))
