"""A way to a TCP endpoint whose connections can be reset, as firewalls and load balancers do it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER: what is closed sends RST."""


class Resetting:
    """Carries bytes both ways. `reset` breaks the connections that there are; new ones can be made."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def reset(self) -> None:
        """Break all connections."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
                end.shutdown(socket.SHUT_RD)  # wakes who reads from it
            end.close()

    def close(self) -> None:
        """Break all connections, and make no new ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.reset()
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._ends += [near, far]
                self._start(self._carry, near, far)
                self._start(self._carry, far, near)

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)


@contextmanager
def resetting(endpoint: str) -> Iterator[Resetting]:
    way = Resetting(endpoint)
    try:
        yield way
    finally:
        way.close()
