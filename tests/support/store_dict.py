"""A store in dicts: what titanic/store/interface.py promises, without a disk. For tests of the layers above the store,
and the model that tests/titanic/store/test_model.py compares LMDB with.

Everything in it is immutable, so a transaction works on copies of the dicts, and committing puts them in place.
"""

from __future__ import annotations

import struct
from collections import Counter
from copy import copy
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from msgspec.structs import asdict

from titanic import store as interface
from titanic.errors import InvalidArchive, InvalidRequest, RecordCorrupt, StoreFull
from titanic.store import (
    ENDING,
    TRANSITIONS,
    ClosedRequest,
    Event,
    NewRequest,
    Outcome,
    State,
    Status,
    rules,
    service_settings,
)
from titanic.store.lmdb import outcome_record, request_record  # what a request may be, and how many bytes it counts
from titanic.store.lmdb.idempotency_key import row_key
from titanic.util.clock import capped, wall_us
from titanic.util.ids import IdMaker, time_of

ENDED = {State(status) for status in Status}
DEAD = (State.FAILED, State.EXPIRED)
REPLIED = (State.DONE, State.CANCELLED)
UNENDED = (State.WAITING, State.DELAYED)
HEADER = struct.Struct("<" + "".join(code for _, code in interface.CLOSED_LAYOUT))


def made(kind, *sources, **fields):
    """A record, with the fields of others that have the same name."""
    names = kind._fields if issubclass(kind, tuple) else kind.__struct_fields__
    for source in reversed(sources):
        fields = (source._asdict() if isinstance(source, tuple) else asdict(source)) | fields
    return kind(**{name: value for name, value in fields.items() if name in names})


def size_of(frames):
    return sum(map(len, frames))


class Row(NamedTuple):
    """A request: as it came, and what became of it."""

    uuid: bytes
    new: NewRequest
    submitted_at: int
    size: int
    expires_at: int
    due: int = 0
    attempts: int = 0
    dispatched_at: int = 0
    reason: str = ""
    outcome: Outcome | None = None
    deliveries: int = 0

    @property
    def state(self):
        if self.outcome is not None:
            return State(self.outcome.status)
        return State.DELAYED if self.due else State.WAITING

    @property
    def key(self):
        """Its place in the queue."""
        return b"%b\0%c" % (self.new.service, 9 - self.new.priority) + self.uuid


class Holder(NamedTuple):
    """Who has an idempotency key."""

    until: int
    uuids: list[bytes]
    given: int


class Tables:
    """All that is stored."""

    def __init__(self):
        self.requests: dict[bytes, Row] = {}
        self.keys: dict[tuple[bytes, bytes], Holder] = {}  # by owner and key
        self.closed: dict[int, ClosedRequest] = {}
        self.sequence = self.archived_upto = 0
        self.registered = False
        self.archivist = None
        self.settings = {}

    def __copy__(self):
        other = Tables()
        other.__dict__ |= {name: dict(one) if isinstance(one, dict) else one for name, one in vars(self).items()}
        return other


class DictStore:
    """A store that is gone when its last reference is."""

    usable = True
    remote = False
    now_us = staticmethod(wall_us)
    batch = 1000

    def __init__(
        self, path=Path(), *, capacity=None, keep_closed=True, closed_body_limit=64 << 10, durability="synced"
    ):
        self.durability = durability
        self.path, self.place = path, str(path)
        self.capacity = capacity or interface.DEFAULT_CAPACITY
        self.keep_closed, self.closed_body_limit = keep_closed, closed_body_limit
        self.ids = IdMaker(None)
        self.damaged = set()  # requests of which the reply can't be read
        self.tables = Tables()
        self.writer = Lock()

    def read(self):
        return Read(self)

    def write(self):
        return Write(self)

    def sync(self): ...

    def reader_check(self):
        return 0

    def readers(self):
        return []

    def close(self): ...

    def discard(self): ...

    def __enter__(self):
        return self

    def __exit__(self, *error): ...


