"""HTTP workers: lease a request, and report how it ended.

A lease is one attempt. If there is no `:done`, `:failed` or `:extend` before it lapses, the attempt has failed.

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
from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from broker import RemoteError, UsageError, WorkerConfig
from broker.aio import Worker
from titanic import Failed, RequestContext, Retry, current
from titanic.protocol.submit_options import MOST_SECONDS
from titanic.protocol.tsp import Frames
from titanic.util.text import quoted
from titanic.web.api.openapi import (
    ANY_ANSWER,
    ANY_BODY,
    ExtendedLease,
    answer,
    endpoint,
    header,
    parameter,
    schema,
    wrong,
)
from titanic.web.api.requests import (
    DECLARED,
    REPLY_TYPE,
    frames_response,
    guess_type,
    unless_disconnected,
)
from titanic.web.api.resource import ApiRoute, json_response, max_body, query_of, read_body
from titanic.web.api.services import read_service
from titanic.web.app_state import UserQuota, visitor_of
from titanic.web.problems import HTTPProblem
from titanic.web.request_headers import read_number, trace_headers
from titanic.web.settings import WebSettings

MAX_TAKE_WAIT = 60.0
MAX_LEASE = 3600.0
MIN_LEASE = 1.0
"""Minimum duration of a lease, and of the wait for one: connecting to the server takes time, too."""

MAX_TEXT = 64 << 10
"""Maximum bytes of the description of a failure."""

FORM = "application/x-www-form-urlencoded"
"""The content type that curl sends with any body: it does not describe a reply."""


def leases_of(request: Request) -> Leases:
    """The leases of the application that serves a request."""
    leases: Leases = request.app.leases
    return leases


async def post_take(request: Request) -> Response:
    """Lease a request; 204: none arrived in time."""
    given = query_of(request)
    wait = max(MIN_LEASE, read_number("wait", given.get("wait", "30"), 0, MAX_TAKE_WAIT))
    seconds = _lease_time(given)
    service = read_service(request)
    leases, user = leases_of(request), visitor_of(request).user
    await read_body(request, MAX_TEXT)  # it is ignored
    lease = await unless_disconnected(request.receive, leases.take(user, service, wait, seconds))
    return Response(status_code=204) if lease is None else _leased(lease)


def _leased(lease: RequestLease) -> Response:
    context = lease.context
    more = {"Titanic-Lease": lease.id, "Titanic-Deadline": _time(lease.deadline)}
    if context:  # plain calls are not stored: they have neither a UUID nor attempts
        more |= {"Titanic-Request": context.uuid, "Titanic-Attempt": str(context.attempt)}
    more |= trace_headers(context)
    return frames_response(lease.body, more, type=context.type)


async def post_done(request: Request) -> Response:
    """Reply to the request with the body; 204: the server has it."""
    visitor, leases = visitor_of(request), leases_of(request)
    body = b""
    if not leases.is_done(visitor.user, _id(request)):
        leases.find(visitor.user, _id(request))  # before a large body is read
        body = await read_body(request, await max_body(request, visitor.client))
    if not leases.is_done(visitor.user, _id(request)):  # nor by another call while this one's body arrived
        await leases.done(leases.find(visitor.user, _id(request)), _reply(request, body))
    return Response(status_code=204)


def _reply(request: Request, body: bytes) -> Frames:
    """The frames of a reply. A frame with the content type precedes it, unless the type is the one that is guessed."""
    type = request.headers.get("content-type", FORM)
    if type.partition(";")[0].strip().lower() == FORM or _plain(type) == _plain(guess_type(body)):
        return [body]
    frame = DECLARED + type.encode("latin-1")
    if not REPLY_TYPE.fullmatch(frame.removeprefix(DECLARED)):
        raise HTTPProblem(400, f"Content-Type is {quoted(type)}; write it like image/png, or leave it out")
    return [frame, body]


def _plain(type: str) -> str:
    return type.lower().replace(" ", "")


async def post_failed(request: Request) -> Response:
    """Fail the attempt. The first line of the body is the reason, the rest is stored as detail."""
    given = query_of(request)
    fatal = given.get("fatal", "false")
    if fatal not in ("true", "false"):
        raise HTTPProblem(400, f"fatal is {quoted(fatal)}; write true or false")
    after = read_number("retry-after", given["retry-after"], 0, MOST_SECONDS) if "retry-after" in given else None
    if fatal == "true" and after is not None:
        raise HTTPProblem(400, "fatal and retry-after cannot be combined; a fatal failure is not retried")
    leases, user = leases_of(request), visitor_of(request).user
    text = (await read_body(request, MAX_TEXT)).decode(errors="replace").strip()
    lease = leases.find(user, _id(request))
    first, _, rest = text.partition("\n")
    await leases.failed(lease, _failure(first.strip() or "failed", rest, after, fatal=fatal == "true"))
    return Response(status_code=204)


def _failure(text: str, rest: str, after: float | None, *, fatal: bool) -> RemoteError:
    detail = [rest] if rest.strip() else []
    if fatal:
        return Failed(text, *detail)
    return (
        RemoteError(500, text, [one.encode() for one in detail]) if after is None else Retry(text, *detail, after=after)
    )


async def post_extend(request: Request) -> Response:
    """Extend the lease: it lasts so many seconds from now."""
    seconds = _lease_time(query_of(request))
    lease = leases_of(request).find(visitor_of(request).user, _id(request))
    lease.extend(seconds)
    uuid = lease.context.uuid if lease.context else ""
    return json_response({"lease": lease.id, "request": uuid, "deadline": _time(lease.deadline)})


def _lease_time(given: dict[str, str]) -> float:
    return read_number("lease", given.get("lease", "60"), MIN_LEASE, MAX_LEASE)


def _id(request: Request) -> str:
    id_: str = request.path_params["lease"]
    return id_


def _time(seconds: float) -> str:
    """Format a time as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(name: str, text: str, most: float, least: float = 0) -> dict[str, Any]:
    return parameter("query", name, text, Annotated[float, Meta(ge=least, le=most)])


