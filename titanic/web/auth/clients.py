"""The connections to the server: one for each active user."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar, Unpack

from broker import BrokerError, named, unreachable
from titanic.aio import Client
from titanic.aio.client import AsyncWire
from titanic.client.calls import Body
from titanic.errors import CallerError, Refused, TimedOut, TitanicError
from titanic.facts.audit import Audit
from titanic.protocol import tsp
from titanic.protocol.documents import RequestInfo
from titanic.protocol.submit_options import MOST_TOGETHER, MOST_UUIDS, SubmitOptions
from titanic.protocol.tsp import Frames
from titanic.util.files import state_of
from titanic.web.problems import HTTPProblem
from titanic.web.settings import WebSettings

LATE_TIMEOUT = 1.0
"""Seconds without an answer after which the server is polled."""

CONNECT_TIMEOUT = 1.5
"""Timeout for connecting: an overloaded system may need a second."""

AWAY_TTL = 0.5
"""Seconds for which the result of a poll is cached."""

READS = (tsp.LIST, tsp.STATS, tsp.REPLY, b"mmi.service")
"""Calls that fail when the server is away. Calls that change something go on: the change may have been made already,
and a repeat on the same connection makes it only once. Calls that wait for a reply go on, too, without a limit."""


class ServerMonitor:
    """Whether a server, or any of several equivalent ones, is reachable; shared by all clients."""

    def __init__(self, endpoint: Sequence[str]) -> None:
        self._names = named(endpoint)
        self._reason = ""
        """Why no server is reachable; empty: one may be."""
        self._polled_at = 0.0
        self._polling: asyncio.Task[None] | None = None
        self._numbers = count()
        self._pending: dict[int, tuple[float, asyncio.Timeout | None]] = {}
        """The start of each pending call, and the timeout that ends it if it is a read."""
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def is_away(self) -> bool:
        """Whether no server was reachable at the last poll."""
        return self._reason != ""

    @property
    def error(self) -> Refused:
        """The error of calls while the server is away."""
        return Refused("the server cannot be reached", self._reason, "try again later")

    async def check(self) -> None:
        """Raise Refused when no server is reachable now."""
        if time.monotonic() - self._polled_at > AWAY_TTL:
            await asyncio.shield(self._poll_soon())
        if self.is_away:
            raise self.error

    def begin(self, limit: asyncio.Timeout | None) -> int:
        """Register a call; `limit`: the timeout that ends a read. Returns a number for `end`."""
        number = next(self._numbers)
        self._pending[number] = time.monotonic(), limit
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(LATE_TIMEOUT, self._ring)
        return number

    def end(self, number: int) -> None:
        """Unregister a call."""
        del self._pending[number]

    def _ring(self) -> None:
        """Poll the server if the oldest pending call is late."""
        self._alarm = None
        if not self._pending:
            return
        left = next(iter(self._pending.values()))[0] + LATE_TIMEOUT - time.monotonic()
        if left <= 0:
            self._poll_soon()
        self._alarm = asyncio.get_running_loop().call_later(left if left > 0 else LATE_TIMEOUT, self._ring)

    def _poll_soon(self) -> asyncio.Task[None]:
        if self._polling is None or self._polling.done():
            self._polling = asyncio.get_running_loop().create_task(self._poll())
        return self._polling

    async def _poll(self) -> None:
        self._reason = await self._reason_now()
        self._polled_at = time.monotonic()
        if self.is_away:
            now = asyncio.get_running_loop().time()
            for _, limit in self._pending.values():
                if limit is not None and not limit.expired():
                    limit.reschedule(now)

    async def _reason_now(self) -> str:
        """Poll all endpoints concurrently: a silent one takes all of CONNECT_TIMEOUT."""
        polls = [asyncio.to_thread(unreachable, [name], CONNECT_TIMEOUT) for name in self._names]
        reasons = []
        for poll in asyncio.as_completed(polls):
            reasons.append(await poll)
            if not reasons[-1]:  # this endpoint may be reachable: the others do not matter
                return ""
        return ", ".join(sorted(reasons))


class MonitoredWire(AsyncWire):
    """A wire that fails all calls while the server is unavailable."""

    def __init__(self, monitor: ServerMonitor, *given: Any) -> None:
        super().__init__(*given)
        self._monitor = monitor

    async def is_foreign(self, timeout: float) -> bool | None:
        """False: a gateway always serves a queue of this project, and checking takes long while the server is away."""
        return False

    async def call(self, service: Body, body: Sequence[Body], timeout: float | None, retries: int | None) -> Frames:
        if self._monitor.is_away:
            await self._monitor.check()
        if service == tsp.WAIT:
            return await super().call(service, body, timeout, retries)
        if service not in READS:
            return await self._ask(None, service, body, timeout, retries)
        try:
            async with asyncio.timeout(None) as limit:
                return await self._ask(limit, service, body, timeout, retries)
        except TimeoutError:
            if not limit.expired():  # the server is reachable, but takes too long
                raise
            raise self._monitor.error from None

    async def _ask(self, limit: asyncio.Timeout | None, *given: Any) -> Frames:
        number = self._monitor.begin(limit)
        try:
            return await super().call(*given)
        finally:
            self._monitor.end(number)


class MonitoredClient(Client):
    """A client with a MonitoredWire."""

    def __init__(self, monitor: ServerMonitor, endpoint: Sequence[str], **more: Any) -> None:
        """`more`: options of `Client`."""
        self._monitor = monitor
        super().__init__(endpoint, retries=2, **more)

    def _new_wire(self, *given: Any) -> AsyncWire:
        return MonitoredWire(self._monitor, *given)


SMALL_BODY = 4 << 10
"""Bytes of a body that is batched. Larger bodies gain nothing from it."""

MAX_MESSAGES = 2
"""Messages of a group in flight; submissions in the meantime form the next one. While the server syncs one, the other
is received; more would be smaller, and cost each request more."""

SubmissionKind = tuple[Client, str, tuple[tuple[str, Any], ...]]
"""What requests in one message share: client, service and options."""


class Submissions:
    """Batches submissions that differ only in their bodies."""

    def __init__(self) -> None:
        self._groups: dict[SubmissionKind, _SubmissionGroup] = {}

    def submit(self, client: Client, service: str, body: bytes, options: dict[str, Any]) -> Awaitable[str]:
        """Submit a request like `Client.submit`."""
        if len(body) > SMALL_BODY or not options.keys().isdisjoint(("key", "unique")):
            return client.submit(service, body, **options)
        kind = client, service, tuple(options.items())
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = _SubmissionGroup(self._groups, kind)
        return group.add(body)


class _SubmissionGroup:
    """Submissions of one kind, while any is in progress."""

    def __init__(self, groups: dict[SubmissionKind, _SubmissionGroup], kind: SubmissionKind) -> None:
        self._groups = groups
        self._kind = kind
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[bytes, asyncio.Future[str]]] = []
        self._messages: set[asyncio.Task[None]] = set()
        self._due = False
        """Whether a message is sent at the end of this iteration of the loop."""

    def add(self, body: bytes) -> asyncio.Future[str]:
        """Return a future of the UUID, which is set once the request is stored."""
        future = self._loop.create_future()
        self._waiting.append((body, future))
        if not self._due and len(self._messages) < MAX_MESSAGES:
            self._due = True
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._due = False
        some, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
        task = self._loop.create_task(self._send(some))
        self._messages.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._messages.discard(task)
        if self._waiting and not self._due:
            self._due = True
            self._loop.call_soon(self._flush)
        elif not self._messages and not self._due:
            del self._groups[self._kind]

    async def _send(self, some: list[tuple[bytes, asyncio.Future[str]]]) -> None:
        client, service, options = self._kind
        try:
            uuids = await client.submit_batch(service, [body for body, _ in some], **dict(options))
        except (CallerError, Refused) as error:
            if len(some) == 1:
                _fail(some, error)
            else:  # none was stored, perhaps because of a single one: try each
                for one in some:
                    await self._send([one])
        except Exception as error:
            _fail(some, error)
        else:
            for (_, future), uuid in zip(some, uuids, strict=True):
                if not future.done():
                    future.set_result(uuid)


def _fail(some: list[tuple[bytes, asyncio.Future[str]]], error: Exception) -> None:
    for _, future in some:
        if not future.done():
            future.set_exception(error)


ANYBODY = ""
"""The user when there is no access file."""

MAX_CLIENTS = 1000
"""Maximum number of connections. Beyond that, the least recently used one is closed."""

IDLE_TIMEOUT = 2 * 3600.0
"""Seconds after which an unused connection is closed. Longer than an hour, because statistics are polled for an hour
with the last visitor's connection."""


