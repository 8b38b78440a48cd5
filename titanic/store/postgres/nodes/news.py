"""News between nodes, by LISTEN and NOTIFY: a thread with a connection of its own (titanic/store/news.py).

A NOTIFY is never in a transaction that changes something: those that have one commit one after the other, waiting for
the disk included. It is a statement by itself, in a session that does not wait for the disk. What comes while one is on
its way, or shortly after, goes into the next.

While the database is away nothing is heard or sent. The new connection begins with a look at everything.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from functools import partial

import psycopg
from psycopg import Connection, Notify

from titanic.errors import StoreError
from titanic.store.news import News, Topic
from titanic.store.postgres import pool
from titanic.store.postgres.nodes import news_text
from titanic.store.postgres.pool import Pool

CHANNEL = "titanic"

GATHER, PAUSE = 0.001, 0.002
"""Seconds from the first news, and from the NOTIFY before, to the next one: what comes meanwhile goes into it."""

_PATIENCE = 2.0
"""Seconds that `stop` gives what is on its way."""

_NOTIFY = f"SELECT pg_notify('{CHANNEL}', %s)"


class PostgresNews:
    """A `NewsLine`. The thread runs from `start` to `stop`."""

    def __init__(self, pool: Pool) -> None:
        self.alone = True
        self.sent = 0
        """How many NOTIFYs were sent."""
        self._pool = pool
        self._lock = threading.Lock()
        self._pending: News | None = None
        self._due = 0.0
        """When what is pending has gathered for long enough."""
        self._ended = False
        self._bell, self._ring = -1, -1
        """The ends of a pipe: who writes wakes the thread."""
        self._heard: Callable[[News], None]
        self._thread: threading.Thread | None = None

    def start(self, heard: Callable[[News], None]) -> None:
        """Listen from now on."""
        self._heard = heard
        self._bell, self._ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="store-news", daemon=True)
        self._thread.start()

    def publish(self, news: News) -> None:
        """Tell the other nodes soon. Any thread may call it."""
        if self.alone:
            return
        with self._lock:
            if self._ended or self._thread is None:
                return
            if self._pending is None:
                self._pending = News()
                self._due = time.monotonic() + GATHER
                self._wake()
            self._pending.add(news)
            _shorten(self._pending)

    def stop(self) -> None:
        """Send what is left, if that is quick, and end."""
        with self._lock:
            self._ended = True
            if self._thread is None:
                return
            self._wake()
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            os.close(self._bell)
            os.close(self._ring)
        self._thread = None

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full of calls already
            os.write(self._ring, b"!")

    # -- in the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                session = self._pool.connect()
            except StoreError:
                self._wait(None, pool.AGAIN)
                continue
            with contextlib.closing(session.connection) as connection, contextlib.suppress(psycopg.Error, OSError):
                self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        """Send and hear, until the end of the connection."""
        me = connection.info.backend_pid
        connection.add_notify_handler(partial(self._notified, me))
        self._execute(connection, "SET synchronous_commit = off")
        self._execute(connection, f"LISTEN {CHANNEL}")
        self._heard(News(look=set(Topic)))
        quiet_until = 0.0
        while True:
            with self._lock:
                pending, due = self._pending, max(quiet_until, self._due)
                if ready := pending is not None and (self._ended or time.monotonic() >= due):
                    self._pending = None
            if ready and pending is not None:
                self._execute(connection, _NOTIFY, news_text.write(pending))
                self.sent += 1
                quiet_until = time.monotonic() + PAUSE
            elif self._ended:
                return
            else:
                self._wait(connection, None if pending is None else max(0.0, due - time.monotonic()))
                connection.pgconn.consume_input()
                while (one := connection.pgconn.notifies()) is not None:
                    if one.be_pid != me:
                        self._hear(one.extra)

    def _execute(self, connection: Connection, text: str, *parameters: object) -> None:
        guard = self._pool.guard
        guard.begin(connection)
        try:
            connection.execute(text, parameters)
        finally:
            guard.end(connection)

    def _wait(self, connection: Connection | None, seconds: float | None) -> None:
        """Until something comes, or is to be sent."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if connection is not None:
            poll.register(connection.fileno(), select.POLLIN)
        poll.poll(None if seconds is None else 1000 * seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, 4096)

    def _notified(self, me: int, one: Notify) -> None:
        """Called while a statement is on its way."""
        if one.pid != me:
            self._hear(one.payload.encode())

    def _hear(self, text: bytes) -> None:
        self.alone = False
        self._heard(news_text.read(text))


def _shorten(news: News) -> None:
    """Keep no more than goes into a text."""
    for topic, items in ((Topic.ENDED, news.ended), (Topic.CLOSED, news.closed), (Topic.CERTAIN, news.certain)):
        if len(items) > news_text.MOST_IDS:
            items.clear()
            news.look.add(topic)
    if len(news.arrived) > news_text.MOST:
        news.arrived.clear()
        news.look.add(Topic.ARRIVED)