class Read:
    """The store at one moment."""

    def __init__(self, store):
        self.store = store

    def __enter__(self):
        self.tables = copy(self.store.tables)
        return self

    def __exit__(self, *error): ...

    def prefetch(self, uuids, replies=False): ...

    # -- one request -----------------------------------------------------------------------------------------

    def request(self, uuid):
        row = self.tables.requests.get(uuid)
        return row and made(interface.StoredRequest, row, row.new, body=list(row.new.body))

    def reply(self, uuid):
        if uuid in self.store.damaged and uuid in self.tables.requests:
            raise RecordCorrupt(uuid, "replies", "it was damaged")
        row = self.tables.requests.get(uuid)
        return row and (row.outcome or interface.Pending(row.state))

    def describe(self, uuid):
        row = self.tables.requests.get(uuid)
        if row is None:
            return None
        sources = [row.new, row, *([row.outcome] if row.outcome else [])]
        sizes = {"body_frames": len(row.new.body), "body_bytes": size_of(row.new.body)}
        reply = row.outcome.frames if row.outcome else []
        sizes |= {"reply_frames": len(reply), "reply_bytes": size_of(reply)}
        return made(interface.Description, *sources, state=row.state, **sizes)

    def owner(self, uuid):
        row = self.tables.requests.get(uuid)
        return row and row.new.owner

    def holder(self, key, owner=b""):
        holder = self.tables.keys.get((owner, key))
        return holder and holder.uuids[0]

    # -- queues ----------------------------------------------------------------------------------------------

    def rows(self, *states):
        return [row for row in self.tables.requests.values() if row.state in states]

    def next_ready(self, service, after, limit, max_bytes, skip=()):
        found, size = [], 0
        for row in sorted(self.rows(State.WAITING), key=lambda row: row.key):
            if row.new.service != service or row.key <= (after or b"") or row.uuid in skip:
                continue
            size += row.size
            if len(found) >= limit or (found and size > max_bytes):
                break
            found.append(
                made(
                    interface.ReadyRow, row.new, row, key=row.key, body=list(row.new.body), idempotency_key=row.new.key
                )
            )
        return found

    def next_due(self, policy=None, skip=(), ahead_us=0):
        unended = self.rows(*UNENDED)
        times = [row.expires_at for row in unended if row.expires_at and row.uuid not in skip]
        if policy is not None:
            for states, kept in ((REPLIED, policy.reply_retention), (DEAD, policy.dead_retention)):
                times += [row.outcome.finished_at + kept for row in self.rows(*states) if kept]
            for number, one in islice(self.tables.closed.items(), 1 if policy.closed_retention else 0):
                times += [] if self.is_for_archive(number) else [one.closed_at + policy.closed_retention]
            times += [holder.until for holder in self.tables.keys.values()]
        return min([time + ahead_us for time in times] + [row.due for row in unended if row.due], default=None)

    def waiting(self):
        return dict(Counter(row.new.service for row in self.rows(State.WAITING)))

    def queues(self, skip=()):
        found = {}
        for service in {row.new.service for row in self.rows(*UNENDED)}:
            load = self.load(service)
            found[service] = interface.QueueFigures(self.waiting().get(service, 0), *load, self.oldest(service, skip))
        return found

    def oldest(self, service, skip=()):
        waiting = [row for row in self.rows(State.WAITING) if row.new.service == service and row.uuid not in skip]
        return min((time_of(row.uuid) for row in waiting), default=None)

    # -- listing and counts ----------------------------------------------------------------------------------

    def select(
        self, states=None, *, service=None, older_than=None, owner=None, after=None, limit=100, newest=False, text=None
    ):
        page = interface.Page()
        last = after
        for uuid, row in sorted(self.tables.requests.items(), reverse=newest):
            if after is not None and (uuid >= after if newest else uuid <= after):
                continue
            if states is not None and row.state not in states:
                continue
            if service not in (None, row.new.service) or owner not in (None, row.new.owner):
                continue
            if len(page) >= limit:
                page.next = last
                break
            last = uuid
            found = self.describe(uuid)
            if text is not None and not found.mentions(text):
                continue
            if older_than is None or (found.finished_at or found.submitted_at) < older_than:
                page.append(found)
        return page

    def load(self, service=b"", *, owner=b""):
        if owner:
            return self._owner_load(owner)
        sizes = [row.size for row in self.rows(*UNENDED) if row.new.service == service]
        return interface.Load(len(sizes), sum(sizes))

    def _owner_load(self, owner):
        rows = [row for row in self.tables.requests.values() if row.new.owner == owner]
        size = sum(row.size for row in rows)
        size += sum(len(outcome_record.encode(row.uuid, row.outcome)) for row in rows if row.outcome)
        for (whose, key), holder in self.tables.keys.items():
            if whose == owner:
                size += len(row_key(key, owner)) + 16 + sum(map(len, holder.uuids))
        return interface.Load(sum(row.outcome is None for row in rows), size)

    def used(self):
        closed = sum(size_of([*one.request, *one.reply]) for one in self.tables.closed.values())
        replies = sum(size_of(row.outcome.frames) for row in self.rows(*ENDED))
        return closed + replies + sum(row.size for row in self.tables.requests.values())

    def counts(self):
        numbers = [len(self.rows(*states)) for states in ([*State], [State.WAITING], [State.DELAYED], ENDED)]
        closed = {"closed": len(self.tables.closed)}
        return interface.Counts(*numbers, used=self.used(), capacity=self.store.capacity, **closed)

    def space(self):
        return interface.Space(self.used() >= self.store.capacity, False)

    def room_left(self):
        return max(0, self.store.capacity - self.used())

    def identity(self):
        return id(self.store).to_bytes(16)

    # -- closed requests -------------------------------------------------------------------------------------

    def is_for_archive(self, number):
        """Whether a closed request has to wait for the archive."""
        return self.tables.registered and number > self.tables.archived_upto

    def closed(self, after_seq, limit, max_bytes):
        found, size = [], 0
        for number, one in self.tables.closed.items():
            if number > after_seq:
                size += size_of([*one.request, *one.reply])
                if len(found) >= limit or (found and size > max_bytes):
                    break
                found.append(one)
        return found

    def closed_range(self):
        return min(self.tables.closed, default=self.tables.sequence + 1), self.tables.sequence

    def archive(self):
        tables = self.tables
        return interface.ArchiveState(tables.registered, tables.archived_upto, *self.closed_range(), 0)

    def archivist(self):
        return self.tables.archivist

    def service_settings(self):
        return self.tables.settings

    # -- reading in bulk -------------------------------------------------------------------------------------

    def closed_bulk(self, first, last, max_bytes=16 << 20):
        """All of them `apart`."""
        data, starts, apart = b"", [], {}
        found = self.closed(first - 1, last - first + 1, max_bytes) if first in self.tables.closed else ()
        for n, one in enumerate(found):
            starts.append(len(data))
            apart[n], error = one, one.error.encode()
            kind = one.status | (interface.UNCLAIMED if one.unclaimed else 0)
            times = one.submitted_at, one.dispatched_at, one.replied_at, one.closed_at
            where = 2 * one.request_left_out, 2 * one.reply_left_out
            parts = len(one.request), one.request_bytes, len(one.reply), one.reply_bytes
            texts = [error if name == "error" else getattr(one, name) for name in interface.CLOSED_TEXTS]
            sizes = map(len, texts)
            data += HEADER.pack(1, kind, one.attempts, 0, *times, one.uuid, *parts, *where, one.priority, *sizes)
            data += b"".join([*texts, *one.request, *one.reply])
        return interface.ClosedBulk(first, data, starts, apart)

    def cut_closed(self, first, last, max_bytes):
        return first - 1 + max(1, len(self.closed(first - 1, last - first + 1, max_bytes)))

    def request_ids(self, every):
        return sorted(self.tables.requests)[::every]

    def unended(self, begin, end, limit, max_bytes=16 << 20):
        uuids = [uuid for uuid in sorted(self.tables.requests) if uuid >= begin and (end is None or uuid < end)]
        rows = [self.tables.requests[uuid] for uuid in uuids[:limit]]
        found = [(self.describe(row.uuid), list(row.new.body)) for row in rows if row.outcome is None]
        return found, uuids[limit] if len(uuids) > limit else None


