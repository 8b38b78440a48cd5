"""Choosing requests: by id, by state, by service, page by page or part by part."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from itertools import groupby

import lmdb

from titanic.store.lmdb import outcome_record, read, request_record
from titanic.store.lmdb.retry_record import expiry
from titanic.store.lmdb.schema import ready_prefix
from titanic.store.lmdb.transaction import Reading
from titanic.store.records import Page
from titanic.store.request import Description, values_of
from titanic.store.states import ENDED, State
from titanic.util.ids import SIZE

LOOKED_AT = 10_000
"""Requests that one call of `list` examines, at most: some 20 ms."""


def describe(tx: Reading, uuid: bytes) -> Description | None:
    """All about the request but its frames; None when it is unknown. Body and reply aren't checked."""
    record = tx.raw.get(uuid, db=tx.db.requests)
    if record is None:
        return None
    header = request_record.decode_header(uuid, record)
    reply = tx.raw.get(uuid, db=tx.db.replies)
    end = None if reply is None else outcome_record.decode_header(uuid, reply)
    past = tx.past(uuid) if end is None else None
    tried = end or past
    found = Description(
        *values_of(header),
        state=State(end.status) if end else State.DELAYED if past and past.due else State.WAITING,
        body_frames=header.frame_count,
        body_bytes=header.body_size - 4 * header.frame_count,
        attempts=tried.attempts if tried else 0,
        due=past.due if past else 0,
        dispatched_at=tried.dispatched_at if tried else 0,
        finished_at=end.finished_at if end else 0,
        reason=tried.reason if tried else "",
        reply_frames=end.frame_count if end else 0,
        reply_bytes=end.body_size - 4 * end.frame_count if end else 0,
        deliveries=past.deliveries if past else 0,
    )
    found.expires_at = expiry(header.expires_at, past)
    return found


def select(
    tx: Reading,
    states: Collection[State] | None = None,
    *,
    service: bytes | None = None,
    older_than: int | None = None,
    owner: bytes | None = None,
    after: bytes | None = None,
    limit: int = 100,
    newest: bool = False,
    text: str | None = None,
) -> Page:
    """Up to `limit` requests in the order of their ids (oldest first), of these states, service and owner if given.
    `newest`: newest first. `text`: only those with a reason or key that contains it."""
    page = Page()
    ends = states if states is not None and ENDED.issuperset(states) else None
    looked_at = 0
    last = after
    for uuid in _candidates(tx, states, service, after, newest):
        if len(page) >= limit or looked_at >= LOOKED_AT:
            page.next = last
            break
        looked_at += 1
        last = uuid
        if owner is not None and read.owner(tx, uuid) != owner:
            continue  # nor is what cannot be read: it may be another's
        if not _may_be(tx, uuid, ends, service):
            continue
        found = describe(tx, uuid)
        if found is None:
            continue
        if states is not None and found.state not in states:
            continue
        if text is not None and not found.mentions(text):
            continue
        if older_than is None or (found.finished_at or found.submitted_at) < older_than:
            page.append(found)
    return page


def _may_be(tx: Reading, uuid: bytes, ends: Collection[State] | None, service: bytes | None) -> bool:
    """Whether a request can be of this service and have ended so, by a few bytes: ten times as fast as all about it."""
    if service is not None:
        record = tx.raw.get(uuid, db=tx.db.requests)
        if record is None or not request_record.is_of(record, service):
            return False
    if ends is None:
        return True
    end = tx.raw.get(uuid, db=tx.db.replies)
    return end is not None and outcome_record.may_be(end, ends)


def request_ids(tx: Reading, every: int) -> list[bytes]:
    """The id of every stored request that begins a part of `every` of them, oldest first."""
    cursor = tx.raw.cursor(tx.db.requests)
    return [bytes(key) for n, key in enumerate(cursor.iternext(values=False)) if n % every == 0]


def unended(
    tx: Reading, begin: bytes, end: bytes | None, limit: int, max_bytes: int = 16 << 20
) -> tuple[list[tuple[Description, list[bytes]]], bytes | None]:
    """The requests of a range that wait or are delayed, with their bodies, and where to go on."""
    found: list[tuple[Description, list[bytes]]] = []
    cursor = tx.raw.cursor(tx.db.requests)
    size = looked_at = 0
    if not cursor.set_range(begin):
        return found, None
    for view, record in cursor.iternext():
        uuid = bytes(view)
        if end is not None and uuid >= end:
            break
        if looked_at >= limit or size >= max_bytes:
            return found, uuid
        looked_at += 1
        if tx.raw.get(uuid, db=tx.db.replies) is not None:
            continue
        row = describe(tx, uuid)
        if row is not None and row.state in (State.WAITING, State.DELAYED):
            found.append((row, request_record.decode(uuid, record, tx.fetch).body))
            size += row.body_bytes
    return found, None


def _candidates(
    tx: Reading, states: Collection[State] | None, service: bytes | None, after: bytes | None, newest: bool
) -> Iterator[bytes]:
    """Ids behind `after`, in order, all of those that can be in these states among them.

    It walks over the smallest databases that have them all: `replies` for ended requests, `retries` for delayed ones,
    and the service's queue for those that wait.
    """
    wanted = set(State if states is None else states)
    walk = _ids_down if newest else _ids
    if wanted <= ENDED:
        return walk(tx, tx.db.replies, b"", after)
    if wanted == {State.DELAYED}:
        return walk(tx, tx.db.retries, b"", after)
    if service is not None:
        places = [walk(tx, tx.db.ready, ready_prefix(service, priority), after) for priority in range(10)]
        if wanted != {State.WAITING}:
            places += [walk(tx, tx.db.retries, b"", after), walk(tx, tx.db.replies, b"", after)]
        # What waits to be tried again is in its queue and among the retries.
        return (uuid for uuid, _ in groupby(heapq.merge(*places, reverse=newest)))
    return walk(tx, tx.db.requests, b"", after)


def _ids(tx: Reading, database: lmdb._Database, prefix: bytes, after: bytes | None) -> Iterator[bytes]:
    """The ids above `after` behind `prefix` in a database, in order."""
    cursor = tx.raw.cursor(database)
    start = len(prefix)
    if cursor.set_range(prefix + (after or b"\0")):
        for view in cursor.iternext(values=False):
            key = bytes(view)
            if not key.startswith(prefix):
                break
            if (uuid := key[start:]) != after:
                yield uuid


def _ids_down(tx: Reading, database: lmdb._Database, prefix: bytes, after: bytes | None) -> Iterator[bytes]:
    """The ids below `after` (None: all) behind `prefix` in a database, the greatest first."""
    cursor = tx.raw.cursor(database)
    start = len(prefix)
    above = prefix + (after or b"\xff" * (SIZE + 1))
    if cursor.prev() if cursor.set_range(above) else cursor.last():
        for view in cursor.iterprev(values=False):
            key = bytes(view)
            if not key.startswith(prefix):
                break
            yield key[start:]
