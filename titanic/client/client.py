"""Submit requests to Titanic and fetch their replies later.

    with Client() as titanic:
        uuid = titanic.submit("resize", picture)
        ...                                         # hours later, maybe in another process
        thumbnail, = titanic.wait(uuid, timeout=60)
        titanic.close(uuid)

Threads may share a client: each gets its own connection, which closes when the thread ends.
"""

from __future__ import annotations

import builtins
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self, Unpack

from broker import DEFAULT_ENDPOINT, Curve, Key, credentials, each, finish, named
from titanic.client.calls import BlockingWire, Body, Calls, tries_of
from titanic.client.core import ClientCore, OnCount, OnProgress
from titanic.protocol.answers import Ended, Look
from titanic.protocol.documents import (
    ArchiveInfo,
    AuditPage,
    AuditQuery,
    FactsInfo,
    JobConditions,
    LimitValues,
    NodeInfo,
    RedriveInfo,
    RequestInfo,
    ScheduleInfo,
    ScheduleReport,
    Stats,
    WorkersInfo,
)
from titanic.protocol.submit_options import ManyOptions, Span, SubmitOptions
from titanic.protocol.tsp import Frames


class PerThreadClients:
    """A `ClientCore` for each thread, on a wire of its own: a connection serves one thread at a time.

    Connections close when their thread ends, or with the client.
    """

    def __init__(
        self, endpoint: str | Sequence[str], timeout: float, retries: int, version: str | None, curve: Curve | None
    ) -> None:
        self._settings = endpoint, timeout, retries, version, curve
        self._tries = timeout, retries
        self._has_other_endpoints = len(named(endpoint)) > 1
        self._released_keys: deque[str] = deque()
        self._wires: weakref.WeakSet[BlockingWire] = weakref.WeakSet()
        """Those of threads that have not ended: a thread that ends drops its own."""
        self._guard = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Close all connections. Any thread may ask."""
        with self._guard:
            self._closed = True
            wires = list(self._wires)
        for wire in wires:
            wire.close()

    def new(self) -> ClientCore:
        """For a thread that has none yet. It drops them when it ends."""
        wire = BlockingWire(*self._settings)
        with self._guard:
            self._wires.add(wire)
            if self._closed:
                wire.close()  # its users get an error
        return ClientCore(Calls(wire, *self._tries), self._released_keys, has_other_endpoints=self._has_other_endpoints)


class Client:
    """A client of one Titanic. It resends messages that got no answer.

    Each submission therefore has an idempotency key, generated if the caller gives none, and is stored once however
    often it is sent. UUIDs may be written with dashes.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout: Span = 15.0,
        retries: int | None = None,
        version: str | None = None,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`timeout`: how long a call waits for an answer, in seconds or a timedelta. What gets none is sent again
        meanwhile, twice. With `retries` it is the time of each of 1 + `retries` tries. `version` of MDP: 0.2, 0.1 or
        majortomo; by default the broker is asked.

        `endpoint` is one, or several nodes of the same queue: in a list, or in a text with commas. (Another queue would
        not know its UUIDs.) One of them is chosen at random, and used until it fails; then the next one. It is left at
        once when the connection breaks or cannot be made, or when the node says that it takes nothing more; after 3 s
        when the program there stands still or the cable is cut. A node that only takes long for its answer has the time
        of a try. What had no answer is sent again to the next node, within the same time; what is submitted has a key,
        which the nodes share, and is stored once. So is waiting continued.

        For a server with access control, `key` is the secret key file of this client, and `server_key` the server's
        public key file, or the key itself, 40 characters of Z85; all nodes have the same. KeyRefused is raised when
        the server does not take them, Forbidden when the key's user lacks a permission.
        """
        settings = endpoint, *tries_of(timeout, retries), version, credentials(key, server_key)
        self._threads = PerThreadClients(*settings)
        self._of_thread = threading.local()
        self.endpoint = self._own.calls.wire.endpoint

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection. Submitted requests stay.

        Any thread may call this. Threads waiting for an answer get an InvalidRequest within a second.
        """
        self._threads.close()

    @property
    def _own(self) -> ClientCore:
        """What the calling thread has in this process."""
        own: dict[str, ClientCore] = vars(self._of_thread)
        if (process := f"{os.getpid()}") not in own:  # a fork has inherited its parent's
            own[process] = self._threads.new()
        return own[process]

    # -- one request -----------------------------------------------------------------------------------------

    def submit(self, service: Body, *body: Body, **options: Unpack[SubmitOptions]) -> str:
        """Store a request, and return its UUID once it is on disk.

            client.submit("resize", picture, key="album: picture 7", ttl=3600)

        The body is any number of frames, bytes or text. All options may be omitted:

            key           idempotency key, 1 to 255 bytes: the same key gets the same UUID, and is executed once
            key_for       how long the key counts, default a day
            ttl           time after which the request expires, even between attempts, unless it is running or has ended
            delay         earliest start, from now
            at            earliest start, a datetime with a time zone; in the past: at once
            priority      0 to 9, default 4; higher ones start first
            max_attempts  failed attempts after which it fails for good; default the server's
            limit         maximum run time of one attempt
            retry_first   back-off after the first failure, doubles with each failure; default the server's
            retry_most    longest back-off; each varies by ± 10 %; default the server's
            keep          how long its reply is kept unless it is closed; "never": until clients that wait have it;
                          default the server's
            keep_failed   how long it is kept if it fails or expires; default the server's
            keep_body     how long its body is kept when it has ended, for a retry; "never": only until it succeeds;
                          default as long as the request
            unique        1 to 255 bytes: while the same user's request for the service with the same counts, its UUID
                          comes back, as a `titanic.Found`, and nothing is stored
            unique_until  until when it counts: "started", a worker has it; "done" (default), it has ended
            unique_for    or for how long it counts, also after a success
            trace         a W3C `traceparent`: the handler finds it in `titanic.current().trace`
            tracestate    the `tracestate` beside it: dropped if it is malformed or has more than 512 characters
            type          the content type of the body: `titanic.current().type`
            digest        hexadecimal digits that `show` returns: a hash of the request, for example
            source        the IP address that the request comes from, for gateways: needs the permission `gateway`
            on_limit      leave: an attempt may exceed its `limit`, and its late reply counts
            on_failed     a service that gets a request, also stored, if this one fails for good or expires

        Times are seconds or a timedelta, ten years at most.

        All keys of a store share one namespace: begin yours with the name of your program. A known key returns the
        first UUID, even with another body or service.

        Raises InvalidRequest, Refused (at once if the store is full; at the end of the time-out if the server is still
        shutting down) or TimedOut (no answer; the request may have been stored nevertheless, and with a `key` can be
        submitted again without being executed twice).
        """
        return finish(self._own.submit(service, *body, **options))

    def reply(self, uuid: str) -> Frames | None:
        """Return the reply's frames; None while it is pending. The reply stays until the request is closed.

        Raises UnknownRequest (closed, or never accepted) or RequestFailed (it failed for good).
        """
        return finish(self._own.reply(uuid))

    def wait(self, uuid: str, timeout: Span | None = None, *, on_progress: OnProgress | None = None) -> Frames:
        """Wait for the reply and return its frames. Raises as `reply`, and TimedOut after `timeout` (seconds, or a
        timedelta).

        With a timeout, it also waits for a server that is temporarily unavailable; with math.inf, forever. Without a
        timeout, it raises TimedOut if there is no answer at all. `on_progress` is called with new progress that the
        handler reports by `titanic.current().progress(…)`, {"done", "of", "text"}; polled once a second.
        """
        return finish(self._own.wait(uuid, timeout, on_progress=on_progress))

    def close(self, *uuids: str, kill: bool = False) -> list[str]:
        """Delete requests and their replies. Requests not dispatched yet are cancelled; unknown UUIDs are no error.

        `kill`: `titanic worker` kills the processes of running requests; other requests of these processes start
        again. Return the UUIDs of running requests that other workers have, which are only notified.
        """
        return finish(self._own.close(*uuids, kill=kill))

    # -- many ------------------------------------------------------------------------------------------------

    def submit_batch(
        self,
        service: Body,
        bodies: Sequence[Body],
        *,
        keys: Sequence[str] | None = None,
        unique: bool = True,
        **options: Unpack[ManyOptions],
    ) -> list[str]:
        """Submit one request per body in a single message; all are accepted, or none. Return the UUIDs in this order.

        `keys` has one for each body; without them, `unique` as in `submit_many`. The other options, those of `submit`,
        are for all. Raises as `submit`.
        """
        return finish(self._own.submit_batch(service, bodies, keys=keys, unique=unique, **options))

    def submit_many(
        self,
        service: Body,
        bodies: Iterable[Body | Sequence[Body]],
        *,
        window: int = 1000,
        keys: Iterable[str] | None = None,
        uniques: Iterable[str | None] | None = None,
        unique: bool = True,
        **options: Unpack[ManyOptions],
    ) -> list[str]:
        """Submit one request per body, with `window` in flight; return the UUIDs in the order of the bodies.

        This is the fastest way to submit many small requests. A message has many of them, and is accepted as a whole or
        not at all. `keys` has one for each body; the other options, those of `submit`, are for all. `uniques` has the
        `unique` of each body, or None: then each is a message, and the UUID of an earlier request is a `titanic.Found`.

        Without `keys` each message has a generated key, which takes 42 bytes of the store for each request, until this
        client has the answer and sends something else, or for a minute or two. With `unique=False` there is no key, and
        resent requests may be stored and executed twice.

        Raises as `submit`. Requests accepted before the error stay accepted: to know which, submit in smaller parts.
        """
        own = self._own
        many = own.submit_many(service, bodies, window=window, keys=keys, uniques=uniques, unique=unique, **options)
        return finish(many)

    def replies(
        self, uuids: Iterable[str], timeout: Span | None = None, *, window: int = 1000
    ) -> Iterator[tuple[str, Ended]]:
        """Yield each UUID with its reply as it arrives, or with the error if there will be no reply.

        Raises TimedOut after `timeout` (as for `wait`) if some are still pending.
        """
        for some in each(self._own.some_replies(uuids, timeout, window)):
            yield from some

    def close_many(self, uuids: Iterable[str], *, window: int = 1000) -> None:
        """Close any number of requests, with `window` in flight."""
        finish(self._own.close_many(uuids, window=window))

    def retry(self, *uuids: str, body: Sequence[Body] | None = None) -> int:
        """Requeue failed and expired requests, and return how many. Requests in other states are left unchanged.

        `body`: the new body of one of your own requests, or with `admin` of any; `show` keeps 16 KiB of the first and
        the last that were replaced."""
        return finish(self._own.retry(*uuids, body=body))

    def change(
        self,
        uuid: str,
        *,
        priority: int | None = None,
        delay: Span | None = None,
        at: datetime | None = None,
        body: Sequence[Body] | None = None,
    ) -> None:
        """Change a request that no worker has: its priority, its body, and when it may start: after `delay` from now, 0
        for at once, or at a time. What is None stays as it is.

        Raises UnknownRequest, InvalidRequest when it is running or has ended, and Refused for a body without room.
        """
        finish(self._own.change(uuid, priority=priority, delay=delay, at=at, body=body))

    def retry_all(
        self, *, service: str | None = None, older_than: Span | None = None, tell: OnCount | None = None
    ) -> int:
        """Requeue all failed and expired requests, of one service if given, that ended more than `older_than` seconds
        ago.

        `tell` is called now and then with how many there were so far. Returns how many there were.
        """
        return finish(self._own.retry_all(service=service, older_than=older_than, tell=tell))

    def purge(
        self,
        state: str,
        *,
        service: str | None = None,
        older_than: Span | None = None,
        tell: OnCount | None = None,
    ) -> int:
        """Close all requests in a given state, of one service if given, that ended more than `older_than` seconds ago
        (were submitted, when they have not ended).

        `tell` is called now and then with how many there were so far. Returns how many there were.
        """
        return finish(self._own.purge(state, service=service, older_than=older_than, tell=tell))

    def redrive(
        self,
        action: Literal["retry", "close"],
        *,
        uuids: Sequence[str] | None = None,
        rate: float | None = None,
        **where: Unpack[JobConditions],
    ) -> RedriveInfo:
        """Start a job in the server. It counts the requests that match all that is given: `service`, `owner`, `state`,
        `error` (of their group), `key`, `text` (part of the error or key), `body` (part of the body), `since` and
        `until` (submitted, in seconds since 1970), `older_than` (seconds since the end). Once `change_redrive` confirms
        their number, it retries or closes those that still match, at most `rate` a second. With `uuids`, at most 1,000,
        it begins at once."""
        return finish(self._own.redrive(action, uuids=uuids, rate=rate, **where))

    def change_redrive(
        self, job: str, change: Literal["confirm", "pause", "resume", "cancel"], count: int | None = None
    ) -> RedriveInfo:
        """Change a job; `confirm` needs the number that it has counted. Raises InvalidRequest if impossible."""
        return finish(self._own.change_redrive(job, change, count))

    def redrives(self, job: str | None = None) -> builtins.list[RedriveInfo]:
        """Return the jobs that the user may see, newest first, or one of them."""
        return finish(self._own.redrives(job))

    def register_schedules(self, schedules: Sequence[ScheduleReport]) -> None:
        """Report schedules that this process runs: the server remembers them. A `Scheduler` does that itself."""
        finish(self._own.register_schedules(schedules))

    def schedules(self) -> builtins.list[ScheduleInfo]:
        """Return the registered schedules that the user may see, by owner and name."""
        return finish(self._own.schedules())

    def archive(
        self,
        *,
        register: bool | None = None,
        upto: int | None = None,
        uuid: str | None = None,
        store: str | None = None,
        archive: str | None = None,
        name: str | None = None,
    ) -> ArchiveInfo:
        """Register the archive of closed requests, or acknowledge what it has. Return its progress: {registered,
        archived_upto, first, last, lost, store, archive, name}.

        `register`: from now on nothing is dropped from the ring before the archive has it (False: no longer). `upto`:
        the archive has everything up to this number, which is the request `uuid`. `store`: the id of that store.
        `archive` and `name`: the archive's own id and place; no other archive can register or acknowledge until it is
        unregistered. Raises InvalidRequest if that is impossible.
        """
        return finish(
            self._own.archive(register=register, upto=upto, uuid=uuid, store=store, archive=archive, name=name)
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def stats(self, *, services: bool = False, filled_by: bool = False, of: Sequence[str] = ()) -> Stats:
        """Return statistics: stored, waiting and running requests, and counters since the start. `services`: also those
        of each service, as `by_service`. `filled_by`: also the services that fill the store most. Of more than 1,000
        services, some are one sum, `other`; those in `of` are named in any case."""
        return finish(self._own.stats(services=services, filled_by=filled_by, of=of))

    def facts(self, seconds: float = 3600.0, *, of: Sequence[str] = (), failures: bool = False) -> FactsInfo:
        """Return what services have done in the last `seconds`, at most four weeks, over restarts and on all nodes: by
        minute for up to four hours, else by hour. `of`: services of which each minute or hour is wanted. `failures`:
        also the groups of failures, for users who may read all requests. Raises Forbidden as `stats` does."""
        return finish(self._own.facts(seconds, of=of, failures=failures))

    def nodes(self) -> builtins.list[NodeInfo] | None:
        """Return the nodes that share the store, as `titanic nodes --json` prints them; None: it is not shared."""
        return finish(self._own.nodes())

    def workers(self) -> WorkersInfo:
        """Return the workers of the answering server, as `titanic workers --json` prints them. Without the permission
        to see statistics: their number for each service that the user may use."""
        return finish(self._own.workers())

    def drain(self, node: str | None = None) -> NodeInfo:
        """Drain a node, by default the one that answers, then stop it. Return what `nodes` reports about it. A client
        of several endpoints must name it."""
        return finish(self._own.drain(node))

    def set_service(self, service: str, *, paused: bool | None = None, on_end: str | None = None) -> dict[str, Any]:
        """Pause or resume a service; store a request for the service `on_end` whenever a request of it ends ("": none).
        None leaves a setting unchanged. Return the settings."""
        return finish(self._own.set_service(service, paused=paused, on_end=on_end))

    def set_limits(self, service: str, **limits: Unpack[LimitValues]) -> dict[str, Any]:
        """Set limits of a service in place of the configured ones: `waiting`, `bytes`, `running`, and `rate` a second.
        They apply to all servers that share the store, and survive restarts. None: the configured one holds again.
        Return the settings, with the `limits` in force."""
        return finish(self._own.set_limits(service, **limits))

    def audit(self, **options: Unpack[AuditQuery]) -> AuditPage:
        """Return a page of acts on requests of others, services and nodes, or of `refusals` by address and minute,
        newest first: {acts, refusals, next}. `options`: refusals, user, act, address, since, until, after, limit. All
        that is given must match; `since` and `until` are in seconds since 1970, `after` is the `next` of the page
        before. Needs the permission `audit`."""
        return finish(self._own.audit(**options))

    def list(
        self,
        *,
        service: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest: bool = False,
        text: str | None = None,
        owner: str | None = None,
        begin: int | None = None,
    ) -> tuple[list[RequestInfo], str | None]:
        """Return a page of stored requests, oldest first, and the `after` of the next page (None: there is none).
        `newest`: newest first. `text`: only requests with it in their reason or key; a page may then be short. `owner`:
        only requests of this user. `begin`: up to so many bytes (1000) of each body, as text, in the field `begin`."""
        wanted = {"service": service, "state": state, "text": text, "owner": owner}
        return finish(self._own.list(**wanted, after=after, limit=limit, newest=newest, begin=begin))

    def show(self, uuid: str, *, why: bool = False) -> RequestInfo:
        """Return everything known about one request. `why`: also the reason for its state, unless the server is of an
        earlier version. Raises UnknownRequest."""
        return finish(self._own.show(uuid, why=why))

    def look(self, uuid: str, most: int | None = 65536, *, why: bool = False) -> Look:
        """Return `show`, and the first `most` bytes (at most 1 MiB) of the body and of the reply; None: the whole body,
        and nothing of the reply. `why`: as of `show`. Raises UnknownRequest."""
        return finish(self._own.look(uuid, most, why=why))

    def find(self, keys: Sequence[str], flow: str | None = None) -> tuple[dict[str, str], dict[str, str]]:
        """Find requests by their keys: return the UUID of each known key, and the state of each of these UUIDs, except
        those of closed requests.

        `flow`: the UUID of a flow, to find its steps, which its workers' user submits. Needs `read = "all"`."""
        return finish(self._own.find(keys, flow))

    def clock(self) -> float:
        """Return the time of the server's clock, which delays and keys use, in seconds since 1970. Servers that share a
        database use its clock."""
        return finish(self._own.clock())

    def call(self, service: Body, *body: Body) -> Frames:
        """Send a plain MDP request; nothing is stored. Raises broker.RemoteError, InvalidRequest or TimedOut."""
        return finish(self._own.call(service, *body))
