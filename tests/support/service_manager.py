"""A service manager's ear: the socket that NOTIFY_SOCKET names, and what comes there."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE = 30.0


class Manager:
    """Listens."""

    def __init__(self, path: Path) -> None:
        self.env = {"NOTIFY_SOCKET": str(path)}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(PATIENCE)

    def hears(self, name: str) -> dict[str, str]:
        """The next message in which there is a field of this name."""
        while True:
            lines = self._socket.recv(65536).decode().splitlines()
            fields = dict(line.split("=", 1) for line in lines)
            if name in fields:
                return fields

    def silent(self, name: str, seconds: float) -> bool:
        """Whether no message with such a field comes for so long, once those that were on their way are read."""
        self._socket.setblocking(False)
        try:
            while self._socket.recv(65536):
                pass
        except BlockingIOError:
            pass
        self._socket.settimeout(seconds)
        try:
            return name not in dict(line.split("=", 1) for line in self._socket.recv(65536).decode().splitlines())
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
