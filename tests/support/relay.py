"""A line between a broker and others, which may be slow, stall, or break: a relay of TCP."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

CHUNK = 16 << 10

ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER: what is closed sends RST."""


class Relay:
    """Where it leads to is chosen when it is made; who connects to `endpoint` speaks over it."""

    def __init__(self, endpoint: str, rate: float = math.inf) -> None:
        """`rate`: bytes a second, each way."""
        host, port = endpoint.removeprefix("tcp://").split(":")
        self._there = (host, int(port))
        self._rate = rate
        self._stalled = threading.Event()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._listen)]
        self._sockets: list[socket.socket] = []
        self._threads[0].start()

    def stall(self) -> None:
        """From now on nothing comes through, but connections stay."""
        self._stalled.set()

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
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(self._there)
                for one in (here, there):
                    # What has been sent but not read would come in one go, however slow the line is.
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)
                self._sockets += [here, there]
                for way in ((here, there), (there, here)):
                    self._threads.append(threading.Thread(target=self._carry, args=way))
                    self._threads[-1].start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), ExitStack() as ends:
            ends.callback(source.shutdown, socket.SHUT_RDWR)
            ends.callback(target.shutdown, socket.SHUT_RDWR)
            free_at = 0.0
            while data := source.recv(CHUNK):
                free_at = max(free_at, time.monotonic()) + len(data) / self._rate
                while self._stalled.is_set() and not self._over.wait(0.05):
                    pass
                if self._over.wait(max(0.0, free_at - time.monotonic())):
                    return
                target.sendall(data)


@contextmanager
def relay(endpoint: str, rate: float = math.inf) -> Iterator[Relay]:
    made = Relay(endpoint, rate)
    try:
        yield made
    finally:
        made.close()
