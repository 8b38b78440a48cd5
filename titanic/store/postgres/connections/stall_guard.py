"""Ends connections to a server that is there, but does not answer.

PostgreSQL ends a statement that takes too long, and the kernel a connection to a machine that is gone. A server that
stands still, or a proxy that lets nothing through, is noticed by nobody else: the answer is waited for for ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import psycopg
from psycopg import Connection

PATIENCE = 30.0
"""Seconds that a server has for an answer: more than `statement_timeout`."""

LOOK = 1.0
"""Seconds from one look at those that wait to the next."""


class StallGuard:
    """Any thread may call."""

    def __init__(self, patience: float | None = None) -> None:
        """`patience`: instead of PATIENCE, in seconds."""
        self._patience = patience
        self._lock = threading.Lock()
        self._since: dict[Connection, float] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, connection: Connection) -> None:
        """An answer is waited for from now on."""
        with self._lock:
            self._since[connection] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stall-guard", daemon=True)
                self._thread.start()

    def end(self, connection: Connection) -> None:
        """It is there."""
        with self._lock:
            self._since.pop(connection, None)

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK if self._patience is None else self._patience / 4):
            before = time.monotonic() - (PATIENCE if self._patience is None else self._patience)
            with self._lock:
                for connection in [one for one, since in self._since.items() if since < before]:
                    del self._since[connection]
                    with contextlib.suppress(psycopg.Error, OSError):
                        _cut(connection)


def _cut(connection: Connection) -> None:
    """Who waits for the answer hears that the connection has ended."""
    with socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)
