"""The connections to the server: one for each user who asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from broker import named, unreachable
from titanic.aio import Client
from titanic.aio.client import AsyncWire
from titanic.client.calls import Body
from titanic.errors import CallerError, Refused
from titanic.protocol import tsp
from titanic.protocol.submit_options import MOST_TOGETHER
from titanic.protocol.tsp import Frames
from titanic.util.files import state_of
from titanic.web.problems import Problem
from titanic.web.settings import WebSettings

LATE_AFTER = 1.0
"""Seconds without an answer after which somebody looks whether anybody is there."""

CONNECT_TIMEOUT = 1.5
"""Seconds that a connection may take to be made: a system that has too much to do lets one wait for a second."""

AWAY_FOR = 0.5
"""Seconds for which it holds that nobody is there."""

READS = (tsp.LIST, tsp.STATS, tsp.REPLY)
"""What is given up when nobody is there. What changes something goes on: it may have been done already, and of what is
sent again on the same connection nothing is done twice. What waits for a reply goes on, too, however long that is."""


class ServerMonitor:
    """What is known of one server, or of several that stand for each other, to all who ask them."""

    def __init__(self, endpoint: Sequence[str]) -> None:
        self._names = named(endpoint)
        self._reason = ""
        """Why nobody can be connected to; empty: somebody may be there."""
        self._looked = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._numbers = count()
        self._asked: dict[int, tuple[float, asyncio.Timeout | None]] = {}
        """When what has no answer yet was asked, and for reads, how they are given up."""
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def is_away(self) -> bool:
        """Whether nobody was there when it was last looked."""
        return self._reason != ""

    @property
    def error(self) -> Refused:
        """Tells who asks."""
        return Refused("the server is away", self._reason, "try again when it has been started")

    async def check(self) -> None:
        """Raise Refused when nobody is there, now."""
        if time.monotonic() - self._looked > AWAY_FOR:
            await asyncio.shield(self._look_soon())
        if self.is_away:
            raise self.error

    def begin(self, limit: asyncio.Timeout | None) -> int:
        """Something is asked; `limit`: how it is given up. Returns what `end` takes."""
        number = next(self._numbers)
        self._asked[number] = time.monotonic(), limit
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(LATE_AFTER, self._ring)
        return number

    def end(self, number: int) -> None:
        """It was answered, or given up."""
        del self._asked[number]

    def _ring(self) -> None:
        """Look when the oldest question waits for too long."""
        self._alarm = None
        if not self._asked:
            return
        left = next(iter(self._asked.values()))[0] + LATE_AFTER - time.monotonic()
        if left <= 0:
            self._look_soon()
        self._alarm = asyncio.get_running_loop().call_later(left if left > 0 else LATE_AFTER, self._ring)

    def _look_soon(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._looking

    async def _look(self) -> None:
        self._reason = await self._reason_now()
        self._looked = time.monotonic()
        if self.is_away:
            now = asyncio.get_running_loop().time()
            for _, limit in self._asked.values():
                if limit is not None and not limit.expired():
                    limit.reschedule(now)

    async def _reason_now(self) -> str:
        """Look at all places at the same time: one that is silent takes all of PATIENCE."""
        looks = [asyncio.to_thread(unreachable, [name], CONNECT_TIMEOUT) for name in self._names]
        reasons = []
        for look in asyncio.as_completed(looks):
            reasons.append(await look)
            if not reasons[-1]:  # somebody may be there: the others do not matter
                return ""
        return ", ".join(sorted(reasons))


class MonitoredWire(AsyncWire):
    """Asks nobody who is away."""

    def __init__(self, monitor: ServerMonitor, *given: Any) -> None:
        super().__init__(*given)
        self._monitor = monitor

    async def is_foreign(self, timeout: float) -> bool | None:
        """Whether a queue of another project is there: a gateway is for one of this project, and to ask takes long when
        nobody is there."""
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
            if not limit.expired():  # somebody is there, and takes too long
                raise
            raise self._monitor.error from None

    async def _ask(self, limit: asyncio.Timeout | None, *given: Any) -> Frames:
        number = self._monitor.begin(limit)
        try:
            return await super().call(*given)
        finally:
            self._monitor.end(number)


class MonitoredClient(Client):
    """A client whose wire is a WatchedWire."""

    def __init__(self, monitor: ServerMonitor, endpoint: Sequence[str], **more: Any) -> None:
        """`more`: as for the `Client`."""
        self._monitor = monitor
        super().__init__(endpoint, retries=2, **more)

    def _new_wire(self, *given: Any) -> AsyncWire:
        return MonitoredWire(self._monitor, *given)


SMALL_BODY = 4 << 10
"""Bytes of a body that is batched. Larger bodies gain nothing from it."""

MAX_MESSAGES = 6
"""Messages of a group in flight; submissions in the meantime form the next one."""

SubmissionKind = tuple[Client, str, tuple[tuple[str, Any], ...]]
"""What requests in one message share: client, service and options."""


class Submissions:
    """Batches submissions that differ only in their bodies."""

    def __init__(self) -> None:
        self._groups: dict[SubmissionKind, _SubmissionGroup] = {}

    @property
    def is_busy(self) -> bool:
        """Whether any submission is in progress."""
        return bool(self._groups)

    def submit(self, client: Client, service: str, body: bytes, options: dict[str, Any]) -> Awaitable[str]:
        """As `Client.submit`."""
        if len(body) > SMALL_BODY or "key" in options:
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
"""Connections at a time. With one more, that one is closed which nobody has used for the longest time."""

IDLE_TIMEOUT = 2 * 3600.0
"""Seconds after which one is closed that nobody uses. The figures of the last hour are asked for with one."""


@dataclass(slots=True, eq=False)
class UserClient:
    """The use of a user's client by one request after another."""

    client: Client
    key: tuple[int, ...]
    """What its key file was when it was read."""
    uses: int = 0
    """Requests that go on with it."""
    used: float = 0.0


class Clients:
    """Makes a client for a user when it is first needed, and keeps it. Each acts with the key of its user, so the
    server decides what he may do."""

    def __init__(
        self, settings: WebSettings, *, most: int = MAX_CLIENTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._most = most
        self._clock = clock
        self._clients: dict[str, UserClient] = {}
        self._monitor = ServerMonitor(settings.endpoint)

    def __len__(self) -> int:
        return len(self._clients)

    def acquire(self, user: str) -> UserClient:
        """The client of a user, until `give_back`; `user`: his name in the access file, or ANYBODY. Raises Problem
        when all are in use, broker.AccessError when the user's key cannot be read."""
        found = self._clients.get(user)
        if found is None:
            if len(self._clients) >= self._most:
                self._make_room()
            settings, key = self._settings, self._settings.key_of(user)
            more = {"timeout": settings.timeout, "key": key, "server_key": settings.server_key}
            client = MonitoredClient(self._monitor, settings.endpoint, **more)
            found = self._clients[user] = UserClient(client, state_of(key))
        found.uses += 1
        return found

    def release(self, found: UserClient) -> None:
        """A request is answered."""
        found.uses -= 1
        found.used = self._clock()

    def sweep(self) -> None:
        """Close what nobody has used for long, and what has another key by now."""
        now = self._clock()
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
            what, fact = "no room for another user", f"{self._most} users are being served"
            raise Problem(503, f"{what}: {fact}; try again later", headers={"Retry-After": "5"})
        self._close(min(idle, key=self._last_used))

    def _last_used(self, user: str) -> float:
        return self._clients[user].used

    def _close(self, user: str) -> None:
        self._clients.pop(user).client.disconnect()
