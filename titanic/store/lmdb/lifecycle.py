"""What becomes of requests after they were accepted: delayed, promoted, ended, tried again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from titanic.errors import RecordCorrupt, StoreCorrupt, StoreFull
from titanic.store.lmdb import outcome_record, request_record, retry_record
from titanic.store.lmdb.blob import Ref, refer
from titanic.store.lmdb.capacity import CHARGE
from titanic.store.lmdb.outcome_record import Outcome
from titanic.store.lmdb.retry_record import Retry
from titanic.store.lmdb.schema import (
    DEAD,
    EXPIRY,
    PAGE,
    REPAIR,
    REPLIED,
    cost,
    due_of,
    later_key,
    ready_prefix,
    service_of,
    timer_key,
    timer_of,
    uuid_of,
)
from titanic.store.lmdb.transaction import Change, Place
from titanic.store.state import ENDING, TRANSITIONS, Event, State, Status
from titanic.util.clock import capped
from titanic.util.ids import SIZE

_TO_BE_DROPPED = 200
_SHORT_REASON = 80
"""Bytes of a reason for which the charge has room (capacity.py)."""


def retention_kind(status: Status) -> bytes:
    """The kind of timer that watches over a request which ended so."""
    return DEAD if status in (Status.FAILED, Status.EXPIRED) else REPLIED


def _shortened(reason: str) -> str:
    return reason.encode(errors="replace")[:_SHORT_REASON].decode(errors="ignore") + "…"


class Ending(Change):
    """The part of a write transaction that moves requests from state to state."""

    def finish(
        self,
        uuid: bytes,
        status: Status,
        frames: Sequence[bytes],
        *,
        attempts: int,
        dispatched_at: int,
        finished_at: int,
        reason: str = "",
    ) -> bool:
        """Store how the request ended. False, and nothing is changed, when it is unknown or has ended before.

        Raises StoreFull, with the transaction still good, when there is no room for these frames: an end without
        frames always finds room, though perhaps for the beginning of its reason only.
        """
        place = self._find(uuid)
        if place is None or (place.state, ENDING[status]) not in TRANSITIONS:
            return False
        self._end(uuid, place, Outcome(status, list(frames), reason, attempts, dispatched_at, finished_at))
        return True

    def postpone(self, uuid: bytes, *, due: int, attempts: int, dispatched_at: int, reason: str) -> bool:
        """Take a request that failed out of the queue until `due`, in µs since the epoch.

        False, and nothing is changed, when it is unknown, has ended or is delayed already.
        """
        place = self._find(uuid)
        if place is None or (place.state, Event.POSTPONE) not in TRANSITIONS:
            return False
        if not place.key:
            raise StoreCorrupt("the store is damaged", f"{uuid.hex()} is in no queue", REPAIR)
        self._take_out(place)
        due = max(due, 1)  # 0 would say that it is ready
        expires_at = None if place.past is None else place.past.expires_at
        past = Retry(attempts, due, dispatched_at, reason, expires_at)
        record = retry_record.encode(uuid, past)
        needed = cost(SIZE, len(record))
        if needed > CHARGE and not self._fits(needed, self._environment.room.reply):
            record = retry_record.encode(uuid, past._replace(reason=_shortened(reason)))
        self._put(self._db.later, later_key(due, uuid), place.prefix)
        self._put(self._db.retries, uuid, record)
        self._added += cost(SIZE, len(record))
        return True

    def promote(self, now_us: int, limit: int = 1000) -> list[tuple[bytes, int]]:
        """Put back into the queue what is due, the longest due first, at most `limit` requests.

        Returns the services concerned and how many requests of each.
        """
        due: list[tuple[bytes, bytes]] = []
        for view, value in self._txn.cursor(self._db.later).iternext():
            if len(due) >= limit or due_of(view) > now_us:
                break
            due.append((bytes(view), bytes(value)))
        promoted: dict[bytes, int] = {}
        for key, prefix in due:
            uuid, service = uuid_of(key), service_of(prefix)
            self._delete(self._db.later, key)
            self._put(self._db.ready, prefix + uuid, b"")
            self._count(service, ready=1)
            self._forget_delay(uuid)
            promoted[service] = promoted.get(service, 0) + 1
        return list(promoted.items())

    def expire(
        self, now_us: int, limit: int = 1000, skip: Collection[bytes] = (), ahead_us: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """End requests whose time is over, at most `limit`, but not those in `skip`: they are running.

        `ahead_us`: by how much the clock may be ahead; what is over by less is left. Returns their ids and services.
        """
        due: list[tuple[bytes, bytes]] = []
        cursor = self._txn.cursor(self._db.timers)
        if cursor.set_range(EXPIRY):
            for view in cursor.iternext(values=False):
                kind, time, uuid = timer_of(view)
                if len(due) >= limit or kind != EXPIRY or time > now_us - ahead_us:
                    break
                if uuid not in skip:
                    due.append((bytes(view), uuid))
        expired: list[tuple[bytes, bytes]] = []
        for key, uuid in due:
            place = self._find(uuid)
            if place is None:
                self._delete(self._db.timers, key)
                continue
            attempts, dispatched_at = (place.past.attempts, place.past.dispatched_at) if place.past else (0, 0)
            reason = f"not done in time, after {attempts} attempts"
            self._end(uuid, place, Outcome(Status.EXPIRED, [], reason, attempts, dispatched_at, now_us))
            self._delete(self._db.timers, key)
            expired.append((uuid, place.service or b""))
        return expired

    def retry(self, uuid: bytes, now_us: int) -> bool:
        """Let a request that failed or expired wait again, as if it had never been tried. False when it is not such.

        One whose time is over has no end of its time any more. One that was never tried waits for what is left of its
        delay. What is left of either is never more than the whole: the clock may have been set back.
        """
        record, reply = self._txn.get(uuid, db=self._db.requests), self._txn.get(uuid, db=self._db.replies)
        if record is None or reply is None:
            return False
        try:
            header, end = request_record.decode_header(uuid, record), outcome_record.decode_header(uuid, reply)
        except RecordCorrupt:
            return False
        if (State(end.status), Event.RETRY) not in TRANSITIONS:
            return False
        self._delete(self._db.timers, timer_key(retention_kind(end.status), end.finished_at, uuid))
        self._delete(self._db.replies, uuid)
        self._drop_blob(end.ref)
        prefix = ready_prefix(header.service, header.priority)
        given = header.submitted_at
        expires_at = header.expires_at and capped(header.expires_at, given, now_us)
        if expires_at <= now_us:
            expires_at = 0
        due = 0 if end.attempts else capped(header.not_before, given, now_us)
        past = Retry(0, due if due > now_us else 0, expires_at=None if expires_at == header.expires_at else expires_at)
        if past.due:
            self._put(self._db.later, later_key(past.due, uuid), prefix)
        else:
            self._put(self._db.ready, prefix + uuid, b"")
        if past.due or past.matters:
            self._put(self._db.retries, uuid, retry_record.encode(uuid, past))
        if expires_at:
            self._put(self._db.timers, timer_key(EXPIRY, expires_at, uuid), b"")
        self._count(header.service, ready=0 if past.due else 1, pending=1, size=header.size)
        return True

    def _end(self, uuid: bytes, place: Place, end: Outcome) -> None:
        bodies: list[tuple[Ref, bytes]] = []

        def place_body(body: bytes) -> Ref:
            bodies.append((refer(self._new_blob(), body), body))
            return bodies[0][0]

        record = outcome_record.encode(uuid, end, place_body)
        needed = cost(SIZE, len(record)) + sum(ref.pages * PAGE for ref, _ in bodies)
        if needed > CHARGE:
            try:
                self._make_room_for_reply(needed)
            except StoreFull:
                if end.frames:
                    raise
                record = outcome_record.encode(uuid, end._replace(reason=_shortened(end.reason)))
        self._leave(uuid, place)
        self._put(self._db.replies, uuid, record)
        self._put(self._db.timers, timer_key(retention_kind(end.status), end.finished_at, uuid), b"")
        for ref, body in bodies:
            self._put_blob(ref, body)
        self._added += cost(SIZE, len(record)) - CHARGE

    def _leave(self, uuid: bytes, place: Place) -> None:
        """Delete all that only a request has that has not ended."""
        self._take_out(place)
        self._delete(self._db.retries, uuid)
        header = place.header
        if header is None:
            self._drop_timers(uuid)
        elif expires_at := retry_record.expiry(header.expires_at, place.past):
            self._delete(self._db.timers, timer_key(EXPIRY, expires_at, uuid))
        if place.service is not None:
            self._count(place.service, pending=-1, size=-header.size if header else 0)

    def _make_room_for_reply(self, needed: int) -> None:
        room = self._environment.room
        dropped = 0
        while not self._fits(needed, room.reply):
            if dropped >= _TO_BE_DROPPED or not (n := self._drop_oldest(20)):
                used = room.capacity - room.reply + self._recount()
                raise StoreFull(used, room.capacity, needed)
            dropped += n

    def _forget_delay(self, uuid: bytes) -> None:
        """Note that the request is ready again. If it never failed, there is nothing more to remember."""
        try:
            past = self._retry(uuid)
        except RecordCorrupt:
            past = None  # better one attempt too many than a request that never runs
        if past is not None and past.matters:
            self._put(self._db.retries, uuid, retry_record.encode(uuid, past._replace(due=0)))
        else:
            self._delete(self._db.retries, uuid)
