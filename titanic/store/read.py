"""Reading the store: a view of one moment.

A read transaction pins every page that it could still look at, so that the file grows while it is open. Keep it
short, and don't wait for anything inside.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import lmdb

from titanic.errors import RecordCorrupt
from titanic.store import outcome, request, retry
from titanic.store.environment import Environment
from titanic.store.failures import translate
from titanic.store.outcome import Outcome, Pending
from titanic.store.request import Request
from titanic.store.retry import Retry
from titanic.store.schema import U64, USED_KEY, WAITING_PREFIX, due_of, uuid_of
from titanic.store.state import State
from titanic.store.views import Counts, Description, Page, ReadyRow

LOOKED_AT = 10_000
"""Requests that one call of `list` looks at, at most: some 20 ms."""


class ReadTransaction:
    """A view of the store as it was when it was entered. Any method may raise RecordCorrupt."""

    # LMDB hands out views of its pages (buffers=True), so that nobody copies a large body to read its header.
    # They die with the transaction and, in a write transaction, with the next change: copy before either.
    _txn: lmdb.Transaction[memoryview]

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._db = environment.databases

    def __enter__(self) -> Self:
        env = self._environment.env
        try:
            self._txn = env.begin(buffers=True)
        except lmdb.Error as error:
            raise translate(error, env, self._environment.capacity) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._txn.abort()
        if isinstance(error, lmdb.Error):
            raise translate(error, self._environment.env, self._environment.capacity) from error

    def state(self, uuid: bytes) -> State | None:
        """Where the request is; None when it is unknown. Never RUNNING: the store can't tell."""
        txn, db = self._txn, self._db
        if txn.get(uuid, db=db.requests) is None:
            return None
        if (record := txn.get(uuid, db=db.replies)) is not None:
            return State(outcome.decode_header(uuid, record).status)
        delay = self._retry(uuid)
        return State.DELAYED if delay and delay.due else State.WAITING

    def reply(self, uuid: bytes) -> Outcome | Pending | None:
        """How the request ended, that it hasn't yet, or None when it is unknown."""
        record = self._txn.get(uuid, db=self._db.replies)
        if record is not None:
            return outcome.decode(uuid, record)
        state = self.state(uuid)
        return None if state is None else Pending(state)

    def request(self, uuid: bytes) -> Request | None:
        """The request as it was accepted; None when it is unknown."""
        record = self._txn.get(uuid, db=self._db.requests)
        return None if record is None else request.decode(uuid, record)

    def describe(self, uuid: bytes) -> Description | None:
        """All about the request but its frames; None when it is unknown. Body and reply aren't checked."""
        record = self._txn.get(uuid, db=self._db.requests)
        return None if record is None else self._describe(uuid, record)

    def next_ready(self, service: bytes, after: bytes | None, limit: int, max_bytes: int) -> list[ReadyRow]:
        """What the service is to do next: oldest first within a priority, higher priorities before.

        Begins behind the row whose key is `after`, or at the front. Ends at `limit` rows or when their records
        come to `max_bytes`; one row is returned however large it is. A damaged record ends the list before it,
        and raises RecordCorrupt when it comes first.
        """
        rows: list[ReadyRow] = []
        txn, requests = self._txn, self._db.requests
        prefix = service + b"\0"
        size = 0
        cursor = txn.cursor(self._db.ready)
        if not cursor.set_range(after or prefix):
            return rows
        for view in cursor.iternext(keys=True, values=False):
            key = bytes(view)
            if len(rows) >= limit or not key.startswith(prefix):
                break
            if key == after:
                continue
            uuid = uuid_of(key)
            record = txn.get(uuid, db=requests)
            try:
                if record is None:
                    raise RecordCorrupt(uuid, request.DATABASE, "it is missing")
                size += len(record)
                if rows and size > max_bytes:
                    break
                found = request.decode(uuid, record)
                past = self._retry(uuid)
            except RecordCorrupt:
                if rows:
                    break
                raise
            attempts = past.attempts if past else 0
            rows.append(ReadyRow(key, uuid, attempts, found.body, found.max_attempts, found.expires_at))
        return rows

    def next_due(self) -> int | None:
        """When the next delayed request becomes ready, in µs since the epoch; None when none is delayed."""
        cursor = self._txn.cursor(self._db.later)
        return due_of(cursor.key()) if cursor.first() else None

    def waiting(self) -> dict[bytes, int]:
        """How many requests each service has in the queue. Services without any are absent."""
        counts: dict[bytes, int] = {}
        cursor = self._txn.cursor(self._db.meta)
        if cursor.set_range(WAITING_PREFIX):
            for view, value in cursor.iternext():
                key = bytes(view)
                if not key.startswith(WAITING_PREFIX):
                    break
                counts[key[len(WAITING_PREFIX) :]] = U64.unpack(value)[0]
        return counts

    def counts(self) -> Counts:
        """Totals, without counting."""
        stat, db = self._txn.stat, self._db
        return Counts(
            requests=stat(db.requests)["entries"],
            waiting=stat(db.ready)["entries"],
            delayed=stat(db.later)["entries"],
            replies=stat(db.replies)["entries"],
            used=self._used(),
            capacity=self._environment.capacity,
        )

    def _used(self) -> int:
        value = self._txn.get(USED_KEY, db=self._db.meta)
        return 0 if value is None else int(U64.unpack(value)[0])

    def _retry(self, uuid: bytes) -> Retry | None:
        record = self._txn.get(uuid, db=self._db.retries)
        return None if record is None else retry.decode(uuid, record)

    def _describe(self, uuid: bytes, record: memoryview) -> Description:
        header = request.decode_header(uuid, record)
        count = header.frame_count
        size = len(record) - header.body_at - 4 * count
        first = Description(uuid, State.WAITING, *header[:7], body_frames=count, body_bytes=size)
        reply = self._txn.get(uuid, db=self._db.replies)
        if reply is not None:
            end = outcome.decode_header(uuid, reply)
            return first._replace(
                state=State(end.status),
                attempts=end.attempts,
                dispatched_at=end.dispatched_at,
                finished_at=end.finished_at,
                reason=end.reason,
                reply_frames=end.frame_count,
                reply_bytes=len(reply) - end.frames_at - 4 * end.frame_count,
            )
        past = self._retry(uuid)
        if past is not None:
            state = State.DELAYED if past.due else State.WAITING
            return first._replace(
                state=state,
                attempts=past.attempts,
                due=past.due,
                dispatched_at=past.dispatched_at,
                reason=past.reason,
            )
        return first

    def list(
        self,
        *,
        service: bytes | None = None,
        state: State | None = None,
        after: bytes | None = None,
        limit: int = 100,
    ) -> Page:
        """Up to `limit` requests in the order of their ids (oldest first), of one service or state if given.

        Begins behind the request `after`. Looks at LOOKED_AT requests at most; `next` of what it returns is where
        to go on.
        """
        page = Page()
        cursor = self._txn.cursor(self._db.requests)
        if not cursor.set_range(after or b"\0"):
            return page
        looked_at = 0
        last = after
        for view, record in cursor.iternext():
            uuid = bytes(view)
            if uuid == after:
                continue
            if len(page) >= limit or looked_at >= LOOKED_AT:
                page.next = last
                break
            looked_at += 1
            last = uuid
            found = self._describe(uuid, record)
            if service in (None, found.service) and state in (None, found.state):
                page.append(found)
        return page
