"""The connections of a store, and the log of its outages.

`Outage` logs one line when the database goes away, whichever pool notices it, and one when it is back. Only servers log
that, because they go on. For all other programs the error is the message.

`ConnectionPool` keeps the idle connections, and what is known of a server that is away. A transaction has a connection
to itself. When the server is away, one caller a second tries to connect, and all others fail at once with the reason;
so no caller waits for a server that is away, and everything continues when it is back.
"""

from __future__ import annotations

import logging
import math
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import Connection

from titanic.errors import StoreAway, StoreError, StoreFailed
from titanic.store.postgres.database_session import (
    ASK,
    DatabaseClock,
    DatabaseSession,
    StallGuard,
    Unsafe,
    connect,
    is_away,
    parse,
    place_of,
    reason_of,
    translate,
    unreachable,
)
from titanic.store.records import Durability
from titanic.util.clock import elapsed

log = logging.getLogger(__name__)

EVERY = 300.0
"""Seconds from one line to the next while it lasts."""


class Outage:
    """Any thread may call it. Each pool of connections is a `reporter`: the outage ends when all of them have
    recovered."""

    def __init__(self) -> None:
        self.logged = False
        """Whether it is logged."""
        self._lock = threading.Lock()
        self._failed: set[object] = set()
        self._said_at = 0.0
        """When it was last logged; 0: it was not."""

    def failed(self, reporter: object, error: StoreAway) -> None:
        """Note that the database could not be used."""
        now = time.monotonic()
        with self._lock:
            self._failed.add(reporter)
            if not self.logged or (self._said_at and now < self._said_at + EVERY):
                return
            self._said_at = now
        log.error("cannot use the database: %s", error, extra={"event": "database-away"})

    def recovered(self, reporter: object) -> None:
        """Note that the database could be used."""
        with self._lock:
            self._failed.discard(reporter)
            if self._failed or not self._said_at:
                return
            self._said_at = 0.0
        log.info("can use the database again", extra={"event": "database-back"})

    def forget(self, reporter: object) -> None:
        """Forget a pool that is not used any more."""
        with self._lock:
            self._failed.discard(reporter)


# -- pool ------------------------------------------------------------------------------------------------------


AGAIN = 1.0
"""Seconds between attempts to reach a server that is away."""

_IDLE = 8
"""Connections that are kept for later, at most."""


