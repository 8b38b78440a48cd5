"""A way to an endpoint of this machine that can be taken down, with all its connections, and built again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Bridge:
    """A TCP proxy, up at first. Whoever comes while it is down is refused."""

    def __init__(self, endpoint: str) -> None:
        self._there = int(endpoint.rpartition(":")[2])
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._port = 0
        self.up()
        self.endpoint = f"tcp://127.0.0.1:{self._port}"

    def up(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._open.append(listener)
        self._begin(self._listen, listener)

    def down(self) -> None:
        for at, one in enumerate(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            if at == 0:  # the listener: nothing is opened any more
                self._threads[0].join()
        for thread in self._threads:
            thread.join()
        for one in self._open:
            one.close()
        self._open, self._threads = [], []

    def _begin(self, what: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=what, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                here, _ = listener.accept()
                self._open.append(here)
                there = socket.create_connection(("127.0.0.1", self._there))
                self._open.append(there)
                self._begin(self._carry, here, there)
                self._begin(self._carry, there, here)

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
            other.shutdown(socket.SHUT_RDWR)
