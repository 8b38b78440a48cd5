"""The leases of HTTP workers, and the calls that wait for one.

Each call is an MDP worker of its own, registered with the key of its user while the call waits. So the server sends
requests only to workers that can start them at once. When the caller disconnects, the worker disconnects; a request
that is sent at that moment goes to another worker and does not count as an attempt. When this process is killed, its
connections break, and the server gives its requests to other workers.
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
    """One attempt of one request. The MDP worker that has the request awaits `reply`."""

    def __init__(self, user: str, context: RequestContext, body: Frames, seconds: float) -> None:
        self.id = secrets.token_urlsafe(18)
        self.user = user
        self.context = context
        self.body = body
        self.over = ""
        """Why it ended; empty while it is active."""
        self.reply: asyncio.Future[Frames] = asyncio.get_running_loop().create_future()
        self.holds: Callable[[], bool]
        """Whether the broker still assigns the request to this worker."""
        self.was_delivered: Callable[[], Coroutine[None, None, bool]]
        """Whether the broker received the outcome; returns as soon as that is known."""
        self._until = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._seconds = seconds
        self.extend(seconds)

    @property
    def deadline(self) -> float:
        """When the attempt times out, in seconds since 1970."""
        until = time.time() + self._until - asyncio.get_running_loop().time()
        return until if self.context.deadline is None else min(until, self.context.deadline)

    def extend(self, seconds: float) -> None:
        """Let it last so many seconds from now."""
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            self._alarm.cancel()
        self._seconds, self._until = seconds, loop.time() + seconds
        self._alarm = loop.call_at(self._until, self._lapse)

    def end(self, why: str, outcome: Frames | RemoteError | None) -> None:
        """End it with a reply, with an error, or because the request is no longer here (None)."""
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
        what, fact = "the lease lapsed", f"its worker was silent for {self._seconds:g} s"
        self.end(what, RemoteError(500, f"{what}: {fact} (no :done, :failed or :extend)"))


MAX_LEASES = 400
MAX_LEASES_EACH = 200
"""Maximum number of leases and waiting calls, of all users and of one. Each is a connection to the server, and ZeroMQ
allows about a thousand sockets."""

REMEMBERED = 10_000
"""Ended leases that are remembered, with the reason."""

POLL_INTERVAL = 0.05
"""Seconds between two checks of whether the server refuses the worker."""

CONFIG = WorkerConfig(reconnect_first=0.2, reconnect_most=2.0)

UNKNOWN = (
    "this gateway does not know it: it was restarted, another gateway granted the lease, or it ended long ago; if that "
    "gateway was stopped, the server gives the request to another worker"
)
DONE = "it is :done"
LOST = "the connection to the server broke, and the server gives the request to another worker"

_SOON = {"Retry-After": "5"}


def _key(user: str, id_: str) -> str:
    return f"{user} {id_}"


def _over(why: str) -> Problem:
    return Problem(410, f"this lease is over: {why}; take the next request", title="Lease over")


def _shutting_down() -> Problem:
    return Problem(503, "this gateway is shutting down; try again, or use another one", headers=_SOON)


class Leases:
    """The leases of all users."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._leases: dict[str, Lease] = {}
        self._over: OrderedDict[str, str] = OrderedDict()
        """Why each ended."""
        self._takers: set[_Taker] = set()
        self._shutting_down = False
        self.quota = Quota("leases, and calls that wait for one", MAX_LEASES, MAX_LEASES_EACH)

    def __len__(self) -> int:
        return len(self._leases)

    async def take(self, user: str, service: str, wait: float, seconds: float) -> Lease | None:
        """Lease a request of this service for so many seconds; None: none arrived in time. Raises Problem."""
        if service.startswith(("titanic.", "mmi.")):
            raise Problem(403, f"'{service}' is reserved for the server; its requests cannot be leased")
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
        """Find a user's active lease. Raises Problem 410."""
        lease = self._leases.get(id_)
        if lease is not None and lease.user == user:
            if lease.holds():
                return lease
            self._end(lease, LOST, RemoteError(500, LOST))  # the error reaches no one: the connection is gone
        why = self._over.get(_key(user, id_), UNKNOWN)
        raise _over(why)

    def is_done(self, user: str, id_: str) -> bool:
        """Whether this lease ended with a reply. A worker that missed the answer repeats `:done`."""
        return self._over.get(_key(user, id_)) == DONE

    async def done(self, lease: Lease, reply: Frames) -> None:
        """End a lease with a reply. Raises Problem 410 when the server did not receive it."""
        await self._finish(lease, DONE, reply)

    async def failed(self, lease: Lease, error: RemoteError) -> None:
        """End a lease with an error. Raises Problem 410 when the server did not receive it."""
        await self._finish(lease, "it is :failed", error)

    def end_waiting(self) -> None:
        """End all waiting calls: this process is shutting down."""
        self._shutting_down = True
        for taker in self._takers:
            taker.cancel()

    async def end(self) -> None:
        """Return all requests to the server, which gives them to other workers."""
        self.end_waiting()
        running = [taker.running for taker in self._takers]
        for taker in self._takers:
            taker.worker.abandon()
        if running:
            await asyncio.wait(running)

    async def _finish(self, lease: Lease, why: str, outcome: Frames | RemoteError) -> None:
        self._end(lease, why, outcome)
        if not await lease.was_delivered():
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
    """The MDP worker of one call."""

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
        self.worker.every(POLL_INTERVAL, self._check_session)
        self.running = asyncio.create_task(self.worker.run())

    async def take(self, wait: float) -> Lease | None:
        """Wait so many seconds for a request."""
        self.running.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(wait):
                return await self._taken
        except TimeoutError:
            if (lease := self._lease()) is not None:  # it arrived at the last moment
                return lease
            self.worker.stop()
            if not self._registered:
                detail = f"no server answered at {self._where}; waited {wait:g} s; try again later"
                raise Problem(503, detail, headers=_SOON) from None
            return None
        except BaseException:  # the caller disconnected, or the call was cancelled
            self.worker.abandon()
            raise
        finally:
            self._taken.cancel()

    def _lease(self) -> Lease | None:
        taken = self._taken
        return taken.result() if taken.done() and not taken.cancelled() and taken.exception() is None else None

    def cancel(self) -> None:
        """End the call, if it still waits."""
        if not self._taken.done():
            self._taken.set_exception(_shutting_down())

    def _check_session(self) -> None:
        """End the call if the server refuses the worker. Called periodically."""
        session = self.worker.sessions[0]
        self._registered = self._registered or session.registered
        if session.refused and not self._taken.done():
            name = self._service
            what = f"the server refuses workers of '{name}' with this key"
            why = f'the user may lack work = ["{name}"], or there are too many workers'
            self._taken.set_exception(Problem(403, f"{what}; {why}; contact the administrator"))

    async def _work(self, frames: Frames) -> Frames:
        if self._taken.done():  # the caller has just disconnected: return the request without counting an attempt
            self.worker.abandon()
            await asyncio.Event().wait()  # until `abandon` cancels this
        self.worker.stop()  # accept no further request
        lease = Lease(self._user, current(), frames, self._seconds)
        lease.holds, lease.was_delivered = self._holds, self._was_delivered
        self._leases._begin(lease)
        self._taken.set_result(lease)
        try:
            return await lease.reply
        except asyncio.CancelledError:
            why = "the request was closed" if lease.context.cancelled else "it was returned to the server"
            lease.end(why, None)
            raise
        finally:
            self._leases._forget(lease)

    def _holds(self) -> bool:
        return not self.worker.sessions[0].stranded

    async def _was_delivered(self) -> bool:
        await asyncio.wait({self.running})
        return not self.worker.sessions[0].dropped_replies

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._leases._takers.discard(self)
        self._leases.quota.release(self._user)
        if not task.cancelled() and (error := task.exception()) is not None and not self._taken.done():
            self._taken.set_exception(Problem(503, str(error), headers=_SOON))
