"""The Majordomo broker: its connections, its core and its loop."""

from __future__ import annotations

import logging
import math
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import broker.access
from broker.access.authorization import Guard, RefusalLog, Review, Rule
from broker.access.users import NOBODY, Access, User
from broker.config import BrokerConfig
from broker.core.broker import BrokerCore
from broker.core.mdp import Action, Frames, Output, Peer, error_body
from broker.core.missing import Expected, NamedRequest, delivery_of
from broker.core.mmi import About, counters
from broker.core.requests import Request
from broker.core.timers import earliest
from broker.core.worker_registry import WorkerHold, WorkerIdentity, WorkerPeer, WorkerReport
from broker.errors import Means, UsageError
from broker.io.channels import CoreRunner
from broker.io.connections import Connections, PeerGone
from broker.io.loop import Channel
from broker.io.peer_connection import PeerConnection
from broker.io.sockets import MOST_FRAMES, protect
from broker.zmtp import MessageLimits, OversizedMessage

log = logging.getLogger(__name__)

Deliver = Callable[[list[Frames]], None]
"""Gets messages in batches, in the broker's thread."""

Given = Callable[[bytes, bytes], None]

Lasts = Callable[[], bool]
"""Whether workers may begin what a local peer asks for."""

MAX_WATCHED = 1024
"""Processes that are watched, each by a descriptor; the requests of more wait for them."""

EXPIRY_EVERY = 5.0
"""Seconds between checks for expired users, even if none is about to expire: the clock may be set."""

LOG_EVERY = 60.0
"""Seconds between two lines about workers that returned with requests that are not theirs."""

BatchHandler = Callable[[list[Request]], None]
"""What an integrated service does with the requests that have come; it is called in the broker's thread."""


class ProcessWatch(Channel):
    """Watches the processes of workers on this machine, so that the requests of one that ends wait for nothing."""

    rests = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._host = socket.gethostname()[:24]
        self._watched: dict[int, str] = {}
        """What each descriptor watches. Names, not words of READY: a process may have any number of words."""
        self._names: set[str] = set()
        self._ended: dict[int, int] = {}
        """The descriptors of those that have ended."""

    def add(self, worker: WorkerPeer) -> None:
        """Watch the process of a worker that returns with its requests. What is named like a process of this machine
        but is none here is elsewhere; without a descriptor to spare its requests wait."""
        host, _, number = worker.process_name.rpartition(":")
        pid = int(number) if number.isdecimal() and len(number) < 10 else 0
        if host != self._host or not pid or pid == os.getpid() or not hasattr(os, "pidfd_open"):
            return
        if worker.process_name in self._names or len(self._names) >= MAX_WATCHED:
            return
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            self._watched[descriptor] = worker.process_name
            self._names.add(worker.process_name)
            self._broker.loop.watch(descriptor, self, self._ended, selectors.EVENT_READ)

    def drain(self, now: float) -> bool:
        for descriptor in self._ended:
            self._broker.loop.unwatch(descriptor)
            os.close(descriptor)
            name = self._watched.pop(descriptor)
            self._names.discard(name)
            self._broker.core.process_gone(name, now)
        self._ended.clear()
        return False

    def close(self) -> None:
        for descriptor in self._watched:
            self._broker.loop.unwatch(descriptor)
            os.close(descriptor)
        self._watched.clear()


