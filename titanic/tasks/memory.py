"""A queue in memory, for tests of tasks: the dispatcher's own core decides, with dicts as its store, the test's thread
as its only worker, and a clock that is moved.

It does what a server does with options, keys, priorities, delays, times to live, back-offs and the ways in which a task
says how it ended. It has no limits of room, deletes nothing by its age, and interrupts no task at its `limit`.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right, insort
from collections.abc import AsyncGenerator, Container, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, TypedDict, Unpack, cast

from broker import DELIVERY, Delivery, Handler, RemoteError, error_frames, execute, failure, read_error
from titanic.dispatch.attempts import AttemptOutcome, Finish, Send
from titanic.dispatch.backlogs import Fetch
from titanic.dispatch.core import AskWorkers, DispatchCore, KeepOutcomes, Recall
from titanic.errors import InvalidRequest, RequestFailed, TimedOut
from titanic.protocol.answers import Ended, RequestInfo, standing, unknown
from titanic.protocol.submit_options import Span, SubmitOptions, encode, seconds
from titanic.schedules import Schedule
from titanic.schedules.scheduler import submit_tick
from titanic.services.list_requests import as_document
from titanic.services.request_submit import parse_submit
from titanic.settings import ServerConfig
from titanic.store import Description, NewRequest, ReadyRow, State, Status, rules
from titanic.store.request import COLUMNS
from titanic.util import ids

Body = bytes | str


@dataclass(slots=True, eq=False)
class Row:
    """A stored request. Times are µs since the epoch; `due`: 0: now."""

    uuid: bytes
    new: NewRequest
    submitted_at: int
    due: int
    expires_at: int
    attempts: int = 0
    deliveries: int = 0
    dispatched_at: int = 0
    finished_at: int = 0
    reason: str = ""
    status: Status | None = None
    frames: list[bytes] = field(default_factory=list)

    @property
    def place(self) -> bytes:
        """Its place in the queue of its service, as of a ReadyRow."""
        return b"%b\0%c%b" % (self.new.service, 9 - self.new.priority, self.uuid)

    @property
    def state(self) -> State:
        if self.status is not None:
            return State(self.status)
        return State.DELAYED if self.due else State.WAITING

    def ready(self) -> ReadyRow:
        """What the dispatcher's core is given."""
        new = self.new
        return ReadyRow(
            self.place,
            self.uuid,
            self.attempts,
            [*new.body],
            new.max_attempts,
            self.expires_at,
            new.options,
            new.key,
            self.deliveries,
        )

    def described(self) -> Description:
        """All that is known of it."""
        new = self.new
        given = {name: getattr(new, name) for name in COLUMNS if name in new._fields}
        found = Description(
            self.uuid,
            self.submitted_at,
            **given,
            state=self.state,
            body_frames=len(new.body),
            body_bytes=sum(map(len, new.body)),
            attempts=self.attempts,
            due=self.due,
            dispatched_at=self.dispatched_at,
            finished_at=self.finished_at,
            reason=self.reason,
            reply_frames=len(self.frames),
            reply_bytes=sum(map(len, self.frames)),
        )
        found.expires_at = self.expires_at
        return found


class QueueSettings(TypedDict, total=False):
    """Settings of a server."""

    max_attempts: int
    retry_first: float
    retry_most: float