class ConnectionPool:
    """Any thread may take a connection and give it back. `place` is the database's, for people. Without a durability it
    is for reading."""

    def __init__(
        self,
        url: str,
        durability: Durability | None,
        target: str = "read-write",
        patience: float | None = None,
        outage: Outage | None = None,
    ) -> None:
        """`patience`: seconds that a server has to answer, also for a connection; None: as usual. `outage`: notified
        when the server is away."""
        self.place = place_of(url)
        self.durability = durability
        self._parameters = parse(url, target)
        if patience is not None:
            self._parameters["connect_timeout"] = str(max(2, int(patience)))  # libpq takes no less
        self._lock = threading.Lock()
        self._idle: list[DatabaseSession] = []
        self._reason = ""  # why the server is away; empty: it is not, as far as is known
        self._outage = outage
        self._lost_at = 0.0  # when a connection was lost that had been well, or the server was away; 0: all is well
        self._next = 0.0  # when it may be tried again, by the monotonic clock
        self.closed = False
        self.guard = StallGuard(patience)
        self.clock = DatabaseClock()

    def take(self) -> DatabaseSession:
        """A connection, which may be broken when it was not used for a while. Raises StoreFailed."""
        with self._lock:
            if self.closed:
                raise StoreFailed(f"the store in {self.place} is closed", "", "open it again")
            while self._idle:
                session = self._idle.pop()
                if not _is_over(session):
                    return session
                session.connection.close()
            if self._reason:
                if time.monotonic() < self._next:
                    raise unreachable(self.place, self._reason)
                self._next = math.inf  # others fail while this one tries
        return self._connect()

    def connect(self) -> DatabaseSession:
        """Open a new connection that the caller keeps. Raises StoreFailed."""
        if self.closed:
            raise StoreFailed(f"the store in {self.place} is closed", "", "open it again")
        return self._connect()

    def give(self, session: DatabaseSession) -> None:
        """Give back a connection that is in no transaction."""
        if self._lost_at and time.monotonic() > self._lost_at + AGAIN:
            self._well()
        with self._lock:
            if not self.closed and len(self._idle) < _IDLE and not session.connection.closed:
                self._idle.append(session)
                return
        session.connection.close()

    @contextmanager
    def borrow(self) -> Iterator[Connection]:
        """A connection for statements that are transactions by themselves. Raises StoreFailed and the like."""
        session = self.take()
        broken = True
        self.guard.begin(session.connection)
        try:
            yield session.connection
            broken = False
        except psycopg.Error as error:
            broken = is_away(error)
            raise self.translate(error) from error
        finally:
            self.guard.end(session.connection)
            if broken:
                self.drop(session)
            else:
                self.give(session)

    def look_at_clock(self) -> None:
        """Ask the database for its time, if that is due. Raises StoreFailed and the like."""
        if self.clock.is_due:
            with self.borrow() as connection:
                asked = elapsed()
                row = connection.execute(f"SELECT {ASK}").fetchone()
                assert row is not None
                self.clock.heard(int(row[0]), asked)

    def translate(self, error: psycopg.Error) -> StoreError:
        """The exception to raise in place of `error`, which a transaction has met before its COMMIT was sent."""
        found = translate(error, self.place)
        if isinstance(found, StoreAway):
            self._lost(found)
        return found

    def drop(self, *broken: DatabaseSession) -> None:
        """Drop a broken connection, and the idle ones, which may be broken, too."""
        with self._lock:
            dropped, self._idle = [*broken, *self._idle], []
        for one in dropped:
            one.connection.close()

    def suspect(self, patience: float) -> None:
        """The connections that there are may be silent (`StallGuard.suspect`)."""
        self.drop()
        self.guard.suspect(patience)

    def close(self) -> None:
        """Close the idle connections now, and the others when they are returned."""
        self.guard.stop()
        if self._outage is not None:
            self._outage.forget(self)
        with self._lock:
            self.closed = True
            dropped, self._idle = self._idle, []
        for one in dropped:
            one.connection.close()

    def _connect(self) -> DatabaseSession:
        try:
            session = connect(self._parameters, self.durability, self.guard)
        except (psycopg.Error, Unsafe) as error:
            reason = error.fact if isinstance(error, Unsafe) else reason_of(error)
            self._note(reason or "it does not answer", time.monotonic() + AGAIN)
            refused = self._refused(error, reason)
            self._lost(refused)
            raise refused from error
        except BaseException:
            self._note(self._reason, 0.0)
            raise
        self._note("", 0.0)
        self._well()
        self.clock.heard(session.told_us, session.asked)
        return session

    def _note(self, reason: str, next_: float) -> None:
        with self._lock:
            self._reason, self._next = reason, next_

    def _lost(self, error: StoreAway) -> None:
        self._lost_at = time.monotonic()
        if self._outage is not None:
            self._outage.failed(self, error)

    def _well(self) -> None:
        if self._lost_at:
            self._lost_at = 0.0
            if self._outage is not None:
                self._outage.recovered(self)

    def _refused(self, error: Exception, reason: str) -> StoreAway:
        if isinstance(error, Unsafe):
            return StoreAway(f"the database {self.place} is not safe to use", reason, error.advice)
        return unreachable(self.place, reason)


def _is_over(session: DatabaseSession) -> bool:
    """Whether the server has ended an idle connection. It sends nothing otherwise."""
    connection = session.connection
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
