"""Titanic as a running thing: store, services, dispatcher, and a broker in the same process or elsewhere.

threads      job
broker       the broker's loop (integrated), or `lanes`: worker sockets at somebody else's broker
writer       all changes of the store, one transaction and one sync for all that has gathered
reader       titanic.reply and the other services that only read
ingest       requests without an answer, if it gathers any
dispatcher   sends stored requests to their services and hands the replies to the writer
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from broker import Broker, Kind
from titanic.commit.writer import Writer
from titanic.config import ServerConfig
from titanic.dispatch.discovery import BrokerDiscovery
from titanic.dispatch.dispatcher import Dispatcher
from titanic.dispatch.transport import LocalTransport, SocketTransport
from titanic.dispatch.transport_foreign import ForeignTransport
from titanic.dispatch.waiters import Waiters
from titanic.errors import CallerError, TitanicError
from titanic.protocol import tsp
from titanic.server.duplicate_queue import DuplicateQueueCheck
from titanic.server.gather import LAST, Ingest
from titanic.server.mdp_worker import Lanes
from titanic.server.snapshot import Figures, Workers, loads
from titanic.server.watchdog import Ask as AskPart
from titanic.server.watchdog import Pulse
from titanic.services.ask import Answers, Ask
from titanic.services.handler import Services
from titanic.store import Store
from titanic.util import file_limits
from titanic.util.clock import wall_us
from titanic.version import __version__

log = logging.getLogger(__name__)

OTHER_FILES = 40
"""File descriptors besides those of the lanes, which take two each."""

LIVE = ("retention", "limits", "max_attempts", "retry_first", "retry_most", "grace")
"""Settings that can be changed while it serves."""

FOREIGN = (
    "the broker at %s (MDP %s) is not of this project: a request that is closed or expires when it was sent already is"
    " executed all the same, and one without a reply after attempt_timeout, %g s, is sent to a second worker whatever"
    " the first one is doing; with 'titanic broker' neither happens"
)
"""What is lost: what P2 and P4 promise needs a broker that tells who works on what, and gives back what nobody has."""

FEW_LANES = 4
"""For services that are rarely asked."""


SHORTAGES = {
    "store": "the store is full; close requests, or raise its capacity",
    "disk": "the disk of the store is full; make room on it",
}


class Server:
    """A Titanic. `start`, then `stop`; or as a context manager."""

    def __init__(self, config: ServerConfig) -> None:
        """Open the store and bind the endpoints: raises StoreError or broker.EndpointError."""
        self.config = config
        self._broker: Broker | None = None
        self._lanes: Lanes | None = None
        self._discovery: BrokerDiscovery | None = None
        self._kind: Kind | None = None
        """Which broker was met last, when it is elsewhere."""
        self._registered = False
        self._ingest: Ingest | None = None
        self.gathers: tuple[str, ...] = ()
        """Where requests that want no answer are gathered, with real ports."""
        self.endpoints: tuple[str, ...] = ()
        """Where clients reach it, with real ports."""
        self.problem: TitanicError | None = None
        """Why it cannot serve, when that is found out after `start`; it is not `alive` then."""
        self.store = Store.open(
            config.store,
            capacity=config.capacity,
            preallocate=config.preallocate,
            closed_body_limit=config.closed_body_limit,
            drop_unarchived=config.drop_unarchived,
        )
        self._writer = Writer(self.store)
        self._dispatcher = Dispatcher(config, self.store, self._writer)
        try:
            answer = self._integrate(config) if config.broker is None else self._attach(config, config.broker)
        except BaseException:
            self._end(begun=False)
            raise
        most = config.wire.max_waiting_bytes
        here = self._broker
        sated = (lambda ask: False) if here is None else here.sated
        self._services = Services(
            self.store,
            self._writer,
            self._dispatcher,
            answer,
            sated=sated,
            most_bytes=most,
            most_body=config.wire.max_body if here is not None else None,
            limits=config.limits,
        )
        self._services.use(self._dispatcher)
        self._dispatcher.serve(Waiters(answer, self._services.look))
        self.pulse = Pulse(self._parts())

    def start(self) -> Server:
        """Serve, in threads of its own. An endpoint that cannot be right raises broker.EndpointError."""
        try:
            if self._discovery is not None:
                self._discovery.start(time.monotonic())
        except BaseException:
            self._end(begun=False)
            raise
        self._writer.start()
        self._services.start()
        self._dispatcher.start()
        if self._broker is not None:
            self._broker.start()
        if self._ingest is not None:
            self._ingest.start()
        if self._lanes is not None:
            self._lanes.start()
        return self

    def stop(self, *, begun: bool = True) -> None:
        """Finish what is in hand and stop.

        New requests are refused from now on. Requests that a worker has get `grace` seconds to bring their
        replies; those that do not make it are executed again after the next start. Nobody is waited for when the
        store can't be used any more. Not `begun`: it can't serve after all; then, as with a `problem`, the store goes
        if it was made for this server and nothing is in it.
        """
        if self._ingest is not None:
            self._ingest.stop(LAST if self.store.usable else 0.0)
        self._services.refuse("shutting down: try again in a moment")
        self._dispatcher.wind_down(self.config.grace)
        self._dispatcher.stop()
        self._services.stop()
        self._writer.stop()
        self._end(begun=begun and self.problem is None)

    @property
    def running(self) -> int:
        """Requests that are with a worker, or whose outcome is on its way to the disk."""
        return len(self._dispatcher.core.flights)

    @property
    def accepted(self) -> int:
        """Requests accepted since the start."""
        return self._services.accepted

    @property
    def gathered(self) -> dict[str, int]:
        """Messages that came without wanting an answer: "stored", "dropped", and "waiting" for either."""
        return {} if self._ingest is None else {**self._ingest.counts, "waiting": self._ingest.waiting}

    @property
    def workers(self) -> dict[bytes, int] | None:
        """How many workers each service has; None with a broker elsewhere, which knows."""
        return None if self._broker is None else self._broker.workers()

    def figures(self) -> Figures:
        """What was counted and what is there. Any thread may ask; it takes some milliseconds with many services."""
        workers: Workers | None = self.workers
        if self._lanes is not None and self.ready:
            workers = self._dispatcher.workers()
        with self.store.read() as transaction:
            services = loads(transaction, self._dispatcher.flying(), workers, wall_us())
            counts, full, disk_full = transaction.counts(), transaction.full(), transaction.disk_full()
        counted = self._services.figures()
        return Figures(
            counted={**counted["intake"], **counted["asked"], **self._dispatcher.core.counts},
            refused=counted["refused"],
            services=services,
            store=counts,
            usable=self.store.usable,
            full=full,
            disk_full=disk_full,
            waiting_clients=len(self._dispatcher.waiters),
            commit_seconds=self._writer.seconds,
            commit_sizes=self._writer.sizes,
            lags=self.pulse.lags(time.monotonic()),
            broker=None if self._broker is None else self._broker.counters(),
        )

    def shortages(self) -> dict[str, str]:
        """What is short now, "store" or "disk", so that requests are refused, in words. Any thread may ask."""
        with self.store.read() as transaction:
            found = {"store": transaction.full(), "disk": transaction.disk_full()}
        return {name: SHORTAGES[name] for name in found if found[name]}

    def reload(self, config: ServerConfig) -> None:
        """Go on with the settings of `config` that are LIVE; the others stay as they were."""
        self.config = replace(self.config, **{name: getattr(config, name) for name in LIVE})
        self._dispatcher.reconfigure(self.config)
        self._services.limit(self.config.limits)

    def _parts(self) -> dict[str, AskPart]:
        """The threads that do the work, and how each is reached."""
        parts: dict[str, AskPart] = {
            "writer": self._writer.call,
            "reader": self._services.call,
            "dispatcher": self._dispatcher.loop.call,
        }
        if self._broker is not None:
            parts["broker"] = self._broker.loop.call
        if self._lanes is not None:
            parts["lanes"] = self._lanes.call
        return parts

    def _end(self, *, begun: bool) -> None:
        """Close what is open, once the threads that use the store have ended, or never began."""
        self._dispatcher.stop()
        if self._ingest is not None:
            self._ingest.stop()
        if self._broker is not None:
            self._broker.stop()
        if self._lanes is not None:
            self._lanes.stop()
        if begun:
            self.store.close()
        else:
            self.store.discard()

    @property
    def ready(self) -> bool:
        """Whether clients are served; with a broker elsewhere, not before it knows of us."""
        return self.alive and (self._lanes is None or self._lanes.registered > 0)

    @property
    def alive(self) -> bool:
        """Whether all threads are running, there is no `problem`, and the store can be used.

        A thread that met an error of this program has logged it and ended; a store may have to be opened again after
        its disk failed. Then nothing better can be done than to stop and start again, which loses nothing.
        """
        parts = (self._dispatcher, self._broker, self._lanes, self._ingest)
        return self.problem is None and self.store.usable and all(part.alive for part in parts if part is not None)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _handle(self, name: bytes, batch: Sequence[Ask]) -> None:
        self._services.handle(name, batch)

    def _integrate(self, config: ServerConfig) -> Callable[[Answers], None]:
        """The broker in this process."""
        here = self._broker = Broker(config.wire, version=__version__)
        self.endpoints = tuple(here.bind(endpoint) for endpoint in config.bind)
        for name in tsp.SERVICES:
            here.integrate(name, partial(self._handle, name), room=tsp.ROOM)
        if config.gather:
            self._ingest = Ingest(here)
            self.gathers = tuple(self._ingest.bind(endpoint) for endpoint in config.gather)
        transport = LocalTransport(self._dispatcher.core)
        loop = self._dispatcher.loop

        def deliver(messages: list[tsp.Frames]) -> None:
            loop.call(lambda: transport.receive(messages, time.monotonic()))

        transport.peer = here.connect_local(deliver)
        self._dispatcher.use(transport)
        return here.reply

    def _attach(self, config: ServerConfig, endpoint: str) -> Callable[[Answers], None]:
        """A worker and client of a broker elsewhere."""
        self.endpoints = (endpoint,)
        lanes = {name: min(FEW_LANES, config.lanes) for name in tsp.SERVICES}
        lanes |= dict.fromkeys((tsp.REQUEST, tsp.REPLY, tsp.CLOSE, tsp.SUBMIT, tsp.WAIT), config.lanes)
        connections = sum(lanes.values()) + min(4 * config.lanes, ForeignTransport.MOST)
        file_limits.require(2 * connections + OTHER_FILES, f"{config.lanes} lanes")
        self._lanes = Lanes(endpoint, lanes, self._handle, config.worker, self._lost)
        self._discovery = BrokerDiscovery(endpoint, config.worker.versions, self._found)
        self._dispatcher.loop.add(self._discovery)
        return self._lanes.answer

    def _lost(self, ask: Ask) -> None:
        """Called in the lanes' thread: the connection is gone that this ask came by."""
        self._dispatcher.loop.call(self._dispatcher.waiters.forget, ask)

    def _found(self, kind: Kind) -> None:
        """Called in the dispatcher's thread: there is a broker, or another one. Serve it, if no other queue does."""
        if kind == self._kind:
            return
        endpoint, before, self._kind = self.endpoints[0], self._kind, kind
        if kind.ours:
            log.info("the broker at %s is one of this project, and speaks MDP %s", endpoint, kind.version)
        else:
            log.warning(FOREIGN, endpoint, kind.version, self.config.attempt_timeout)
        if before is None:
            assert self._discovery is not None
            store = str(self.store.path)
            check = DuplicateQueueCheck(endpoint, self._discovery, store, clear=self._register, taken=self._give_way)
            self._dispatcher.loop.add(check)
        elif self._registered:
            self._dispatch()

    def _give_way(self, other: str) -> None:
        """Called in the dispatcher's thread: another queue is there."""
        self.problem = CallerError(
            f"another queue serves the broker at {self.endpoints[0]} already",
            f"its store is {other}",
            "stop that one first, or use another broker: each would get requests that are meant for the other",
        )

    def _register(self) -> None:
        """Called in the dispatcher's thread: from now on it is ours to serve."""
        assert self._lanes is not None
        assert self._kind is not None
        self._registered = True
        self._lanes.register()
        self._dispatch()

    def _dispatch(self) -> None:
        """Called in the dispatcher's thread: send requests in the way that suits the broker."""
        assert self._discovery is not None
        assert self._kind is not None
        endpoint, dispatcher, config, discovery = self.endpoints[0], self._dispatcher, self.config, self._discovery
        # A lane is taken by one who waits: the next one must find one that is free.
        dispatcher.waiters.room = config.lanes - max(1, config.lanes // 8)
        if self._kind.ours:
            dispatcher.use(SocketTransport(dispatcher.core, dispatcher.loop, endpoint, discovery))
        else:
            transport = ForeignTransport(
                dispatcher.core,
                dispatcher.loop,
                endpoint,
                discovery,
                version=self._kind.version,
                room=config.lanes,
                attempt_timeout=config.attempt_timeout,
            )
            dispatcher.use(transport)
