"""A queue in memory, for tests of tasks: the dispatcher's own core decides, with the store in memory, the test's thread
as its only worker, and a clock that is moved.

Options, keys, priorities, delays, times to live, back-off and the outcomes of tasks have the effects that they have
with a server. But room has no limits, only replies with a `keep` are deleted for their age, and no task is interrupted
at its `limit`.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Container, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any, Protocol, TypedDict, Unpack, cast

from broker import DELIVERY, Delivery, Handler, RemoteError, error_frames, execute, failure, read_error
from titanic.client.request_queue import Found
from titanic.dispatch.attempts import AskWorkers, AttemptOutcome, Finish, KeepOutcomes, RecallRequest, Send
from titanic.dispatch.backlogs import Fetch
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.outcomes import completion_events, write_outcome
from titanic.errors import InvalidRequest, RequestFailed, TimedOut
from titanic.protocol.answers import Ended, standing, unknown
from titanic.protocol.documents import RequestInfo
from titanic.protocol.submit_options import MAX_PRIORITY, ManyOptions, Span, SubmitOptions, encode, epoch, seconds
from titanic.schedules import Schedule
from titanic.schedules.scheduler import submit_tick
from titanic.services.list_requests import as_document
from titanic.services.request_submit import parse_submit
from titanic.settings import ServerConfig
from titanic.store import Description, Pending, ReadyRow, Retention, Status, WriteTransaction, priority_in
from titanic.store.memory import MemoryStore
from titanic.util import ids
from titanic.util.text import counted

Body = bytes | str
BEGUN = 1000
"""Bytes of a body in `begin`."""

ENDLESS = 1 << 60
KEEP_ALL = Retention(reply_retention=0, dead_retention=0)


def _urgency(found: tuple[bytes, Sequence[ReadyRow]]) -> int:
    """The priority of the next request of a service; an empty answer comes first."""
    return priority_in(found[1][0].key) if found[1] else MAX_PRIORITY + 1


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
        self._store = MemoryStore(capacity=ENDLESS, keep_closed=False)
        self._running: dict[bytes, Delivery] = {}
        self._begun_us: dict[bytes, int] = {}
        """When the last attempt of requests in flight began."""
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
        with self._store.read() as transaction:
            due = transaction.next_due(skip=self._core.flights)
        times = [] if due is None else [due]
        if times or until < math.inf:  # schedules never end: do not wait for them alone
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
        with self._store.write() as transaction:
            self._notify(transaction, [uuid for uuid, _ in transaction.expire(now_us, ENDLESS, self._core.flights)])
            back = transaction.promote(now_us, ENDLESS)
            transaction.trim(now_us, KEEP_ALL, ENDLESS)
        self._core.returned({service for service, _ in back})
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
                found = [(fetch.service, self._fetch(fetch)) for fetch in core.take_fetches()]
                if found:
                    busy = True
                    service, rows = max(found, key=_urgency)  # the first of several: they take turns
                    core.fetched(service, rows, self._now, self._wall_us)
                    for send in core.take_sends(self._now, self._wall_us):
                        self._execute(send, served[send.service])
                        self._perform(served)
                self._perform(served)
        finally:
            self._depth -= 1

    def _fetch(self, fetch: Fetch) -> list[ReadyRow]:
        with self._store.read() as transaction:
            return transaction.next_ready(fetch.service, fetch.after, fetch.limit, ENDLESS, self._core.flights)

    def _execute(self, send: Send, handler: Handler) -> None:
        core, parts = self._core, list[bytes]()
        self._begun_us[send.uuid] = self._wall_us
        delivery = self._running[send.uuid] = Delivery(send.context, service=send.service)
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
                case RecallRequest(uuid):
                    core.kept(uuid)
                case KeepOutcomes(outcomes):
                    with self._store.write() as transaction:
                        for outcome in outcomes:
                            self._keep(transaction, outcome)
                    core.settled([outcome.uuid for outcome in outcomes])

    def _keep(self, transaction: WriteTransaction, outcome: AttemptOutcome) -> None:
        write_outcome(transaction, outcome, self._wall_us, self._begun_us.pop(outcome.uuid, 0))
        if isinstance(outcome, Finish):
            self._notify(transaction, [outcome.uuid])

    def _notify(self, transaction: WriteTransaction, ended: Sequence[bytes]) -> None:
        """Store the requests that follow because these have ended."""
        if new := completion_events(transaction, ended, {}):
            transaction.accept(new, self._wall_us)
            self._core.arrived({one.service: one.priority for one in new}, self._now)

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
        uniques: Iterable[str | None] | None = None,
        **options: Unpack[ManyOptions],
    ) -> list[str]:
        """As `Client.submit_many`."""
        every = [*bodies]
        own: list[dict[str, Any]] = [{**options} for _ in every]
        for name, values in (("key", keys), ("unique", uniques)):
            given = own if values is None else [*values]
            if len(given) != len(every):
                raise InvalidRequest(f"there are more {name}s than bodies, or fewer", "", "give one for each")
            if values is not None:
                own = [one if value is None else {**one, name: value} for one, value in zip(own, given, strict=True)]
        return [self._submit(service, [body], one) for body, one in zip(every, own, strict=True)]

    def _submit(self, service: Body, body: Iterable[Body], options: dict[str, Any]) -> str:
        now_us = self._wall_us
        frames = [one.encode() if isinstance(one, str) else one for one in (encode(options), service, *body)]
        try:
            requests = parse_submit(frames, now_us).requests
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        with self._store.write() as transaction:
            ((uuid, is_new),) = transaction.accept(requests, now_us, running=self._core.flights)
        if is_new and requests[0].not_before <= now_us:
            self._core.arrived({requests[0].service: requests[0].priority}, self._now)
        return uuid.hex() if is_new or not requests[0].unique else Found(uuid.hex())

    def reply(self, uuid: str) -> list[bytes] | None:
        """As `Client.reply`: executes what is due now."""
        self.run()
        with self._store.read() as transaction:
            found = transaction.reply(_id_of(uuid))
        if found is None:
            raise unknown(uuid)
        if isinstance(found, Pending):
            return None
        if found.status is Status.DONE:
            return [*found.frames]
        raise RequestFailed(found.reason, state=found.status.name.lower(), detail=[*found.frames])

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
                raise TimedOut(f"no reply yet to {counted(len(pending), 'request')}", "", self._advice(row))

    def change(
        self,
        uuid: str,
        *,
        priority: int | None = None,
        delay: Span | None = None,
        at: datetime | None = None,
        body: Sequence[Body] | None = None,
    ) -> None:
        """As `Client.change`."""
        due = None if delay is None else self._wall_us + round(seconds("delay", delay) * 1e6)
        if at is not None:
            due = round(epoch("at", at) * 1e6)
        with self._store.write() as transaction:
            frames = None if body is None else [one.encode() if isinstance(one, str) else one for one in body]
            changed = transaction.change(_id_of(uuid), self._wall_us, priority=priority, due=due, body=frames)
        if changed is None:
            raise InvalidRequest(f"request {uuid} cannot be changed", standing(self._info(self._row(uuid))))
        self._core.returned({changed[0]})

    def close(self, *uuids: str) -> None:
        """As `Client.close`."""
        with self._store.write() as transaction:
            closed = [uuid for uuid in map(_id_of, uuids) if transaction.close(uuid) is not None]
        self._core.closed(closed)
        for uuid in closed:
            if (delivery := self._running.get(uuid)) is not None:
                delivery.cancel()

    def close_many(self, uuids: Iterable[str]) -> None:
        """As `Client.close_many`."""
        self.close(*uuids)

    def find(self, keys: Iterable[str], flow: str | None = None) -> tuple[dict[str, str], dict[str, str]]:
        """As `Client.find`."""
        with self._store.write() as transaction:
            transaction.trim(self._wall_us, KEEP_ALL, ENDLESS)
            held = transaction.holders([key.encode() for key in keys])
            known = {key.decode(): uuid for key, uuid in held.items()}
            rows = [self._info(row) for uuid in known.values() if (row := transaction.describe(uuid)) is not None]
        return {key: uuid.hex() for key, uuid in known.items()}, {row["uuid"]: row["state"] for row in rows}

    def show(self, uuid: str) -> RequestInfo:
        """As `Client.show`."""
        return self._info(self._row(uuid))

    def requests(self, state: str | None = None) -> list[RequestInfo]:
        """All that is stored, oldest first; in one state. `begin` is the body's first 1,000 bytes as text: what a task
        was submitted with."""
        with self._store.read() as transaction:
            found = [self._info(row) for row in transaction.select(limit=ENDLESS)]
            for one in found:
                if (request := transaction.request(bytes.fromhex(one["uuid"]))) is not None:
                    one["begin"] = b" ".join(request.body)[:BEGUN].decode(errors="replace")
        return [one for one in found if state is None or one["state"] == state]

    def _info(self, row: Description) -> RequestInfo:
        return cast(RequestInfo, as_document(row, row.uuid in self._running))

    def _advice(self, row: Description) -> str:
        service = row.service.decode()
        if service not in self._app.handlers:
            return f"this app has no task or service {service}"
        if not self.has_worker:
            return "the queue has no worker until has_worker is set"
        return "give it more time, or advance the queue's clock"

    def _row(self, uuid: str) -> Description:
        with self._store.read() as transaction:
            row = transaction.describe(_id_of(uuid))
        if row is None:
            raise unknown(uuid)
        return row


def _id_of(uuid: str) -> bytes:
    """The id, or one that is unknown."""
    return ids.parse(ids.plain(uuid).encode()) or b""


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
        uniques: Iterable[str | None] | None = None,
        **options: Unpack[ManyOptions],
    ) -> list[str]:
        return self._queue.submit_many(service, bodies, keys=keys, uniques=uniques, **options)

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
