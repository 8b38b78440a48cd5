"""A service manager's ear: the socket that NOTIFY_SOCKET names, and what comes there."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from support.waiting import PATIENCE


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
        """Whether no message with such a field comes for so long."""
        self._drain()
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if any(line.startswith(f"{name}=") for line in self._socket.recv(65536).decode().splitlines()):
                    return False
        except TimeoutError:
            pass
        finally:
            self._socket.settimeout(PATIENCE)
        return True

    def _drain(self) -> None:
        """Read what came so far."""
        self._socket.setblocking(False)
        try:
            while self._socket.recv(65536):
                pass
        except BlockingIOError:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
