"""Jobs that retry or close many requests: what is stored of them, how clients change them, and what matches.

    counting ──► counted ──► running ⇄ paused ──► done, cancelled or stopped
                         confirm

A job is facts: `jo` + its id has the job, `ju` + id + u32 up to ROW of the UUIDs that matched when it counted. It acts
on those alone, in their order, on each at most once: its place in them is written in the transaction that acts. A
request is left as it is, and counts as `changed`, if it does not match any more, has ended since the job began, or may
not be changed by the job's user any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from typing import Any, NamedTuple, cast

from msgspec import MsgspecError, Struct, msgpack

from broker import NOBODY, User, user_from_json
from titanic.errors import Forbidden
from titanic.facts.audit import Act, Origin
from titanic.facts.groups import normalize
from titanic.protocol.documents import JobConditions, RedriveInfo
from titanic.protocol.messages import RedriveAction
from titanic.protocol.permissions import lacks, lacks_submit
from titanic.services.ask import ServiceContext, ServiceHost
from titanic.store import Description, ReadTransaction, SharedReadTransaction, State, WriteTransaction
from titanic.store.rules import MAX_FACT
from titanic.util import ids

JOBS, UUIDS, LOCK = b"jo", b"ju", b"jl"

ROW = 1000
"""UUIDs in a row."""

MAX_COUNTED, ROOM_SHARE = 1_000_000, 4
"""UUIDs that jobs may keep together, and the part of the room for facts that these may take."""

MAX_KEPT, MAX_BUSY = 100, 10
"""Jobs that are remembered, and those of one user that have not ended; and as many that were not confirmed."""

APART_US = 5_000_000
"""µs by which the ids of nodes may be behind the clock of the store."""

PAGE = 256
"""Requests that are read at a time."""

MAX_REASON = 500
"""Characters of the reason of a job."""

MAX_JOB = MAX_FACT - 4096
"""Bytes of a new job: its later states are longer, and must fit as well."""

RETRIABLE = (State.FAILED, State.EXPIRED)
CLOSABLE = (State.WAITING, State.DELAYED, State.DONE, *RETRIABLE)
ENDED = ("done", "cancelled", "stopped")


class RedriveJob(Struct, kw_only=True, omit_defaults=True):
    """A job. `user`: who started it, as `User.to_json`; empty: there was no access control. Times are in µs since the
    epoch."""

    id: bytes
    options: RedriveAction
    origin: Origin
    user: bytes
    moment: int
    """When it was started."""
    end: bytes = b""
    """The newest request then; empty: the requests were given, and are not searched for."""
    state: str = "counting"
    after: bytes = b""
    """The last request that it has compared while counting."""
    counted: int = 0
    place: int = 0
    """So many of them it has acted on, or found changed."""
    done: int = 0
    ended_at: int = 0
    reason: str = ""
    node: int | None = None
    """The incarnation of the node that runs it."""

    def document(self) -> RedriveInfo:
        """The job for clients."""
        options = self.options
        where = {name: value for name in JobConditions.__annotations__ if (value := getattr(options, name)) is not None}
        return {
            "id": self.id.hex(),
            "action": cast(Any, options.start),
            "where": cast(JobConditions, where),
            "rate": options.rate,
            "user": self.origin.user,
            "state": cast(Any, self.state),
            "counted": self.counted,
            "done": self.done,
            "changed": self.place - self.done,
            "started_at": self.moment,
            "ended_at": self.ended_at,
            "reason": self.reason,
        }

    def put(self, transaction: WriteTransaction) -> None:
        """Store it."""
        transaction.put_facts([(JOBS + self.id, msgpack.encode(self))])

    def add(self, transaction: WriteTransaction, uuids: list[bytes]) -> None:
        """Store matching requests, ROW of them unless they are the last."""
        if uuids:
            transaction.put_facts([(self._row(self.counted // ROW), b"".join(uuids))])
        self.counted += len(uuids)

    def next(self, transaction: ReadTransaction, most: int) -> list[bytes]:
        """The requests from its place on, at most so many."""
        row, at = divmod(self.place, ROW)
        found = transaction.facts(self._row(row), limit=1)
        value = found[0][1] if found else bytes(ids.SIZE * ROW)  # a damaged row: unknown requests
        uuids = [value[n : n + ids.SIZE] for n in range(0, len(value), ids.SIZE)]
        return uuids[at : at + min(most, self.counted - self.place)]

    def advance(self, transaction: WriteTransaction, count: int, done: int) -> None:
        """Go on by so many requests, of which so many were retried or closed."""
        self.place += count
        self.done += done
        if count and self.place % ROW == 0:
            transaction.put_facts([(self._row(self.place // ROW - 1), None)])

    def drop(self, transaction: WriteTransaction) -> None:
        """Delete the requests that are left."""
        rows = range(self.place // ROW, (self.counted - 1) // ROW + 1)
        transaction.put_facts([(self._row(row), None) for row in rows])

    def finish(self, transaction: WriteTransaction, now_us: int, state: str, reason: str = "") -> list[Act]:
        """End it. Returns its act, if it may have acted."""
        acted = self.state in ("running", "paused")
        self.state, self.ended_at, self.reason = state, now_us, reason[:MAX_REASON]
        self.drop(transaction)
        document = self.document()
        words = [f"{name}={value}" for name, value in document["where"].items()]
        text = ", ".join([f"job {state} after {self.place} of {self.counted}", *words])
        service = (self.options.service or "").encode()
        act = self.origin.act(document["action"], service=service, count=self.done, text=text)
        return [act] if acted else []

    def _row(self, number: int) -> bytes:
        return UUIDS + self.id + number.to_bytes(4)


_decode = msgpack.Decoder(
    RedriveJob
).decode  # here: threads must not prepare a type together (`_decoder` in messages.py)


def read_jobs(transaction: ReadTransaction, id: bytes = b"") -> list[RedriveJob]:
    """All jobs, the oldest first, or the one with this id, if it is known."""
    found = list[RedriveJob]()
    for _, value in transaction.facts(JOBS + id):
        try:
            found.append(_decode(value))
        except MsgspecError:  # of a later version
            continue
    return sorted(found, key=_begin)


def _begin(job: RedriveJob) -> int:
    return job.moment


def lock(transaction: WriteTransaction, host: ServiceHost) -> None:
    """Let other nodes that share the store wait until the end of this transaction before they read jobs."""
    if host.shares:
        transaction.put_facts([(LOCK, b"")])


def documents(transaction: ReadTransaction, user: User | None, id: str | None) -> list[RedriveInfo]:
    """The jobs that a user may see, the newest first; `id`: only this one."""
    jobs = read_jobs(transaction, bytes.fromhex(id or ""))
    return [job.document() for job in reversed(jobs) if user is None or user.reads(job.origin.user.encode())]


def apply(
    transaction: WriteTransaction, options: RedriveAction, now_us: int, user: User | None, origin: Origin
) -> tuple[RedriveInfo, list[Act]]:
    """Start a job, or change one. Raises ValueError, or Forbidden."""
    id = bytes.fromhex(options.job) if options.job else os.urandom(16)
    known = [job for job in read_jobs(transaction, id) if user is None or user.admin or user.name == job.origin.user]
    acts = list[Act]()
    if known and options.start is not None:  # the message was sent again
        return known[0].document(), acts
    if options.start is not None:
        if transaction.facts(JOBS + id):
            raise ValueError(f"job {options.job} belongs to another user; start one with another id")
        document = b"" if user is None else user.to_json()
        job = RedriveJob(id=id, options=options, origin=origin, user=document, moment=now_us)
        _start(transaction, job, user)
    elif known:
        job = known[0]
        acts = _change(transaction, job, options, now_us)
        if job.state not in ENDED and user is not None and user.name == job.origin.user:
            job.user = user.to_json()
    else:
        raise ValueError(f"there is no job {options.job}")
    job.put(transaction)
    return job.document(), acts


def _start(transaction: WriteTransaction, job: RedriveJob, user: User | None) -> None:
    if (fault := lacks_for(user, job.options)) is not None:
        raise Forbidden(fault)
    if job.options.uuids is None and (size := len(msgpack.encode(job))) > MAX_JOB:
        raise ValueError(f"the job has {size} bytes, {MAX_JOB} are the most; shorten its conditions")
    jobs = read_jobs(transaction)
    old = [one for one in jobs if one.state in ENDED][: max(0, len(jobs) - MAX_KEPT + 1)]
    counted = [one for one in jobs if one.state == "counted" and one.origin.user == job.origin.user]
    old += counted[: 1 - MAX_BUSY]
    busy = [one for one in jobs if one not in old and one.state not in (*ENDED, "counted")]
    if len(busy) >= MAX_KEPT or sum(one.origin.user == job.origin.user for one in busy) >= MAX_BUSY:
        raise ValueError(f"too many jobs have not ended: {MAX_BUSY} of a user may; cancel one, or wait")
    for one in old:
        one.drop(transaction)
        transaction.put_facts([(JOBS + one.id, None)])
    if job.options.uuids is None:
        job.end = next((row.uuid for row in transaction.select(limit=1, newest=True)), b"")
        if not job.end:
            job.state, job.ended_at = "done", job.moment
    else:
        uuids = dict.fromkeys(bytes.fromhex(uuid) for uuid in job.options.uuids)
        job.add(transaction, [*uuids])
        job.options.uuids, job.state = [], "running"


def _change(transaction: WriteTransaction, job: RedriveJob, options: RedriveAction, now_us: int) -> list[Act]:
    change, state = options.change, job.state
    if change == "confirm" and (state != "counted" or options.count != job.counted):
        fact = f"{job.counted} requests matched" if state == "counted" else f"it is {state}"
        raise ValueError(f"job {options.job} cannot be confirmed with {options.count}: {fact}")
    if state in ENDED or (change in ("pause", "resume") and state not in ("running", "paused")):
        raise ValueError(f"job {options.job} is {state}: {change} is impossible")
    if change == "cancel":
        return job.finish(transaction, now_us, "cancelled")
    job.state = "paused" if change == "pause" else "running"
    return []


# -- what matches ------------------------------------------------------------------------------------------------


def lacks_for(user: User | None, options: RedriveAction) -> str | None:
    """Why a user may not do this to any request; None: permitted, for those in `is_permitted`."""
    if user is None:
        return None
    fault = lacks(user, "read" if options.start == "retry" else "close")
    if fault is None and options.start == "retry" and options.service is not None:
        fault = lacks_submit(user, options.service.encode())
    return fault


def user_of(job: RedriveJob, host: ServiceHost) -> User | None:
    """The user of a job with its present permissions; NOBODY: it is gone. None: there is no access control. A queue
    apart from its broker knows those of the user's last change of the job."""
    if (access := host.access) is not None:
        return access.users.get(job.origin.user, NOBODY)
    return user_from_json(job.user) if job.user else None


