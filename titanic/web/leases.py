"""All leases, and those who wait for one.

Whoever takes is a worker of Majordomo of his own, registered while he waits, with the key of his user: so the server
gives a request only to who can begin it at once. When he leaves, the worker says good-bye; a request that crosses that
is given to another, and that was no attempt. When this process is killed, its connections break, and the server gives
what it had to others.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine

from broker import RemoteError, UsageError, WorkerConfig
from broker.aio import Worker
from titanic import RequestContext, current
from titanic.protocol.tsp import Frames
from titanic.web.auth.quota import Quota
from titanic.web.problems import Problem
from titanic.web.settings import WebSettings


class Lease:
    """One attempt of one request. The worker of Majordomo that has it awaits `reply`."""

    def __init__(self, user: str, context: RequestContext, body: Frames, seconds: float) -> None:
        self.id = secrets.token_urlsafe(18)
        self.user = user
        self.context = context
        self.body = body
        self.over = ""
        """Why it is over; "": it is not."""
        self.reply: asyncio.Future[Frames] = asyncio.get_running_loop().create_future()
        self.holds: Callable[[], bool]
        """Whether the broker still has it that the request is here."""
        self.told: Callable[[], Coroutine[None, None, bool]]
        """Whether the broker was told of the end, as soon as that is known."""
        self._until = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._seconds = seconds
        self.extend(seconds)

    @property
    def deadline(self) -> float:
        """When the attempt is over if nothing is said, in seconds since 1970."""
        until = time.time() + self._until - asyncio.get_running_loop().time()
        return until if self.context.deadline is None else min(until, self.context.deadline)

    def extend(self, seconds: float) -> None:
        """It lasts so long from now on."""
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            self._alarm.cancel()
        self._seconds, self._until = seconds, loop.time() + seconds
        self._alarm = loop.call_at(self._until, self._lapse)

    def end(self, why: str, outcome: Frames | RemoteError | None) -> None:
        """It is over: with a reply, with an error, or because the request is not here any more (None)."""
        if self.over:
            return
        self.over = why
        if self._alarm is not None:
            self._alarm.cancel()
        if self.reply.done():
            return
        if isinstance(outcome, RemoteError):
            self.reply.set_exception(outcome)
        elif outcome is not None:
            self.reply.set_result(outcome)
        else:
            self.reply.cancel()

    def _lapse(self) -> None:
        what, fact = "the lease lapsed", f"its worker said nothing for {self._seconds:g} s"
        self.end(what, RemoteError(500, f"{what}: {fact} (no :done, :failed or :extend)"))


MAX_LEASES = 400
MAX_LEASES_EACH = 200
"""Leases, and those who wait for one, at a time: of all users and of one. Each is a connection to the server, and
ZeroMQ takes a thousand sockets."""

REMEMBERED = 10_000
"""Leases that are over, of which it is known why."""

POLL_INTERVAL = 0.05
"""Seconds between looks at whether the server wants nobody to take."""

CONFIG = WorkerConfig(reconnect_first=0.2, reconnect_most=2.0)

UNKNOWN = (
    "this gateway does not know it: it was started since, another one gave the lease, or it ended long ago; if the "
    "gateway that gave it has ended, the server gives the request to another worker"
)
DONE = "it is :done"
LOST = "the connection to the server broke, and the server gives the request to another worker"

_SOON = {"Retry-After": "5"}


def _key(user: str, id_: str) -> str:
    return f"{user} {id_}"


def _over(why: str) -> Problem:
    return Problem(410, f"this lease is over: {why}; take the next request", title="Lease over")


def _shutting_down() -> Problem:
    return Problem(503, "this gateway is about to end; try again, perhaps at another one", headers=_SOON)


class Leases:
    """The leases of all users."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._leases: dict[str, Lease] = {}
        self._over: OrderedDict[str, str] = OrderedDict()
        """Why they are over."""
        self._takers: set[_Taker] = set()
        self._shutting_down = False
        self.quota = Quota("leases, and calls that wait for one", MAX_LEASES, MAX_LEASES_EACH)

    def __len__(self) -> int:
        return len(self._leases)

    async def take(self, user: str, service: str, wait: float, seconds: float) -> Lease | None:
        """A request of this service, for so many seconds; None: there was none in time. Raises Problem."""
        if service.startswith(("titanic.", "mmi.")):
            raise Problem(403, f"'{service}' is a name of the server's own; nobody takes its requests")
        if self._shutting_down:
            raise _shutting_down()
        self.quota.acquire(user)
        try:
            taker = _Taker(self, user, service, seconds)
        except BaseException:
            self.quota.release(user)
            raise
        self._takers.add(taker)
        return await taker.take(wait)

    def find(self, user: str, id_: str) -> Lease:
        """A user's lease, to be ended or extended. Raises Problem 410."""
        lease = self._leases.get(id_)
        if lease is not None and lease.user == user:
            if lease.holds():
                return lease
            self._end(lease, LOST, RemoteError(500, LOST))  # nobody is told
        why = self._over.get(_key(user, id_), UNKNOWN)
        raise _over(why)

    def is_done(self, user: str, id_: str) -> bool:
        """Whether this lease ended with a reply: a worker who lost the answer says `:done` again."""
        return self._over.get(_key(user, id_)) == DONE

    async def done(self, lease: Lease, reply: Frames) -> None:
        """The request has a reply. Raises Problem 410 when the server did not take it."""
        await self._tell(lease, DONE, reply)

    async def failed(self, lease: Lease, error: RemoteError) -> None:
        """The attempt has failed. Raises Problem 410 when the server did not take that."""
        await self._tell(lease, "it is :failed", error)

    def end_waiting(self) -> None:
        """Let nobody wait any more: this process is about to end."""
        self._shutting_down = True
        for taker in self._takers:
            taker.send_away()

    async def end(self) -> None:
        """Give back what there is: the server gives it to other workers."""
        self.end_waiting()
        running = [taker.running for taker in self._takers]
        for taker in self._takers:
            taker.worker.abandon()
        if running:
            await asyncio.wait(running)

    async def _tell(self, lease: Lease, why: str, outcome: Frames | RemoteError) -> None:
        self._end(lease, why, outcome)
        if not await lease.told():
            self._over[_key(lease.user, lease.id)] = LOST
            raise _over(LOST)

    def _end(self, lease: Lease, why: str, outcome: Frames | RemoteError | None) -> None:
        lease.end(why, outcome)
        self._forget(lease)

    def _begin(self, lease: Lease) -> None:
        self._leases[lease.id] = lease

    def _forget(self, lease: Lease) -> None:
        if self._leases.pop(lease.id, None) is not None:
            self._over[_key(lease.user, lease.id)] = lease.over
            if len(self._over) > REMEMBERED:
                self._over.popitem(last=False)