@dataclass(slots=True, eq=False)
class UserClient:
    """A user's client, and its use by requests."""

    client: Client
    key: tuple[int, ...]
    """The state of its key file when it was read."""
    uses: int = 0
    """Requests that use it now."""
    used: float = 0.0
    closed: bool = False
    """Requests that still use it fail."""


class Clients:
    """One client for each user, made on first use. It connects with the user's key, so the server checks the user's
    permissions."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._clients: dict[str, UserClient] = {}
        self._monitor = ServerMonitor(settings.endpoint)

    def __len__(self) -> int:
        return len(self._clients)

    def acquire(self, user: str) -> UserClient:
        """Acquire the client of a user until `release`. `user`: a name in the access file, or ANYBODY. Raises
        HTTPProblem when all clients are in use, broker.AccessError when the user's key cannot be read."""
        found = self._clients.get(user)
        if found is None:
            if len(self._clients) >= MAX_CLIENTS:
                self._make_room()
            settings, key = self._settings, self._settings.key_of(user)
            more = {"timeout": settings.timeout, "key": key, "server_key": settings.server_key}
            client = MonitoredClient(self._monitor, settings.endpoint, **more)
            found = self._clients[user] = UserClient(client, state_of(key))
        found.uses += 1
        return found

    def release(self, found: UserClient) -> None:
        """Release a client after a request."""
        found.uses -= 1
        found.used = time.monotonic()

    async def report(self, audit: Audit, reporter: str | None) -> None:
        """Send the server what `audit` has of refusals here, as the user `reporter`, who may state addresses. Without
        one, or without an answer, it is kept."""
        if reporter is None or not (taken := audit.take_refusals()):
            return
        rows = [
            {"minute": minute, "address": address, "count": one.count, "user": one.user, "action": one.action}
            for (minute, address), one in taken.items()
        ]
        try:
            found = self.acquire(reporter)
            try:
                for begin in range(0, len(rows), MOST_UUIDS):
                    part = {"do": "refused", "rows": rows[begin : begin + MOST_UUIDS]}
                    await found.client.call(tsp.ADMIN, json.dumps(part).encode())
            finally:
                self.release(found)
        except (TitanicError, BrokerError, HTTPProblem):
            for (minute, address), one in taken.items():
                audit.refused(one.user, one.action, address, one.count, minute)

    def sweep(self) -> None:
        """Close clients that are idle, and those with a changed key."""
        now = time.monotonic()
        for user, found in list(self._clients.items()):
            idle = found.uses == 0 and now - found.used > IDLE_TIMEOUT
            if idle or found.key != state_of(self._settings.key_of(user)):
                self._close(user)

    def close(self) -> None:
        """Close all connections."""
        for user in list(self._clients):
            self._close(user)

    def _make_room(self) -> None:
        idle = [user for user, found in self._clients.items() if found.uses == 0]
        if not idle:
            what, fact = "too many users", f"{MAX_CLIENTS} are being served"
            raise HTTPProblem(503, f"{what}: {fact}; try again later", headers={"Retry-After": "5"})
        self._close(min(idle, key=lambda user: self._clients[user].used))

    def _close(self, user: str) -> None:
        found = self._clients.pop(user)
        found.closed = True
        found.client.disconnect()


