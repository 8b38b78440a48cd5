"""What a transaction has read of requests: all of a batch at once, rather than each by itself over the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from titanic.store.records import Description, Outcome, Pending
from titanic.store.states import State, Status

MOST_REPLIES = 16 << 20
"""Bytes of replies that are read ahead for a batch. The others are read when they are asked for."""


@dataclass(slots=True)
class Seen:
    """A request without its body, and where it is. `frames` is None when the reply was not read, or there is none.

    `ends_at` is when it expires: 0 when it does not, or has ended. `size` is what it counts for its service.
    """

    uuid: bytes
    service: bytes
    priority: int
    submitted_at: int
    not_before: int
    expires_at: int
    max_attempts: int
    options: bytes
    key: bytes
    owner: bytes
    body_frames: int
    body_bytes: int
    state: State
    ends_at: int
    due: int
    attempts: int
    dispatched_at: int
    reason: bytes
    finished_at: int
    reply_frames: int
    reply_bytes: int
    deliveries: int
    frames: list[bytes] | None

    @property
    def has_ended(self) -> bool:
        return self.state >= State.DONE

    @property
    def size(self) -> int:
        return request_size(self.service, self.key, self.owner, self.options, self.body_frames, self.body_bytes)

    @property
    def description(self) -> Description:
        return Description(
            uuid=self.uuid,
            state=self.state,
            service=self.service,
            priority=self.priority,
            submitted_at=self.submitted_at,
            not_before=self.not_before,
            expires_at=self.expires_at if self.has_ended else self.ends_at,
            max_attempts=self.max_attempts,
            options=self.options,
            body_frames=self.body_frames,
            body_bytes=self.body_bytes,
            attempts=self.attempts,
            due=self.due,
            dispatched_at=self.dispatched_at,
            finished_at=self.finished_at,
            reason=self.reason.decode(errors="replace"),
            reply_frames=self.reply_frames,
            reply_bytes=self.reply_bytes,
            key=self.key,
            owner=self.owner,
            deliveries=self.deliveries,
        )

    @property
    def answer(self) -> Outcome | Pending:
        """What `reply` returns. The frames must have been read."""
        if not self.has_ended:
            return Pending(self.state)
        assert self.frames is not None
        status, reason = Status(self.state), self.reason.decode(errors="replace")
        return Outcome(status, self.frames, reason, self.attempts, self.dispatched_at, self.finished_at)


REASON = "coalesce(p.reason, l.reason, q.reason, '')"
STATE = "(CASE WHEN p.uuid IS NOT NULL THEN p.status WHEN l.uuid IS NOT NULL THEN 2 ELSE 1 END)"
_FIELDS = f"""
    r.uuid, r.service, r.priority, r.submitted_at, r.not_before, r.expires_at, r.max_attempts, r.options, r.key,
    r.owner, r.body_frames, r.body_bytes,
    {STATE},
    coalesce(l.expires_at, q.expires_at, 0), coalesce(l.due, 0), coalesce(p.attempts, l.attempts, q.attempts, 0),
    coalesce(p.dispatched_at, l.dispatched_at, q.dispatched_at, 0), {REASON},
    coalesce(p.finished_at, 0), coalesce(p.frames_count, 0), coalesce(p.frames_bytes, 0),
    coalesce(l.deliveries, q.deliveries, 0)"""


def by_key(table: str, alias: str, key: str, join: str = "LEFT") -> str:
    """A join that finds each row by its key. Of a table that is thought to be empty, such as one of which most rows are
    dead and cannot be removed yet, PostgreSQL would read all, once for each row of the others."""
    return f"{join} JOIN LATERAL (SELECT * FROM titanic.{table} AS t WHERE {key} OFFSET 0) AS {alias} ON true"


PLACES = " ".join(
    (
        by_key("reply", "p", "t.uuid = r.uuid"),
        by_key("later", "l", "t.uuid = r.uuid"),
        by_key("ready", "q", "t.service = r.service AND t.rank = 9 - r.priority AND t.uuid = r.uuid"),
    )
)
"""The places where a request `r` can be."""

SEEN = f"{_FIELDS}, NULL"
"""The columns of a Seen, of a request `r` and PLACES, without the reply's frames."""

_BY_ID = f"FROM unnest(%s::uuid[]) AS w (uuid) {by_key('request', 'r', 't.uuid = w.uuid', 'INNER')}"
LOOK = f"SELECT {SEEN} {_BY_ID} {PLACES}"
LOOK_AT_REPLIES = f"""SELECT {_FIELDS},
    CASE WHEN sum(p.frames_bytes) OVER (ROWS UNBOUNDED PRECEDING) <= {MOST_REPLIES} THEN p.frames END
    {_BY_ID} {PLACES}"""
LOOK_FOR_REPLIES = f"""
SELECT w.uuid, coalesce(p.owner, r.owner), p.status, p.attempts, p.dispatched_at, p.finished_at, p.reason,
    p.frames_count, p.frames_bytes,
    CASE WHEN sum(p.frames_bytes) OVER (ROWS UNBOUNDED PRECEDING) <= {MOST_REPLIES} THEN p.frames END,
    l.uuid IS NOT NULL
FROM unnest(%s::uuid[]) AS w (uuid)
    {by_key("reply", "p", "t.uuid = w.uuid")}
    {by_key("request", "r", "t.uuid = CASE WHEN p.uuid IS NULL THEN w.uuid END")}
    {by_key("later", "l", "t.uuid = r.uuid")}
WHERE p.uuid IS NOT NULL OR r.uuid IS NOT NULL"""
"""What an `Answer` has. Clients ask for many replies that are not there yet: it looks at no more than it must."""

LOCK = "SELECT FROM titanic.request WHERE uuid = ANY(%s::uuid[]) ORDER BY uuid FOR UPDATE"
"""In a statement of its own before the look: one that has waited for a lock sees the other tables as they were."""

_STATES = {int(state): state for state in State}


def seen(row: tuple[Any, ...]) -> Seen:
    """What the columns of SEEN say."""
    one = Seen(*row)
    one.state = _STATES[one.state]
    return one


class Answer(NamedTuple):
    """What is to be said of a request, and whose it is. `frames` of its reply are missing when they were too many."""

    owner: bytes
    frames: list[bytes] | None
    reply_frames: int
    reply_bytes: int
    answer: Outcome | Pending


def answered(row: tuple[Any, ...]) -> Answer:
    """What LOOK_FOR_REPLIES has found."""
    _, owner, status, attempts, dispatched_at, finished_at, reason, count, size, frames, delayed = row
    if status is None:
        return Answer(owner, [], 0, 0, _DELAYED if delayed else _WAITING)
    why = reason.decode(errors="replace")
    outcome = Outcome(Status(status), frames or [], why, attempts, dispatched_at, finished_at)
    return Answer(owner, frames, count, size, outcome)


_WAITING, _DELAYED = Pending(State.WAITING), Pending(State.DELAYED)


def request_size(service: bytes, key: bytes, owner: bytes, options: bytes, frames: int, body_bytes: int) -> int:
    """Bytes of a request, for the loads of its service and its owner."""
    return 44 + len(service) + len(key) + len(owner) + len(options) + 4 * frames + body_bytes


REQUEST_SIZE = """(44 + octet_length(r.service) + octet_length(r.key) + octet_length(r.owner) + octet_length(r.options)
    + 4 * r.body_frames + r.body_bytes)"""
"""`request_size` of a request `r`."""


def reply_size(reason: bytes, frames: int, frames_bytes: int) -> int:
    """Bytes of an outcome, for the load of its request's owner."""
    return 32 + len(reason) + 4 * frames + frames_bytes
