"""Ends connections to a server that is there, but does not answer.

PostgreSQL ends a statement that takes too long, and the kernel a connection to a machine that is gone. A server that
stands still, or a proxy that lets nothing through, is noticed by nobody else: the answer is waited for for ever.

A statement may rightly take long, so a server has PATIENCE. The statements of the lease never do: when one of them had
no answer within seconds, and a new connection has one, then the connections made before are suspect (`suspect`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from weakref import WeakSet

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
        self.has_cut = False
        """Whether a connection was ended since this was set to false."""
        self._since: dict[Connection, float] = {}
        self._trusted: WeakSet[Connection] = WeakSet()
        self._suspects: WeakSet[Connection] = WeakSet()
        self._with_suspects = PATIENCE
        """Seconds that a suspect has for an answer."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, connection: Connection) -> None:
        """An answer is waited for from now on."""
        with self._lock:
            self._since[connection] = time.monotonic()
            if connection not in self._suspects:
                self._trusted.add(connection)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stall-guard", daemon=True)
                self._thread.start()

    def end(self, connection: Connection) -> None:
        """It is there."""
        with self._lock:
            self._since.pop(connection, None)

    def suspect(self, patience: float) -> None:
        """A connection to the same database was silent, and a new one is not: those that there are have so many seconds
        for an answer from now on."""
        with self._lock:
            self._suspects |= self._trusted
            self._trusted.clear()
            self._with_suspects = patience

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK if self._patience is None else self._patience / 4):
            now, patience = time.monotonic(), PATIENCE if self._patience is None else self._patience
            with self._lock:
                for connection, since in list(self._since.items()):
                    if since < now - (self._with_suspects if connection in self._suspects else patience):
                        del self._since[connection]
                        self.has_cut = True
                        with contextlib.suppress(psycopg.Error, OSError):
                            _cut(connection)


def _cut(connection: Connection) -> None:
    """Who waits for the answer hears that the connection has ended."""
    with socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)