class Write(Read):
    """Changes of the store: all of them, or none."""

    def __enter__(self):
        self.store.writer.acquire()
        return super().__enter__()

    def __exit__(self, *error):
        if error[0] is None:
            self.store.tables = self.tables
        self.store.writer.release()

    # -- accept ----------------------------------------------------------------------------------------------

    def accept(self, requests, now_us, ahead_us=0):
        uuids = self.store.ids.make(len(requests), now_us)
        holders, known = self.look_up(requests, uuids, now_us, now_us - ahead_us)
        rows = [self.row(uuid, new, now_us) for uuid, new in zip(uuids, requests, strict=True)]
        fresh = [row for n, row in enumerate(rows) if n not in known]
        needed = sum(row.size for row in fresh)
        while fresh and self.used() + needed > self.store.capacity:
            if not self.drop_oldest(1):
                raise StoreFull(self.used(), self.store.capacity, needed, self.fitting(fresh))
        self.tables.requests |= {row.uuid: row for row in fresh}
        self.tables.keys |= holders
        return [interface.Accepted(known.get(n, uuid), n not in known) for n, uuid in enumerate(uuids)]

    def look_up(self, requests, uuids, now_us, sure_us):
        """The keys that are new, and by their place the ids of the requests whose key is taken."""
        taken = {key: holder for key, holder in self.tables.keys.items() if holder.until > sure_us}
        given, known = {}, {}
        for n, new in enumerate(requests):
            if not new.key:
                continue
            rules.check_key(new.key, new.key_until)
            count = rules.check_together(new.together, len(requests) - n)
            holder = (taken | given).get((new.owner, new.key))
            if holder is None:
                given[new.owner, new.key] = Holder(new.key_until, uuids[n : n + count], now_us)
            elif len(holder.uuids) != count:
                fact = f"it was given to {len(holder.uuids)} in one message"
                raise InvalidRequest("the key stands for other requests", fact, "use another key")
            else:
                known |= dict(enumerate(holder.uuids, n))
        return given, known

    def row(self, uuid, new, now_us):
        """Raises InvalidRequest. What shares a key has none of its own."""
        size = len(request_record.encode(uuid, new, now_us))
        due = new.not_before if new.not_before > now_us else 0
        return Row(uuid, new._replace(key=b"") if new.together else new, now_us, size, new.expires_at, due)

    def fitting(self, rows):
        free = self.store.capacity - self.used()
        return sum(sum(row.size for row in rows[: n + 1]) <= free for n in range(len(rows)))

    def optimistic(self, alone=False): ...

    def fresh(self, requests, now_us, ahead_us=0):
        _, known = self.look_up(requests, [b""] * len(requests), now_us, now_us - ahead_us)
        return [new for n, new in enumerate(requests) if n not in known]

    def set_service(self, service, setting):
        self.tables.settings = service_settings.changed(self.tables.settings, service, setting)
        return self.tables.settings

    def forget(self, keys, owner=b""):
        for key in keys:
            self.tables.keys.pop((owner, key), None)

    # -- from state to state ---------------------------------------------------------------------------------

    def may(self, uuid, event):
        """The request, if that can happen to it."""
        row = self.tables.requests.get(uuid)
        return row if row and (row.state, event) in TRANSITIONS else None

    def end(self, row, outcome):
        self.change(row, outcome=outcome, due=0, deliveries=0, expires_at=row.new.expires_at)

    def change(self, row, **fields):
        self.tables.requests[row.uuid] = row._replace(**fields)

    def finish(self, uuid, status, frames, *, attempts, dispatched_at, finished_at, reason=""):
        row = self.may(uuid, ENDING[status])
        if row is None:
            return False
        size = size_of(frames)
        if size and self.used() + size > self.store.capacity:
            raise StoreFull(self.used(), self.store.capacity, size)
        self.end(row, Outcome(status, list(frames), reason, attempts, dispatched_at, finished_at))
        return True

    def postpone(self, uuid, *, due, attempts, dispatched_at, reason, deliveries=0):
        row = self.may(uuid, Event.POSTPONE)
        if row is not None:
            tried = {"attempts": attempts, "deliveries": deliveries if deliveries > attempts else 0}
            self.change(row, due=max(due, 1), dispatched_at=dispatched_at, reason=reason, **tried)
        return row is not None

    def promote(self, now_us, limit=1000):
        promoted = {}
        for row in sorted(self.rows(State.DELAYED), key=lambda row: (row.due, row.uuid))[:limit]:
            if row.due <= now_us:
                self.change(row, due=0)
                promoted[row.new.service] = promoted.get(row.new.service, 0) + 1
        return list(promoted.items())

    def expire(self, now_us, limit=1000, skip=(), ahead_us=0):
        due = [
            row
            for row in sorted(self.rows(*UNENDED), key=lambda row: (row.expires_at, row.uuid))
            if row.expires_at and row.expires_at <= now_us - ahead_us and row.uuid not in skip
        ][:limit]
        for row in due:
            reason = f"not done in time, after {row.attempts} attempts"
            self.end(row, Outcome(Status.EXPIRED, [], reason, row.attempts, row.dispatched_at, now_us))
        return [(row.uuid, row.new.service) for row in due]

    def retry(self, uuid, now_us):
        row = self.may(uuid, Event.RETRY)
        if row is None:
            return False
        new, given = row.new, row.submitted_at
        expires_at = new.expires_at and capped(new.expires_at, given, now_us)
        due = 0 if row.outcome.attempts else capped(new.not_before, given, now_us)
        again = Row(uuid, new, given, row.size, expires_at if expires_at > now_us else 0, due if due > now_us else 0)
        self.tables.requests[uuid] = again
        return True

    def close(self, uuid, now_us=None, unclaimed=False):
        row = self.tables.requests.pop(uuid, None)
        if row is None:
            return None
        if self.store.keep_closed:
            self.tables.sequence += 1
            now_us = wall_us() if now_us is None else now_us
            self.tables.closed[self.tables.sequence] = self.life(row, now_us, unclaimed)
        return interface.Closed(row.new.service, row.state)

    def life(self, row, now_us, unclaimed):
        end, request = row.outcome, row.new.body
        reply = end.frames if end else []
        one_left_out, other_left_out = (size_of(frames) > self.store.closed_body_limit for frames in (request, reply))
        return made(
            ClosedRequest,
            *(row.new, row, *([end] if end else [])),
            sequence=self.tables.sequence,
            status=end.status if end else Status.CANCELLED,
            replied_at=end.finished_at if end else 0,
            closed_at=now_us,
            request=[] if one_left_out else list(request),
            reply=[] if other_left_out else list(reply),
            error=(end or row).reason,
            unclaimed=unclaimed,
            request_bytes=size_of(request),
            reply_bytes=size_of(reply),
            request_left_out=one_left_out,
            reply_left_out=other_left_out,
        )

    # -- time ------------------------------------------------------------------------------------------------

    def trim(self, now_us, policy=None, limit=1000, ahead_us=0):
        policy = policy or interface.Retention()
        sure_us, left, done = now_us - ahead_us, limit, []
        keys = [key for key, holder in self.tables.keys.items() if holder.until <= sure_us]
        # Of those that end at one time, those of an owner whose name begins another's come behind the other's.
        keys.sort(key=lambda key: (self.tables.keys[key].until, bool(key[0]), key[0] + b"\xff", key[1]))
        keys = keys[:left]
        for key in keys:
            del self.tables.keys[key]
        left -= len(keys)
        for states, kept in ((REPLIED, policy.reply_retention), (DEAD, policy.dead_retention)):
            ends = sorted((row.outcome.finished_at, row.uuid) for row in self.rows(*states) if kept)
            due = [uuid for finished_at, uuid in ends if finished_at <= sure_us - kept][:left]
            for uuid in due:
                self.close(uuid, now_us, unclaimed=True)
            done.append(len(due))
            left -= len(due)
        dropped = self.drop_oldest(left, sure_us - policy.closed_retention) if policy.closed_retention else 0
        return interface.Trimmed(*done, dropped, len(keys), left <= dropped)

    def drop_oldest(self, limit, closed_at=None):
        """Drop the oldest closed requests: those that were closed by then, or (None) for their room."""
        dropped = 0
        for number, one in list(self.tables.closed.items())[:limit]:
            if self.is_for_archive(number) or (closed_at is not None and one.closed_at > closed_at):
                break
            del self.tables.closed[number]
            dropped += 1
        return dropped

    def clamp_timers(self, now_us, after=b"", limit=1000):
        """All at once."""
        changed = 0
        for row in self.rows(*UNENDED):
            given, since = (row.due, row.dispatched_at) if row.dispatched_at else (row.new.not_before, row.submitted_at)
            due = min(row.due, capped(given, since, now_us))
            expires_at = min(row.expires_at, capped(row.new.expires_at, row.submitted_at, now_us))
            changed += (due != row.due) + (expires_at != row.expires_at)
            sent_at = row.dispatched_at if due == row.due else min(row.dispatched_at, now_us)
            self.change(row, due=due, expires_at=expires_at, dispatched_at=sent_at)
        for key, holder in self.tables.keys.items():
            until = capped(holder.until, holder.given, now_us)
            if until != holder.until:
                self.tables.keys[key] = holder._replace(until=until, given=now_us)
                changed += 1
        return changed, None

    # -- the archive -----------------------------------------------------------------------------------------

    def expect(self, archivist):
        known = self.tables.archivist
        if known is not None and (archivist is None or archivist.id != known.id):
            raise InvalidArchive("another archive is registered", f"{known.name} (id {known.id.hex()})")

    def update_archive(self, archivist=None, *, register=None, upto=None, uuid=None):
        if register:
            self._register(archivist)
        elif register is not None:
            self.tables.registered = False
        if upto is not None:
            self._acknowledge(upto, uuid, archivist)
        return self.archive()

    def _register(self, archivist):
        tables, first = self.tables, self.closed_range()[0]
        if tables.registered:
            self.expect(archivist)
        if archivist is not None:
            if tables.archivist is None or tables.archivist.id != archivist.id:
                tables.registered, tables.archived_upto = False, first - 1
            tables.archivist = archivist
        if not tables.registered:
            tables.registered, tables.archived_upto = True, max(tables.archived_upto, first - 1)

    def _acknowledge(self, upto, uuid, archivist):
        tables = self.tables
        if not tables.registered:
            raise InvalidArchive("nothing can be acknowledged", "no archive is registered", "register it first")
        self.expect(archivist)
        one = tables.closed.get(upto)
        if upto > tables.sequence or (upto > tables.archived_upto and uuid and one and one.uuid != uuid):
            raise InvalidArchive(f"closed requests up to {upto} can't be acknowledged", "it is another store")
        tables.archived_upto = max(tables.archived_upto, upto)