class LocalPeer:
    """A client in the broker's own process: the same messages as on a socket, without the socket."""

    def __init__(
        self,
        broker: Broker,
        deliver: Deliver,
        user: User | None,
        lasts: Lasts | None,
    ) -> None:
        self.lasts = lasts
        """Whether workers may begin its requests; None: always."""
        self.user = user
        """Its user, with access control; None: it may do everything."""
        self.given: Given | None = None
        """Gets the `client` frame of each request that a worker receives which keeps its requests, and by what that
        worker is known, before the request leaves; empty: it does not keep this one, as the last worker did."""
        self._broker = broker
        self._deliver = deliver
        self.inbox: list[Frames] = []
        """What came in this round."""

    def __str__(self) -> str:
        return "this process"

    def send(self, messages: Sequence[Frames]) -> None:
        """Send messages to the broker. Any thread may; in the broker's, not while it flushes."""
        self._broker.loop.perform(self._broker.receive_local, self, messages)

    def worker_of(self, mark: bytes) -> WorkerHold | None:
        """Return which worker has a request of this peer, by its mark; None: none has it. Any thread may call this."""
        core = self._broker.core
        if (request := core.registry.delivered.get((self, mark))) is None:
            return None
        if (worker := core.workers.get(request.holder)) is not None:
            return WorkerHold(worker.process_name)
        return WorkerHold("", core.missing.timers.get(delivery_of(request.token)))

    def failed_at(self, context: bytes) -> WorkerIdentity | None:
        """Return the worker at which the attempt with this context has failed, once; None: it is unknown."""
        failed = self._broker.core.failed_at
        return failed.pop(context, None) if failed else None

    def workers(self, names: Iterable[bytes] | None = None) -> dict[bytes, int]:
        """Return the number of workers of each service that has any, or of those among `names`. Requests about which
        the queue has not decided (`named`) take places of theirs."""
        workers = self._broker.workers(names)
        for named in self._broker.core.missing.named.copy().values():
            for name in () if named.has_ended else named.services:
                workers[name] = max(0, workers.get(name, 0) - 1)
        return workers

    def held(self) -> dict[bytes, int]:
        """As `BrokerCore.held`."""
        return self._broker.core.held()

    def expect(self, context: bytes, expected: Expected) -> None:
        """Note that a worker has the request that is sent next with this context: it waits for that worker."""
        self._broker.core.expect(self, context, expected)

    def keeps(self, service: bytes) -> bool:
        """Return whether there are workers of a service that keep their requests."""
        found = self._broker.core.services.get(service)
        return found is not None and any(group.keepers for group in found.groups)

    def named(self) -> dict[bytes, NamedRequest]:
        """Return the requests that workers have by their own word, from other brokers of the queue, by their `client`
        frames: have each taken back by `expect`, or refuse it. Those that this queue has not given out are refused
        here."""
        core, found = self._broker.core, dict[bytes, NamedRequest]()
        for one in [*core.missing.named.values()]:
            if core.secrets.are_in(one.request.token, one.worker.keeper):
                found[one.request.token] = one
            else:
                self.refuse(one.request.token)
        return found

    def refuse(self, token: bytes) -> None:
        """Note that a worker has a request no longer that it has named."""
        self._broker.core.refuse_named(delivery_of(token), time.monotonic())

    def await_decision(self, token: bytes, now: float) -> None:
        """Wait as long again for the decision about what a worker has named."""
        self._broker.core.missing.wait_again(delivery_of(token), now)

    def await_worker(self, mark: bytes, now: float) -> None:
        """Wait as long again for the worker of a request of this peer, if it is away."""
        core = self._broker.core
        if (request := core.registry.delivered.get((self, mark))) is not None and request.holder is None:
            core.missing.wait_again(delivery_of(request.token), now)

    def joint(self, names: Iterable[bytes] | None = None) -> set[bytes]:
        """Return the services of workers that have other services, too; `names`: only of these."""
        services = self._broker.core.services.copy()
        return {name for name in names or services if name in services and services[name].joint_groups}

    def queued(self) -> set[bytes]:
        """Return the services of which requests wait for a worker."""
        return {name for name, service in self._broker.core.services.copy().items() if service.waiting}

    def full(self) -> bool:
        """Return whether it should get no more large answers for now. Any thread may call this."""
        return False

    def put(self, frames: Frames) -> None:
        """Take a message for this peer; called by the broker."""
        self.inbox.append(frames)

    def flush(self) -> None:
        """Deliver what came as one batch; called by the broker at the end of a round."""
        inbox, self.inbox = self.inbox, []
        try:
            self._deliver(inbox)
        except Exception:
            log.exception("a local peer failed; %d messages for it are lost", len(inbox))


def _secrets() -> Iterator[bytes]:
    """Yield secrets of deliveries, taken 256 at a time: each call of the kernel lets another thread run first."""
    while True:
        block = os.urandom(4096).hex().encode()
        for start in range(0, len(block), 32):
            yield block[start : start + 32]


