"""A line between a broker and others, which may be slow, stall, break, be down, or be tapped: a relay of TCP."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from support.ports import free_port

CHUNK = 16 << 10

ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER: what is closed sends RST."""


Breaks = Callable[[bytes, bool], bool]


def never(data: bytes, answers: bool) -> bool:
    return False


class Relay:
    """Where it leads to is chosen when it is made; who connects to `endpoint` speaks over it. It is up at first."""

    def __init__(self, endpoint: str, rate: float = math.inf, *, tapped: bool = False, breaks: Breaks = never) -> None:
        """`rate`: bytes a second, each way. The `endpoint` may be an ipc:// one. `breaks` is asked about what is about
        to be passed on, and whether it is an answer: if so, the connection breaks instead."""
        self._there = endpoint
        self._rate = rate
        self._tapped = tapped
        self._breaks = breaks
        self._stalled = threading.Event()
        self._over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.heard: list[bytearray] = []
        """What went over the line, if it is tapped: of each connection, what went there and what came back."""
        self._port = free_port()  # while it is down, nobody else gets it
        self.up()
        self.endpoint = f"tcp://127.0.0.1:{self._port}"

    def up(self) -> None:
        """Connections can be made, at the same endpoint as before."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._listening = self._begin(self._listen, self._listener)

    def down(self) -> None:
        """Break all connections; new ones are refused."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listening.join()
        self._listener.close()
        self.reset()

    def stall(self) -> None:
        """From now on nothing comes through, but connections stay."""
        self._stalled.set()

    def go_on(self) -> None:
        """What has been sent and what will be comes through."""
        self._stalled.clear()

    def reset(self) -> None:
        """Break the connections that there are, as firewalls and load balancers do it; new ones can be made."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
                one.shutdown(socket.SHUT_RD)  # wakes who reads from it
            one.close()

    def close(self) -> None:
        self._over.set()
        self.down()
        for thread in self._threads:
            thread.join()

    def _begin(self, what: Callable[..., None], *arguments: object) -> threading.Thread:
        self._threads.append(threading.Thread(target=what, args=arguments))
        self._threads[-1].start()
        return self._threads[-1]

    def _listen(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                here, _ = listener.accept()
                self._sockets.append(here)
                with suppress(OSError):
                    there = connected(self._there)
                    self._sockets.append(there)
                    for one in (here, there):
                        # What has been sent but not read would come in one go, however slow the line is.
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)
                    self._begin(self._carry, here, there, False)
                    self._begin(self._carry, there, here, True)
                    continue
                here.close()

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError), ExitStack() as ends:
            ends.callback(source.shutdown, socket.SHUT_RDWR)
            ends.callback(target.shutdown, socket.SHUT_RDWR)
            free_at = 0.0
            heard = bytearray()
            self.heard.append(heard)
            while data := source.recv(CHUNK):
                if self._tapped:
                    heard += data
                free_at = max(free_at, time.monotonic()) + len(data) / self._rate
                while self._stalled.is_set() and not self._over.wait(0.05):
                    pass
                if self._over.wait(max(0.0, free_at - time.monotonic())):
                    return
                if self._breaks(data, answers):
                    return
                target.sendall(data)


def connected(endpoint: str) -> socket.socket:
    """A stream to a tcp:// or ipc:// endpoint."""
    protocol, address = endpoint.split("://")
    if protocol == "ipc":
        there = socket.socket(socket.AF_UNIX)
        try:
            there.connect(address)
        except OSError:
            there.close()
            raise
        return there
    host, port = address.split(":")
    return socket.create_connection((host, int(port)))


@contextmanager
def relay(endpoint: str, rate: float = math.inf, *, tapped: bool = False, breaks: Breaks = never) -> Iterator[Relay]:
    made = Relay(endpoint, rate, tapped=tapped, breaks=breaks)
    try:
        yield made
    finally:
        made.close()
