"""The number under which this process claims requests, and the lease that tells others that it lives.

An incarnation lives until somebody ends it: its own process, or others that have not seen it renewed for a whole lease.
That is noted in its row of `node` (`lease_until` is '-infinity') and never undone. What a dead one has claimed is free.
Nobody trusts a clock of another machine, not even the database's: who watches compares what he reads with what he has
read a lease ago by his own clock.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from titanic.errors import StoreError
from titanic.store.postgres.arrays import numbers
from titanic.store.postgres.pool import Pool
from titanic.store.postgres.transaction import Row
from titanic.util.clock import elapsed
from titanic.version import __version__

LEASE = 10.0
"""Seconds that a node may be silent."""
RENEW = 2.0
"""Seconds from one renewal to the next."""

FREE = """(incarnation IS NULL OR EXISTS (
    SELECT FROM node AS n WHERE n.incarnation = ready.incarnation AND n.lease_until = '-infinity'))"""
"""Of a row of `ready`: nobody has claimed it. Not that no living one has: who waits for a lock finds the row as it is
then, but the nodes as they were before, and would take what a node has claimed that has just come."""

_UNTIL = f"clock_timestamp() + interval '{LEASE} s'"

JOIN = f"INSERT INTO node (incarnation, name, version, endpoints, lease_until) VALUES (%s, %s, %s, '{{}}', {_UNTIL})"

END = "UPDATE node SET lease_until = '-infinity' WHERE incarnation = ANY(%s::bigint[])"

_NEXT = "SELECT nextval('incarnation')"

_RENEW = f"""
UPDATE node SET lease_until = greatest(lease_until + interval '1 microsecond', {_UNTIL})
WHERE incarnation = ANY(%s::bigint[]) AND lease_until > '-infinity'"""

_END_SILENT = """
UPDATE node AS n SET lease_until = '-infinity'
FROM unnest(%s::bigint[], %s::bigint[]) AS silent (incarnation, lease)
WHERE n.incarnation = silent.incarnation AND (extract(epoch FROM n.lease_until) * 1000000)::bigint = silent.lease
    AND n.lease_until > '-infinity'"""

_OTHERS = """
SELECT incarnation, (extract(epoch FROM lease_until) * 1000000)::bigint FROM node
WHERE lease_until > '-infinity' AND incarnation <> ALL (%s::bigint[])"""

_FORGET_DEAD = """
DELETE FROM node AS n WHERE lease_until = '-infinity' AND started_at < now() - interval '1 day'
    AND NOT EXISTS (SELECT FROM ready AS y WHERE y.incarnation = n.incarnation)"""


class Incarnation:
    """This process among those that share the store. Any thread may call.

    `own` are the numbers that are its own or may be, because nobody knows whether a commit was done; the last one is
    the one that it claims under. None: it has claimed nothing yet.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self.own: list[int] = []
        self._renewed = 0.0
        self._seen: dict[int, tuple[int, float]] = {}  # others: their lease, and since when it has been that

    def current(self) -> int:
        """The number to claim under; the first time, the node joins. Raises StoreFailed and the like."""
        if not self.own:
            number = self.new_number()
            self._ask((JOIN, (number, *identity())))
            self.own = [number]
            self._renewed = time.monotonic()
        return self.own[-1]

    def new_number(self) -> int:
        """One that nobody has had."""
        return int(self._ask((_NEXT, ()))[0][0])

    def look_after(self) -> None:
        """Renew the lease and end those of others that are silent, if it is time to. Raises StoreFailed."""
        with self._lock:
            if not self.own or time.monotonic() < self._renewed + RENEW:
                return
            began = elapsed()
            silent = [(n, lease) for n, (lease, since) in self._seen.items() if began - since > LEASE]
            statements: list[tuple[str, tuple[object, ...]]] = [(_RENEW, (numbers(self.own),))]
            if silent:
                ended, leases = zip(*silent, strict=True)
                statements.append((_END_SILENT, (numbers(ended), numbers(leases))))
            statements.append((_OTHERS, (numbers(self.own),)))
            others = self._ask(*statements)
            self._renewed, now = time.monotonic(), elapsed()
            before = self._seen
            self._seen = {n: before[n] if before.get(n, (0,))[0] == lease else (lease, now) for n, lease in others}

    def leave(self) -> None:
        """What was claimed is free for others."""
        with self._lock:
            if self.own:
                own, self.own = self.own, []
                with contextlib.suppress(StoreError):  # others see it when the lease has run out
                    self._ask((END, (numbers(own),)))

    def _ask(self, *statements: tuple[str, tuple[object, ...]]) -> list[Row]:
        """Execute statements in a transaction of their own. Returns the rows of the last."""
        with self._pool.borrow() as connection:
            with connection.pipeline():
                cursors = [connection.execute(text, given, binary=True) for text, given in statements]
            return cursors[-1].fetchall() if cursors[-1].description else []


def identity() -> tuple[str, str]:
    """The node's name and version, for people."""
    return socket.gethostname(), __version__