class Broker(CoreRunner[BrokerCore]):
    """A broker for clients and workers of MDP 0.1, 0.2 and the majortomo dialect, on any number of endpoints.

        broker = Broker()
        broker.bind("tcp://127.0.0.1:5555")
        broker.run()                            # until another thread calls stop()

    `start` runs it in a thread of its own instead. As a context manager it is started and stopped.
    """

    _thread_name = "broker"

    _means = Means.USERS
    """What would protect endpoints that other machines can reach."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        version: str = "",
        open: bool = False,
        access: Access | None = None,
        rules: Mapping[bytes, Rule] = MappingProxyType({}),
        keys: broker.access.Keys | None = None,
    ) -> None:
        """`open`: allow endpoints that other machines can reach without access control. `access`: the users'
        permissions; without it every connection may do everything. `rules`: for services that need more than the
        permission to call them. `keys`: the broker's own, for encrypted endpoints."""
        self._open = open
        self.config = config or BrokerConfig()
        about = About(version=version, instance=os.urandom(8).hex(), pid=os.getpid())
        super().__init__(BrokerCore(self.config, now=time.monotonic(), about=about, secret=_secrets().__next__))
        self.core.missing.decided_within = self.config.worker_return
        self._processes = ProcessWatch(self)
        self.loop.add(self._processes)
        admission = None
        if access is not None:
            from broker.io.admission import AccessLog, UserAdmission, server_cipher  # a server without does without

            self.core.guard = Guard(access, rules, self.core.stats)
            cipher = None if keys is None else server_cipher(keys.public, keys.secret)
            admission = UserAdmission(self.core.guard, cipher)
            self.loop.add(AccessLog(self.core.guard))
        self._connections = Connections(
            self.loop,
            self,
            limits=MessageLimits(self.config.max_message, MOST_FRAMES),
            send_queue=self.config.send_queue,
            max_bytes=self.config.send_queue_bytes,
            admission=admission,
        )
        self._handlers: dict[bytes, BatchHandler] = {}
        self._locals: list[LocalPeer] = []
        self._not_resumed = 0
        self._log_at = 0.0
        self._expired, self._expiry_at = (0, None) if access is None else _expiry(access)
        """How many users have expired, and when to check that; None: never."""
        self._leased: list[LocalPeer] = []
        """Local peers whose requests may not start at all times."""

    def bind(self, endpoint: str) -> str:
        """Listen on one more endpoint, before the broker runs; the endpoint with its real port comes back.

        Raises Unprotected for one that other machines can reach, without access control."""
        if self.core.guard is None:
            protect(endpoint, open=self._open, by=self._means)
        bound = self._connections.bind(endpoint)
        self.core.about = replace(self.core.about, endpoints=(*self.core.about.endpoints, bound))
        return bound

    def integrate(self, name: bytes, handler: BatchHandler, *, room: int = 0) -> None:
        """Answer a service in this process. `handler` must not block; answers go through `reply`. `room`: bytes that
        its requests may have above `max_body`, for what it wants to know of a body."""
        self.core.integrate(name, room)
        self._handlers[name] = handler

    def reply(self, answers: Iterable[tuple[Request, Frames]]) -> None:
        """Answer requests of integrated services. Any thread may; in the broker's, where a batch is handled, or in the
        turn of a channel that rests."""
        self.loop.perform(self._reply, answers)

    def congested(self, request: Request) -> bool:
        """Return whether the requester has enough to read already, or the loop is behind: more large answers would only
        fill the memory, and in the end be dropped. Any thread may call this."""
        peer = request.peer
        full = peer.full() if isinstance(peer, LocalPeer) else self._connections.full(peer)
        return full or self.loop.behind

    def source_of(self, request: Request) -> bytes:
        """The IP address from which a request came; empty: it came by ipc, or from this process. Any thread may ask."""
        peer = request.peer
        connection = None if isinstance(peer, LocalPeer) else self._connections.of(peer)
        return b"" if connection is None else connection.ip.encode()

    def reload(self, access: Access) -> None:
        """Apply another access file, to open connections too. Any thread may call this; only a broker that was made
        with access control has it."""
        if self.core.guard is None:
            raise UsageError("this broker runs without access control; restart it with access=…")
        self.loop.perform(self._reload, access)

    def connect_local(
        self,
        deliver: Deliver,
        user: User | None = None,
        lasts: Lasts | None = None,
        given: Given | None = None,
        store: str = "",
        key: bytes = b"",
        decides_within: float = 0.0,
    ) -> LocalPeer:
        """A client without a socket. `deliver` gets its replies in batches, in the broker's thread. `user`: as whom it
        speaks, with access control; None: it may do everything. `lasts`: whether workers may begin what it asks for; it
        is asked in the broker's thread each time before anything is sent. When they may not, what no worker has yet is
        answered with 499. `given`: see `LocalPeer`. `store`: the id of its store. `key`: of a queue with several
        brokers, the same at all: `deliver` is also called, with nothing, when workers come with requests from another
        (`LocalPeer.named`), about which the queue decides within so many seconds (`decides_within`)."""
        peer = LocalPeer(self, deliver, user, lasts)
        self.core.failed_at = {} if self.core.failed_at is None else self.core.failed_at
        if given is not None:
            peer.given = given
            self.core.given = self._given
        if store:
            self.core.about = replace(self.core.about, store=store)
        self.core.secrets.key, self.core.missing.decided_within = key, decides_within
        self._locals.append(peer)
        if lasts is not None:
            self._leased.append(peer)
        return peer

    def _end(self) -> None:
        """End the loop. Workers get a DISCONNECT."""
        self._soon(self.core.shut_down)
        super()._end()

    def wind_down(self, *, ending: bool = False) -> None:
        """Refuse requests for workers, and dismiss workers as they become idle. Any thread may call this; it is
        complete when `workers()` is empty. `ending`: as before `end_soon`."""
        self._soon(self.core.drain, ending=ending)

    def cut_off(self, cut_off: bool) -> None:
        """Set whether other brokers serve what this one cannot at the moment: idle workers are dismissed, and clients
        of services without a worker. Any thread may call this."""
        self._soon(self.core.cut_off, cut_off)

    def end_soon(self) -> None:
        """Send workers that keep their requests away with them, before this process ends. Any thread may call this;
        it is complete when `has_keepers` is false."""
        self._soon(self.core.end_soon)

    @property
    def has_keepers(self) -> bool:
        """Whether there are workers that keep their requests. Any thread may read this."""
        return bool(self.core.registry.keepers)

    def send_on(self, most: int | None = None) -> None:
        """Dismiss idle workers that have other brokers: `most` of them, and never the last worker of a service; by
        default all. Any thread may call this."""
        self._soon(self.core.send_on, most)

    def workers(self, names: Iterable[bytes] | None = None) -> dict[bytes, int]:
        """Return the number of workers of each service that has any; `names`: only of these. Any thread may call
        this."""
        services = self.core.services
        found = services.copy().items() if names is None else [(one, services[one]) for one in names if one in services]
        return {name: count for name, service in found if service.groups and (count := service.workers)}

    def worker_reports(self, most: int) -> tuple[list[WorkerReport], int]:
        """Return the workers by process, and how many processes are left out: see `WorkerRegistry.report`. Any thread
        may call this."""
        return self.core.registry.report(most)

    def departed(self, service: bytes) -> tuple[str, float] | None:
        """Return the process of the last worker of a service that has none now, and when it left, in monotonic seconds;
        None: unknown. Any thread may call this."""
        return self.core.registry.departed.get(service)

    def counters(self) -> dict[str, int]:
        """Return the values of `mmi.stats`. Any thread may call this."""
        return counters(self.core, 0.0)

    def note_refusals(self, log: RefusalLog) -> None:
        """Have refusals noted, too, from now on. Call it before the broker starts."""
        if self.core.guard is not None:
            self.core.guard.log = log

    def refusals(self) -> dict[tuple[str, str], int]:
        """Return the refusals, by user and action; the name of unknown users is empty. Any thread may call this."""
        return {} if self.core.guard is None else self.core.guard.refusals.copy()

    # -- called in the loop's thread -------------------------------------------------------------------------

    def receive_local(self, peer: LocalPeer, messages: Sequence[Frames]) -> None:
        """Take messages of a local peer as if they had come through the socket."""
        now = time.monotonic()
        for frames in messages:
            self.core.receive(peer, frames, now, peer.user)

    def _reload(self, access: Access) -> None:
        guard = self.core.guard
        if guard is not None:
            now = time.monotonic()
            self._expired, self._expiry_at = _expiry(access)  # first: who expires from here on is found next time
            self._connections.swap(access, now)
            for local in self._locals:
                local.user = local.user and guard.current(local.user)
            self.core.revoke(Review(guard, self._whose), now)

    def _whose(self, peer: Peer) -> User | None:
        """Return the present user of a peer, with access control; None: this process."""
        if isinstance(peer, LocalPeer):
            return peer.user
        return peer.user if isinstance(peer, PeerConnection) and peer.open else NOBODY

    def _reply(self, answers: Iterable[tuple[Request, Frames]]) -> None:
        for request, body in answers:
            self.core.reply(request, body)

    def _soon(self, change: Action, *args: Any, **named: Any) -> None:
        """Apply a change to the core in the loop's thread, at the time there."""
        self.loop.call(lambda: change(*args, time.monotonic(), **named))

    def _given(self, request: Request, worker: WorkerPeer) -> None:
        peer = request.peer
        if isinstance(peer, LocalPeer) and peer.given is not None:
            peer.given(request.token, worker.keeper)

    def drain(self, now: float) -> bool:
        """Take what has arrived, up to a limit, so that answers go out in between."""
        core, receive = self.core, self.core.receive
        for connection, frames in self._connections.take(now):
            peer = connection.peer
            if frames is None:
                core.lost(peer, now)
                continue
            if isinstance(frames, OversizedMessage):
                most = f"{MOST_FRAMES} frames or {self.config.max_message} bytes"
                core.too_large(peer, frames.head, f"more than {most}, the maximum of this broker", now)
                continue
            try:
                receive(peer, frames, now, connection.user)
            except Exception:
                log.exception("a bug in this program: a message could not be handled; its sender is dropped")
                core.lost(peer, now)
            if core.new_worker is not None:
                worker, core.new_worker = core.new_worker, None
                worker.inflow = connection
                if worker.keeper:
                    self._processes.add(worker)
                    if core.stats["not_resumed"] > self._not_resumed and now >= self._log_at:
                        self._log_strangers(now)
        if core.missing.is_new:
            core.missing.is_new = False
            for local in self._locals:
                local.flush()
        core.peers = len(self._connections)
        return bool(self._connections.ready)

    def flush(self, now: float) -> None:
        """Hand batches to integrated services and messages to peers, until neither makes more of the other."""
        core = self.core
        more = True
        while more:
            for name, batch in core.take_batches():
                self._handle(name, batch)
            for local in self._leased:
                if local.lasts is not None and not local.lasts():
                    core.withhold(local, now)
            output = core.take_output()
            more = bool(output) and self._send(output, now)
        for connection, _ in self._connections.flush():
            core.lost(connection.peer, now)
            self.loop.drain_again(self)  # what others get instead goes out at once
        for local in self._locals:
            if local.inbox:
                local.flush()

    def _log_strangers(self, now: float) -> None:
        """Log that workers returned with requests that are not theirs (any more), once a minute at most."""
        count, self._log_at = self.core.stats["not_resumed"], now + LOG_EVERY
        text = "workers returned with %d requests that are not, or no longer, theirs; the replies are dropped"
        log.warning(text, count - self._not_resumed)
        self._not_resumed = count

    def tick(self, now: float) -> None:
        super().tick(now)
        self._connections.tick(now)
        if self._expiry_at is not None and now >= self._expiry_at and self.core.guard is not None:
            access = self.core.guard.access
            expired, self._expiry_at = _expiry(access)
            if expired != self._expired:
                self._reload(access)

    def next_deadline(self) -> float | None:
        return earliest(self.core.next_deadline(), self._connections.next_deadline(), self._expiry_at)

    def close(self) -> None:
        self._connections.close()

    def _handle(self, name: bytes, batch: list[Request]) -> None:
        try:
            self._handlers[name](batch)
        except Exception as error:
            log.exception("integrated service %s failed", name.decode())
            body = error_body(500, f"{type(error).__name__}: {error}")
            self._reply((request, body) for request in batch)

    def _send(self, output: list[Output], now: float) -> bool:
        """Send messages; whether there may be more, since a peer is gone."""
        send = self._connections.send
        lost = False
        for at, (peer, frames) in enumerate(output):
            if isinstance(peer, LocalPeer):
                peer.put(frames or [])
            elif frames is not None:
                try:
                    send(peer, frames)
                except PeerGone:
                    unsent = []
                    if peer in self.core.workers:  # only at its first message: `lost` forgets it
                        mine = (more for other, more in output[at:] if other == peer and more)
                        unsent = [frame for more in mine for frame in more[2:4]]  # a REQUEST's token is one of these
                    self.core.stats["unroutable"] += 1
                    self.core.lost(peer, now, unsent)
                    lost = True
        return lost


def _expiry(access: Access) -> tuple[int, float | None]:
    """How many users have expired, and when to check that again; None: none expires."""
    now, expires = time.time(), [user.expires for user in access.users.values() if user.expires < math.inf]
    pauses = [one - now for one in expires if now < one < now + EXPIRY_EVERY]
    return sum(one <= now for one in expires), time.monotonic() + min(pauses, default=EXPIRY_EVERY) if expires else None
