"""Choosing requests: by id, by state, by service, page by page or part by part.

What waits is found by its service, in `ready`, also among many that have ended. What has ended is not: records are
walked over until enough are found, 100,000 in some 50 ms. An index of ended requests by service would find rare ones at
once, but each request would put a row into it and delete it again. Measured with such rows in another database, a life
with 100 services takes 70 to 80 µs of the store's time instead of 70 when 50 requests share a commit, and 48 to 54
instead of 41 to 46 when 500 do: every request would pay a tenth for listings that are rare. So a listing of a reader
goes on for some time instead (`seconds`), reads of each record only what decides, and skips all spans of ids that are
known not to have its service (service_spans.py).
"""

from __future__ import annotations

import heapq
import struct
import time
from collections.abc import Callable, Collection, Iterator

import lmdb

from titanic.store.lmdb import outcome_record, read, request_record
from titanic.store.lmdb.outcome_record import expiry
from titanic.store.lmdb.schema import ready_prefix
from titanic.store.lmdb.service_spans import SPAN, behind
from titanic.store.lmdb.transaction import Reading
from titanic.store.records import Page
from titanic.store.request import Description, values_of
from titanic.store.states import ENDED, State
from titanic.util.ids import SIZE

LOOKED_AT = 10_000
"""Requests that one call of `select` examines, at most, while it is given no time for more."""

_STEP = 256
"""Rows after which a walk that finds nothing says how far it is."""

_MOST_QUEUES = 4096
"""Queues that are merged into one order, at most. Each costs some 3 µs before the first request is found."""

_RARE = {State.FAILED, State.EXPIRED, State.CANCELLED}
"""Ends by which to choose first, and by service then."""

RecordTest = Callable[[memoryview], bool]
"""Whether a record is wanted."""

Candidate = tuple[bytes, bool]
"""An id; False: all up to it were examined, and it is not wanted itself."""


class _Effort:
    """What a call may do. Once it is over, the call ends where it is."""

    def __init__(self, seconds: float) -> None:
        self.rows = 0
        self._until = time.monotonic() + seconds if seconds else 0.0

    @property
    def is_over(self) -> bool:
        """Whether LOOKED_AT rows were examined, and the time is over."""
        return self.rows >= LOOKED_AT and (not self._until or time.monotonic() >= self._until)


def describe(tx: Reading, uuid: bytes) -> Description | None:
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
    seconds: float = 0.0,
) -> Page:
    page = Page()
    effort = _Effort(seconds)
    last, is_over = after, False
    for uuid, is_wanted in _candidates(tx, states, service, after, newest, effort):
        if len(page) >= limit or is_over:
            page.next = last
            break
        last = uuid
        if is_wanted and (owner is None or read.owner(tx, uuid) == owner):  # what cannot be read may be another's
            found = describe(tx, uuid)
            if (
                found is not None
                and (states is None or found.state in states)
                and (service is None or found.service == service)
                and (text is None or found.mentions(text))
                and (older_than is None or (found.finished_at or found.submitted_at) < older_than)
            ):
                page.append(found)
        is_over = effort.is_over
    return page


def request_ids(tx: Reading, every: int) -> list[bytes]:
    cursor = tx.raw.cursor(tx.db.requests)
    return [bytes(key) for n, key in enumerate(cursor.iternext(values=False)) if n % every == 0]


def unended(
    tx: Reading, begin: bytes, end: bytes | None, limit: int, max_bytes: int = 16 << 20
) -> tuple[list[tuple[Description, list[bytes]]], bytes | None]:
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
    tx: Reading,
    states: Collection[State] | None,
    service: bytes | None,
    after: bytes | None,
    newest: bool,
    effort: _Effort,
) -> Iterator[Candidate]:
    """Ids behind `after`, in order, all of those that can be of this service and in these states among them.

    It walks over the smallest databases that have them all: `replies` for ended requests, `retries` for delayed ones,
    and the queues for those that wait, unless few have ended: then it meets them soon among all. When most requests
    have ended, their services are read in the order of `requests`: a walk over its records takes a third of the time of
    a search for each.
    """
    wanted = set(State if states is None else states)
    db, stat = tx.db, tx.raw.stat
    walk = _ids_down if newest else _ids
    if service is not None and not wanted.isdisjoint(ENDED):
        is_most = 2 * stat(db.replies)["entries"] > stat(db.requests)["entries"]
        if is_most and not wanted <= _RARE:
            found = _requests_of(tx, service, after, newest, effort)
            return _only_ended(tx, found, wanted) if wanted <= ENDED else found
    if wanted <= ENDED:
        may_be = _end_test(wanted) if wanted != ENDED else None
        return _of_service(tx, _records(tx, db.replies, may_be, after, newest, effort), service)
    if wanted == {State.DELAYED}:
        return _of_service(tx, _each(walk(tx, db.retries, b"", after), effort), service)
    queues = None
    if service is not None:
        queues = [ready_prefix(service, priority) for priority in range(10)]
    elif wanted.isdisjoint(ENDED) and stat(db.replies)["entries"] > LOOKED_AT:
        queues = _queues(tx)
    if queues is None:
        return _each(walk(tx, db.requests, b"", after), effort)
    places = [_each(walk(tx, db.ready, queue, after), effort) for queue in queues]
    if wanted != {State.WAITING}:
        places.append(_of_service(tx, _each(walk(tx, db.retries, b"", after), effort), service))
    if not wanted.isdisjoint(ENDED):
        places.append(_of_service(tx, _records(tx, db.replies, None, after, newest, effort), service))
    return _once(heapq.merge(*places, reverse=newest))