class Served(Protocol):
    """An app, as its workers see it."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """What is done for each service."""

    @property
    def schedules(self) -> Sequence[Schedule]:
        """What is submitted again and again."""


class MemoryQueue:
    """What `Tasks.testing` gives. Everything happens in the calling thread: when a reply is asked for, in `run` and in
    `advance`."""

    def __init__(self, app: Served, *, worker: bool = True, **settings: Unpack[QueueSettings]) -> None:
        self._app = app
        self.has_worker = worker
        """Whether what is due is executed. A test may set it."""
        self._ticked: dict[str, float] = {}
        """Up to when each schedule was submitted."""
        self._config = ServerConfig(**settings)
        self._core = DispatchCore(self._config, seed=1)
        self._rows: dict[bytes, Row] = {}
        self._ready: dict[bytes, list[bytes]] = {}
        """The places of those that wait, for each service, in order."""
        self._keys: dict[bytes, tuple[int, bytes]] = {}
        """Until when each key counts, and whose it is."""
        self._ids = ids.IdMaker(None)
        self._running: dict[bytes, Delivery] = {}
        self._depth = 0
        self._started_us = time.time_ns() // 1000
        self._now = 0.0

    # -- time ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time of this queue."""
        return datetime.fromtimestamp(self._wall_us / 1e6, UTC)

    @property
    def _wall_us(self) -> int:
        return self._started_us + round(self._now * 1e6)

    def advance(self, span: Span) -> None:
        """Let so much time pass (seconds, or a timedelta), and execute all that is due meanwhile. Schedules of the app
        have their ticks."""
        until = self._now + seconds("span", span)
        self.run()
        while self._leap(until):
            pass
        self._now = until
        self._pass()

    def _leap(self, until: float) -> bool:
        """Go on to the next time at which something is due, and do it; False when there is none until then."""
        times = [
            when for row in self._rows.values() if row.status is None for when in (row.due, row.expires_at) if when
        ]
        if times or until < math.inf:  # schedules go on for ever: nobody waits for them alone
            times += [tick * 1_000_000 for _, tick in self._next_ticks()]
        at = (min(times) - self._started_us) / 1e6 if times else math.inf
        if at > until or at == math.inf:
            return False
        self._now = max(self._now, at)
        self._pass()
        return True

    def _next_ticks(self) -> Iterator[tuple[Schedule, int]]:
        """Each schedule with its next tick."""
        for schedule in self._app.schedules:
            yield schedule, schedule.ticks.after(self._ticked.setdefault(schedule.name, self._started_us / 1e6))

    def _pass(self) -> None:
        """Time has passed."""
        now_us = self._wall_us
        for schedule, tick in self._next_ticks():
            if tick * 1_000_000 <= now_us:
                submit_tick(self, schedule, tick)
                self._ticked[schedule.name] = tick
        back = set()
        for row in self._rows.values():
            if row.status is not None or row.uuid in self._core.flights:
                continue
            if 0 < row.expires_at <= now_us:
                self._unready(row)
                self._end(row, Status.EXPIRED, [], rules.late(row.attempts))
            elif 0 < row.due <= now_us:
                row.due = 0
                insort(self._ready.setdefault(row.new.service, []), row.place)
                back.add(row.new.service)
        self._core.returned(back)
        self.run()

    # -- what happens ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Execute all that is due now."""
        core = self._core
        self._depth += 1  # a task that waits for another one is not in its way
        try:
            handlers = self._app.handlers if self.has_worker else {}
            served = {name.encode(): handler for name, handler in handlers.items()}
            for name in [*core.backlogs]:
                core.present(name, self._depth if name in served else 0, self._now)
            busy = True
            while busy:
                busy = False
                self._perform(served)
                for fetch in core.take_fetches():
                    busy = True
                    core.fetched(fetch.service, self._fetch(fetch), self._now, self._wall_us)
                    for send in core.take_sends(self._now, self._wall_us):
                        self._execute(send, served[send.service])
                        self._perform(served)
                self._perform(served)
        finally:
            self._depth -= 1

    def _fetch(self, fetch: Fetch) -> list[ReadyRow]:
        places = self._ready.get(fetch.service, [])
        found: list[ReadyRow] = []
        for place in places[0 if fetch.after is None else bisect_right(places, fetch.after) :]:
            row = self._rows[place[-ids.SIZE :]]
            if row.uuid not in self._core.flights:
                found.append(row.ready())
            if len(found) == fetch.limit:
                break
        return found

    def _execute(self, send: Send, handler: Handler) -> None:
        row, core, parts = self._rows[send.uuid], self._core, list[bytes]()
        row.dispatched_at = self._wall_us
        delivery = self._running[send.uuid] = Delivery(send.context)
        context = copy_context()  # what a task sets is not there for the next one
        context.run(DELIVERY.set, delivery)
        try:
            body = context.run(execute, handler, list(send.body), parts.extend)
        except RemoteError as error:
            body = error_frames(error)
        except Exception as error:
            body = failure(error, traced=True)
        finally:
            del self._running[send.uuid]
        if (error_reply := read_error(body)) is not None:
            core.failed(send.uuid, error_reply, self._now)
        else:
            core.replied(send.uuid, [*parts, *body], self._now)

    def _perform(self, served: Container[bytes]) -> None:
        core = self._core
        for effect in core.take_effects(self._now):
            match effect:
                case AskWorkers(services):
                    for name in services:
                        core.present(name, self._depth if name in served else 0, self._now)
                case Recall(uuid):
                    core.kept(uuid)
                case KeepOutcomes(outcomes):
                    for outcome in outcomes:
                        if (row := self._rows.get(outcome.uuid)) is not None:
                            self._keep(row, outcome)
                    core.settled([outcome.uuid for outcome in outcomes])

    def _keep(self, row: Row, outcome: AttemptOutcome) -> None:
        self._unready(row)
        row.attempts = outcome.attempts
        if isinstance(outcome, Finish):
            self._end(row, outcome.status, outcome.frames, outcome.reason)
        else:
            row.reason, row.deliveries = outcome.reason, outcome.deliveries
            row.due = self._wall_us + max(1, int(outcome.delay * 1e6))

    def _end(self, row: Row, status: Status, frames: list[bytes], reason: str) -> None:
        row.status, row.frames, row.reason, row.due = status, frames, reason, 0
        row.finished_at = self._wall_us

    def _unready(self, row: Row) -> None:
        places = self._ready.get(row.new.service, [])
        at = bisect_right(places, row.place) - 1
        if at >= 0 and places[at] == row.place:
            del places[at]

    # -- what a client does ----------------------------------------------------------------------------------

    def submit(self, service: Body, *body: Body, **options: Unpack[SubmitOptions]) -> str:
        """As `Client.submit`."""
        return self._submit(service, [*body] or [b""], {**options})

    def submit_many(
        self,
        service: Body,
        bodies: Iterable[Body],
        *,
        keys: Iterable[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> list[str]:
        """As `Client.submit_many`."""
        every = [*bodies]
        own: list[dict[str, Any]] = [{}] * len(every) if keys is None else [{"key": key} for key in keys]
        if len(own) != len(every):
            raise InvalidRequest("there are more keys than bodies, or fewer", "", "give one for each")
        return [self._submit(service, [body], {**options, **key}) for body, key in zip(every, own, strict=True)]

    def _submit(self, service: Body, body: Iterable[Body], options: dict[str, Any]) -> str:
        now_us = self._wall_us
        frames = [one.encode() if isinstance(one, str) else one for one in (encode(options), service, *body)]
        try:
            (new,) = parse_submit(frames, now_us).requests
            rules.check_service(new.service)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        until, uuid = self._keys.get(new.key, (0, b""))
        if new.key and until > now_us:
            return uuid.hex()
        (uuid,) = self._ids.make(1, now_us)
        row = self._rows[uuid] = Row(uuid, new, now_us, new.not_before, new.expires_at)
        if new.key:
            self._keys[new.key] = new.key_until, uuid
        if not row.due:
            insort(self._ready.setdefault(new.service, []), row.place)
            self._core.arrived({new.service: new.priority}, self._now)
        return uuid.hex()

    def reply(self, uuid: str) -> list[bytes] | None:
        """As `Client.reply`: executes what is due now."""
        self.run()
        row = self._row(uuid)
        if row.status is None:
            return None
        if row.status is Status.DONE:
            return list(row.frames)
        raise RequestFailed(row.reason, state=row.status.name.lower(), detail=list(row.frames))

    def wait(self, uuid: str, timeout: Span | None = None) -> list[bytes]:
        """As `Client.wait`: lets time pass until the reply is there, at most `timeout`."""
        until = math.inf if timeout is None else self._now + seconds("timeout", timeout)
        while (frames := self.reply(uuid)) is None:
            if not self._leap(until):
                row = self._row(uuid)
                self._now = self._now if until == math.inf else until
                raise TimedOut(f"no reply to {uuid} yet", standing(self._info(row)), self._advice(row))
        return frames

    def replies(self, uuids: Iterable[str], timeout: Span | None = None) -> Iterator[tuple[str, Ended]]:
        """As `Client.replies`: lets time pass as they are asked for, at most `timeout`."""
        until = math.inf if timeout is None else self._now + seconds("timeout", timeout)
        pending = list(dict.fromkeys(uuids))
        while pending:
            still = []
            for uuid in pending:
                try:
                    ended: Ended | None = self.reply(uuid)
                except RequestFailed as error:
                    ended = error
                if ended is None:
                    still.append(uuid)
                else:
                    yield uuid, ended
            pending = still
            if pending and not self._leap(until):
                row = self._row(pending[0])
                raise TimedOut(f"{len(pending)} replies are still pending", "", self._advice(row))

    def close(self, *uuids: str) -> None:
        """As `Client.close`."""
        for uuid in uuids:
            row = self._rows.pop(ids.parse(ids.plain(uuid).encode()) or b"", None)
            if row is not None:
                self._unready(row)
                self._core.closed([row.uuid])
                if (delivery := self._running.get(row.uuid)) is not None:
                    delivery.cancel()

    def close_many(self, uuids: Iterable[str]) -> None:
        """As `Client.close_many`."""
        self.close(*uuids)

    def find(self, keys: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
        """As `Client.find`."""
        known = {key: self._keys[key.encode()] for key in keys if key.encode() in self._keys}
        uuids = {key: uuid.hex() for key, (until, uuid) in known.items() if until > self._wall_us}
        there = [self._info(row) for uuid in uuids.values() if (row := self._rows.get(bytes.fromhex(uuid))) is not None]
        states: dict[str, str] = {row["uuid"]: row["state"] for row in there}
        return uuids, states

    def show(self, uuid: str) -> RequestInfo:
        """As `Client.show`."""
        return self._info(self._row(uuid))

    def requests(self, state: str | None = None) -> list[RequestInfo]:
        """All that is stored, oldest first; in one state."""
        found = [self._info(row) for row in self._rows.values()]
        return [one for one in found if state is None or one["state"] == state]

    def _info(self, row: Row) -> RequestInfo:
        return cast(RequestInfo, as_document(row.described(), row.uuid in self._running))

    def _advice(self, row: Row) -> str:
        service = row.new.service.decode()
        if service not in self._app.handlers:
            return f"this app has no task or service {service}"
        if not self.has_worker:
            return "the queue has no worker until has_worker is set"
        return "give it more time, or advance the queue's clock"

    def _row(self, uuid: str) -> Row:
        row = self._rows.get(ids.parse(ids.plain(uuid).encode()) or b"")
        if row is None:
            raise unknown(uuid)
        return row


class AioMemory:
    """The queue for coroutines, as `titanic.aio.Client` is for a server. While one waits for a reply, the tasks that
    are due are executed in its thread, and the clock goes on as far as that takes."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def submit(self, service: str, *body: bytes, **options: Unpack[SubmitOptions]) -> str:
        return self._queue.submit(service, *body, **options)

    async def submit_many(
        self,
        service: str,
        bodies: Iterable[bytes],
        *,
        keys: Iterable[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> list[str]:
        return self._queue.submit_many(service, bodies, keys=keys, **options)

    async def wait(self, uuid: str, timeout: Span | None = None) -> list[bytes]:
        return self._queue.wait(uuid, timeout)

    async def replies(
        self, uuids: Iterable[str], timeout: Span | None = None
    ) -> AsyncGenerator[tuple[str, Ended], None]:
        for found in self._queue.replies(uuids, timeout):
            yield found

    async def close(self, *uuids: str) -> None:
        self._queue.close(*uuids)

    async def close_many(self, uuids: Iterable[str]) -> None:
        self._queue.close_many(uuids)