_LASTS = _seconds("lease", "Duration of the lease in seconds; default: 60.", MAX_LEASE, MIN_LEASE)
_TAKEN = {
    "Titanic-Lease": header("The id of the lease, for reporting its end."),
    "Titanic-Deadline": header("When the lease ends (RFC 3339)."),
    "Titanic-Request": header("The UUID; absent for a plain call.", required=False),
    "Titanic-Attempt": header("The number of this attempt, from 1.", required=False),
    "traceparent": header("The trace that it belongs to.", required=False),
    "tracestate": header("What tracing systems note beside it.", required=False),
}
_WAIT = "Seconds to wait for a request; default: 30. At least one second, because connecting takes time."
_TEXT: dict[str, Any] = {
    "content": {
        "text/plain": {"schema": schema(Annotated[str, Meta(max_length=MAX_TEXT // 4)])},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary", "maxLength": MAX_TEXT // 4}},
    }
}


_ENDED = {"204": answer("The server has accepted it."), **wrong(410, 413)}

ROUTES = [
    ApiRoute(
        "/v1/services/{service}:take",
        POST=endpoint(
            post_take,
            "take",
            "Lease a request to work on",
            {
                "200": answer(
                    "Its body, with the content type of its submission, or a guessed one.",
                    headers=_TAKEN,
                    content=ANY_ANSWER,
                ),
                "204": answer("No request arrived in time."),
                **wrong(413),
            },
            parameters=[_seconds("wait", _WAIT, MAX_TAKE_WAIT), _LASTS],
        ),
    ),
    ApiRoute(
        "/v1/leases/{lease}:done",
        POST=endpoint(
            post_done, "done", "Reply to the request with the body", _ENDED, requestBody={"content": ANY_BODY}
        ),
    ),
    ApiRoute(
        "/v1/leases/{lease}:failed",
        POST=endpoint(
            post_failed,
            "failed",
            "Fail the attempt: the first line of the body is the reason",
            _ENDED,
            requestBody=_TEXT,
            parameters=[
                parameter("query", "fatal", "Do not retry it.", bool),
                _seconds("retry-after", "Seconds until it is retried.", MOST_SECONDS),
            ],
        ),
    ),
    ApiRoute(
        "/v1/leases/{lease}:extend",
        POST=endpoint(
            post_extend,
            "extend",
            "Extend a lease",
            {"200": answer("The new deadline.", ExtendedLease), **wrong(410)},
            parameters=[_LASTS],
        ),
    ),
]


class RequestLease:
    """One attempt of one request. The MDP worker that has the request awaits `reply`."""

    def __init__(self, call: _Taker, user: str, context: RequestContext, body: Frames, seconds: float) -> None:
        self.call = call
        self.id = secrets.token_urlsafe(18)
        self.user = user
        self.context = context
        self.body = body
        self.over = ""
        """Why it ended; empty while it is active."""
        self.reply: asyncio.Future[Frames] = asyncio.get_running_loop().create_future()
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
    "this gateway does not know the lease: it was restarted, another process or gateway granted the lease, or it ended "
    "long ago; if the gateway that granted it was stopped, the server gives the request to another worker"
)
DONE = "it is :done"
LOST = "the connection to the server broke, and the server gives the request to another worker"

_SOON = {"Retry-After": "5"}


def _key(user: str, id_: str) -> str:
    return f"{user} {id_}"


def _over(why: str) -> HTTPProblem:
    return HTTPProblem(410, f"this lease has ended: {why}; lease another request", title="Lease over")


def _shutting_down() -> HTTPProblem:
    return HTTPProblem(503, "this gateway is shutting down; try again, or use another one", headers=_SOON)


class Leases:
    """The leases of all users."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._leases: dict[str, RequestLease] = {}
        self._over: OrderedDict[str, str] = OrderedDict()
        """Why each ended."""
        self._takers: set[_Taker] = set()
        self._shutting_down = False
        self.quota = UserQuota("leases, and calls that wait for one", MAX_LEASES, MAX_LEASES_EACH)

    def __len__(self) -> int:
        return len(self._leases)

    async def take(self, user: str, service: str, wait: float, seconds: float) -> RequestLease | None:
        """Lease a request of this service for so many seconds; None: none arrived in time. Raises HTTPProblem."""
        if service.startswith(("titanic.", "mmi.")):
            raise HTTPProblem(403, f"'{service}' is reserved for the server; its requests cannot be leased")
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

    def find(self, user: str, id_: str) -> RequestLease:
        """Find a user's active lease. Raises HTTPProblem 410."""
        lease = self._leases.get(id_)
        if lease is not None and lease.user == user:
            if lease.call.holds():
                return lease
            self._end(lease, LOST, RemoteError(500, LOST))  # the error reaches no one: the connection is gone
        why = self._over.get(_key(user, id_), UNKNOWN)
        raise _over(why)

    def is_done(self, user: str, id_: str) -> bool:
        """Whether this lease ended with a reply. A worker that missed the answer repeats `:done`."""
        return self._over.get(_key(user, id_)) == DONE

    async def done(self, lease: RequestLease, reply: Frames) -> None:
        """End a lease with a reply. Raises HTTPProblem 410 when the server did not receive it."""
        await self._finish(lease, DONE, reply)

    async def failed(self, lease: RequestLease, error: RemoteError) -> None:
        """End a lease with an error. Raises HTTPProblem 410 when the server did not receive it."""
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

    async def _finish(self, lease: RequestLease, why: str, outcome: Frames | RemoteError) -> None:
        self._end(lease, why, outcome)
        if not await lease.call.was_delivered():
            self._over[_key(lease.user, lease.id)] = LOST
            raise _over(LOST)

    def _end(self, lease: RequestLease, why: str, outcome: Frames | RemoteError | None) -> None:
        lease.end(why, outcome)
        self._forget(lease)

    def _begin(self, lease: RequestLease) -> None:
        self._leases[lease.id] = lease

    def _forget(self, lease: RequestLease) -> None:
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
            raise HTTPProblem(400, str(error)) from error
        self._where = " or ".join(settings.endpoint)
        self._taken: asyncio.Future[RequestLease] = asyncio.get_running_loop().create_future()
        self._registered = False
        self.worker.every(POLL_INTERVAL, self._check_session)
        self.running = asyncio.create_task(self.worker.run())

    async def take(self, wait: float) -> RequestLease | None:
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
                raise HTTPProblem(503, detail, headers=_SOON) from None
            return None
        except BaseException:  # the caller disconnected, or the call was cancelled
            self.worker.abandon()
            raise
        finally:
            self._taken.cancel()

    def _lease(self) -> RequestLease | None:
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
            self._taken.set_exception(HTTPProblem(403, f"{what}; {why}; contact the administrator"))

    async def _work(self, frames: Frames) -> Frames:
        if self._taken.done():  # the caller has just disconnected: return the request without counting an attempt
            self.worker.abandon()
            await asyncio.Event().wait()  # until `abandon` cancels this
        self.worker.stop()  # accept no further request
        lease = RequestLease(self, self._user, current(), frames, self._seconds)
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

    def holds(self) -> bool:
        """Whether the broker still assigns the request to this worker."""
        return not self.worker.sessions[0].stranded

    async def was_delivered(self) -> bool:
        """Whether the broker received the outcome; returns as soon as that is known."""
        await asyncio.wait({self.running})
        return not self.worker.sessions[0].dropped_replies

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._leases._takers.discard(self)
        self._leases.quota.release(self._user)
        if not task.cancelled() and (error := task.exception()) is not None and not self._taken.done():
            self._taken.set_exception(HTTPProblem(503, str(error), headers=_SOON))