def _queues(tx: Reading) -> list[bytes] | None:
    """The beginnings of all keys in `ready`, one for each queue; None: there are too many."""
    cursor, found = tx.raw.cursor(tx.db.ready), list[bytes]()
    there = cursor.first()
    while there and len(found) <= _MOST_QUEUES:
        found.append(bytes(cursor.key())[:-SIZE])
        there = cursor.set_range(found[-1] + b"\xff" * (SIZE + 1))
    return None if there else found


def _each(uuids: Iterator[bytes], effort: _Effort) -> Iterator[Candidate]:
    for uuid in uuids:
        effort.rows += 1
        yield uuid, True


def _records(
    tx: Reading,
    database: lmdb._Database,
    is_wanted: RecordTest | None,
    after: bytes | None,
    newest: bool,
    effort: _Effort,
) -> Iterator[Candidate]:
    """The ids of the records in a database that pass a test, and now and then how far the walk is."""
    cursor = tx.raw.cursor(database)
    there = _go(cursor, after, newest)
    records = cursor.iterprev(keys=False) if newest else cursor.iternext(keys=False)
    step = min(_STEP, LOOKED_AT)
    for record in records if there else ():
        effort.rows += 1
        if is_wanted is None or is_wanted(record):
            yield bytes(cursor.key()), True
        elif not effort.rows % step:
            yield bytes(cursor.key()), False


def _go(cursor: lmdb.Cursor[memoryview], after: bytes | None, newest: bool) -> bool:
    """Move to the first record behind `after`. False when there is none."""
    if newest:
        return cursor.prev() if cursor.set_range(after or b"\xff" * (SIZE + 1)) else cursor.last()
    there = cursor.set_range(after or b"\0")
    return cursor.next() if there and after is not None and bytes(cursor.key()) == after else there


def _requests_of(
    tx: Reading, service: bytes, after: bytes | None, newest: bool, effort: _Effort
) -> Iterator[Candidate]:
    """As `_records`, the requests of a service. Spans that are known not to have it are skipped, and the services of
    those that are not known are remembered."""
    cursor, spans, is_wanted = tx.raw.cursor(tx.db.requests), tx.environment.spans, _service_test(service)
    step = min(_STEP, LOOKED_AT)
    there = _go(cursor, after, newest)
    while there:
        begin = bytes(cursor.key())
        span = spans.find(begin)
        if span is not None and span.lacks(service):
            effort.rows += 1
            yield begin, False
            there = _go(cursor, span.first, newest) if newest else cursor.set_range(span.end)
            continue
        services = set[bytes]() if span is None else None
        is_met = is_wanted  # whether a record is of the service that was met last
        there = False
        for rows, (uuid, record) in enumerate(cursor.iterprev() if newest else cursor.iternext()):
            if rows == SPAN:
                there = True
                break
            effort.rows += 1
            if services is not None and not (services and is_met(record)):
                services.add(met := request_record.service_in(record))
                is_met = _service_test(met)
            if is_wanted(record):
                yield bytes(uuid), True
            elif not effort.rows % step:
                yield bytes(uuid), False
        if services is None:
            continue
        if newest:
            spans.learn(behind(bytes(cursor.key())) if there else b"\0", behind(begin), services)
        elif there or cursor.last():
            spans.learn(begin, bytes(cursor.key()) if there else behind(bytes(cursor.key())), services)


def _service_test(service: bytes) -> RecordTest:
    """Whether a record is a request of a service. Nothing else of it is read."""
    size = len(service)
    name_of = struct.Struct(f"{request_record.SERVICE_SIZE_AT}xB{request_record.SERVICE_GAP}x{size}s")
    least, right, unpack_from = name_of.size, (size, service), name_of.unpack_from
    return lambda record: len(record) >= least and unpack_from(record) == right


def _end_test(states: Collection[State]) -> RecordTest:
    """Whether a record is that of such an end, or makes no sense."""
    kinds = frozenset(kind for kind in range(256) if outcome_record.may_be(bytes((0, kind)), states))
    return lambda record: len(record) < 2 or record[1] in kinds


def _only_ended(tx: Reading, candidates: Iterator[Candidate], states: Collection[State]) -> Iterator[Candidate]:
    may_be = _end_test(states)
    for uuid, is_wanted in candidates:
        record = tx.raw.get(uuid, db=tx.db.replies) if is_wanted else None
        yield uuid, record is not None and may_be(record)


def _of_service(tx: Reading, candidates: Iterator[Candidate], service: bytes | None) -> Iterator[Candidate]:
    if service is None:
        yield from candidates
        return
    is_of = _service_test(service)
    for uuid, is_wanted in candidates:
        record = tx.raw.get(uuid, db=tx.db.requests) if is_wanted else None
        yield uuid, record is not None and is_of(record)


def _once(candidates: Iterator[Candidate]) -> Iterator[Candidate]:
    """Each id once: what waits to be tried again is in its queue and among the retries."""
    last = b""
    for uuid, is_wanted in candidates:
        if not is_wanted:
            yield uuid, False
        elif uuid != last:
            last = uuid
            yield uuid, True


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