T = TypeVar("T")

TIMEOUT = 5.0
"""Seconds that a function may take in all."""


class SyncClient:
    """The methods of `titanic.Client` that such functions call, in one thread beside the event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._deadline = time.monotonic() + TIMEOUT

    def find(self, keys: Sequence[str], flow: str | None = None) -> tuple[dict[str, str], dict[str, str]]:
        """As `titanic.Client.find`."""
        return self._call(self._client.find(keys, flow))

    def show(self, uuid: str) -> RequestInfo:
        """As `titanic.Client.show`."""
        return self._call(self._client.show(uuid))

    def submit(self, service: Body, *body: Body, **options: Unpack[SubmitOptions]) -> str:
        """As `titanic.Client.submit`."""
        return self._call(self._client.submit(service, *body, **options))

    def close(self, *uuids: str) -> object:
        """As `titanic.Client.close`."""
        return self._call(self._client.close(*uuids))

    def _call(self, call: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            future.cancel()
            raise TimedOut("this takes too long", f"more than {TIMEOUT:g} s", "try again") from None


async def call_sync(client: Client, function: Callable[..., T], *arguments: Any) -> T:
    """Call `function` in a thread with a client and `arguments`. Raises TimedOut."""
    return await asyncio.to_thread(function, SyncClient(client), *arguments)