class _LeaseWorker(Worker):
    _passes_on = True


class _Taker:
    """One worker of Majordomo for one request."""

    def __init__(self, leases: Leases, user: str, service: str, seconds: float) -> None:
        self._leases = leases
        self._user = user
        self._service = service
        self._seconds = seconds
        settings = leases._settings
        try:
            self.worker = _LeaseWorker(
                service,
                self._work,
                settings.endpoint,
                config=CONFIG,
                key=settings.key_of(user),
                server_key=settings.server_key,
            )
        except UsageError as error:
            raise Problem(400, str(error)) from error
        self._where = " or ".join(settings.endpoint)
        self._taken: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._registered = False
        self.worker.every(POLL_INTERVAL, self._look)
        self.running = asyncio.create_task(self.worker.run())

    async def take(self, wait: float) -> Lease | None:
        """The request that comes within so many seconds."""
        self.running.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(wait):
                return await self._taken
        except TimeoutError:
            if (lease := self._lease()) is not None:  # it came in the last moment
                return lease
            self.worker.stop()
            if not self._registered:
                detail = f"nobody answered at {self._where}; waited {wait:g} s; try again later"
                raise Problem(503, detail, headers=_SOON) from None
            return None
        except BaseException:  # whoever waited has left, or is sent away
            self.worker.abandon()
            raise
        finally:
            self._taken.cancel()

    def _lease(self) -> Lease | None:
        taken = self._taken
        return taken.result() if taken.done() and not taken.cancelled() and taken.exception() is None else None

    def send_away(self) -> None:
        """Let nobody wait here any more."""
        if not self._taken.done():
            self._taken.set_exception(_shutting_down())

    def _look(self) -> None:
        """Called now and then while the worker runs."""
        session = self.worker.sessions[0]
        self._registered = self._registered or session.registered
        if session.refused and not self._taken.done():
            name = self._service
            what = f"the server lets nobody take requests of '{name}' with the key that is used here"
            why = f'the user may lack work = ["{name}"], or there are too many workers'
            self._taken.set_exception(Problem(403, f"{what}; {why}; ask who runs this Titanic"))

    async def _work(self, frames: Frames) -> Frames:
        if self._taken.done():  # whoever waited has left just now: to another worker with it, as no attempt
            self.worker.abandon()
            await asyncio.Event().wait()  # until that has ended this
        self.worker.stop()  # nothing after this
        lease = Lease(self._user, current(), frames, self._seconds)
        lease.holds, lease.told = self._holds, self._told
        self._leases._begin(lease)
        self._taken.set_result(lease)
        try:
            return await lease.reply
        except asyncio.CancelledError:
            why = "the request was closed" if lease.context.cancelled else "it was given back to the server"
            lease.end(why, None)
            raise
        finally:
            self._leases._forget(lease)

    def _holds(self) -> bool:
        return not self.worker.sessions[0].stranded

    async def _told(self) -> bool:
        await asyncio.wait({self.running})
        return not self.worker.sessions[0].dropped_replies

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._leases._takers.discard(self)
        self._leases.quota.release(self._user)
        if not task.cancelled() and (error := task.exception()) is not None and not self._taken.done():
            self._taken.set_exception(Problem(503, str(error), headers=_SOON))