class FoundMatches(NamedTuple):
    """Requests that match, and the last one that was compared; None: there are no more."""

    uuids: list[bytes]
    after: bytes | None


def search(
    context: ServiceContext, transaction: ReadTransaction, job: RedriveJob, after: bytes, seconds: float
) -> FoundMatches:
    """Search for requests behind `after` for about so many seconds."""
    options, until, user = job.options, time.monotonic() + seconds, user_of(job, context.host)
    owner = None if options.owner is None else options.owner.encode()
    page = transaction.select(
        _states(options),
        service=None if options.service is None else options.service.encode(),
        owner=owner if user is None or user.reads_all else user.owner,
        after=after or ids.before(int((options.since or 0) * 1e6) - APART_US),
        limit=PAGE,
        text=options.text,
        seconds=seconds,
    )
    running = context.dispatcher.running()
    if context.host.shares and options.start == "close":
        running = cast(SharedReadTransaction, transaction).running([row.uuid for row in page])
    found = list[bytes]()
    for row in page:
        if row.uuid > job.end:
            return FoundMatches(found, None)
        if not (options.start == "close" and row.uuid in running) and matches(transaction, job, row, user):
            found.append(row.uuid)
        if time.monotonic() >= until:
            return FoundMatches(found, row.uuid)
    return FoundMatches(found, None if page.next is None or page.next >= job.end else page.next)


def _states(options: RedriveAction) -> Collection[State]:
    if options.state is not None:
        return (State[options.state.upper()],)
    return RETRIABLE if options.start == "retry" or options.error is not None else CLOSABLE


def matches(transaction: ReadTransaction, job: RedriveJob, row: Description, user: User | None) -> bool:
    """Whether a request matches, as it did when the job began, and its user may do this to it."""
    options = job.options
    if user is not None:
        if not (user.closes if options.start == "close" else user.reads)(row.owner):
            return False
        if options.start == "retry" and lacks_submit(user, row.service) is not None:
            return False
    if not job.end:
        return True
    since, until, at = (options.since or 0) * 1e6, options.until, row.finished_at or row.submitted_at
    group = "" if options.error is None else normalize(row.reason, row.state.name.lower())
    if (
        row.state not in _states(options)
        or max(row.submitted_at, row.finished_at) >= job.moment
        or options.service not in (None, row.service.decode(errors="replace"))
        or options.owner not in (None, row.owner.decode(errors="replace"))
        or options.key not in (None, row.key.decode(errors="replace"))
        or (options.error is not None and group not in (options.error, normalize(options.error)))
        or (options.text is not None and not row.mentions(options.text))
        or not since <= row.submitted_at < (job.moment if until is None else until * 1e6)
        or (options.older_than is not None and at >= job.moment - options.older_than * 1e6)
    ):
        return False
    if options.body is None:
        return True
    request = transaction.request(row.uuid)
    return request is not None and options.body.encode() in b"\n".join(request.body)
