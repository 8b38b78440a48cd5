"""The side of Titanic that faces a broker: asks come in by it; answers, and requests for workers, go out.

IntegratedFront    the broker runs in this process; the dispatcher needs no socket
AttachedFront      the broker runs elsewhere, and Titanic is an ordinary worker and client of it

Each has one loop in one thread, in which the dispatcher runs too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from broker import Access, Kind, Loop, credentials
from titanic.config import ServerConfig
from titanic.dispatch.connection import BrokerDiscovery
from titanic.dispatch.dispatcher import Dispatcher
from titanic.dispatch.transport import LocalTransport, SocketTransport
from titanic.dispatch.transport_foreign import ForeignTransport
from titanic.dispatch.waiters import MOST_WAITERS
from titanic.errors import CallerError, TitanicError
from titanic.protocol import tsp
from titanic.server.duplicate_queue import DuplicateQueueCheck
from titanic.server.gather import LAST, GatherEndpoints
from titanic.server.mdp_worker import Lanes
from titanic.server.server_access import ServerAccess, new_broker
from titanic.server.watchdog import CallInThread
from titanic.services.ask import HandleBatch, SendAnswers
from titanic.util import file_limits
from titanic.util.database_url import is_url

log = logging.getLogger(__name__)

OTHER_FILES = 40
"""File descriptors besides those of the lanes, which take two each."""

FEW_LANES = 4
"""Lanes of a service that is rarely asked."""

BUSY_SERVICES = (tsp.REQUEST, tsp.REPLY, tsp.CLOSE, tsp.SUBMIT, tsp.WAIT)

FOREIGN = (
    "the broker at %s (MDP %s) is not of this project: a request that is closed or expires when it was sent already is"
    " executed all the same, and one without a reply after attempt_timeout, %g s, is sent to a second worker whatever"
    " the first one is doing; with 'titanic broker' neither happens"
)
"""P2 and P4 need a broker that knows which worker has a request, and gives back what no worker has."""


class Front(Protocol):
    """The interface of IntegratedFront and AttachedFront, with defaults. A front is started and stopped once."""

    loop: Loop
    """Where asks are handled; for the dispatcher."""
    endpoints: tuple[str, ...]
    """Where clients reach it, with real ports."""
    gathers: tuple[str, ...] = ()
    """Where requests that want no answer are gathered, with real ports."""
    most_body: int | None = None
    """Bytes of a request's body that Titanic may take; None: the broker refuses what is too large."""
    most_waiters: int = MOST_WAITERS
    """See `Waiters`."""
    problem: TitanicError | None = None
    """Why it cannot serve, if that is found out after `start`."""
    send_answers: SendAnswers
    """Sends answers to those who asked. Any thread may call it."""
    congested: Callable[[Any], bool]
    """Whether the peer of an ask does not read the answers that are on their way to it. Any thread may call it."""

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        """Give asks to `handle_batch` from now on, and a transport to the dispatcher as soon as there is a broker.
        Called before the dispatcher starts. An endpoint that cannot be right raises broker.EndpointError."""

    def reload(self, access: Access) -> None:
        """This says from now on who may do what. Any thread may call it."""
        return

    def stop_gathering(self, patience: float) -> None:
        """Gather no more requests; those that have come get `patience` seconds to be stored."""
        return

    def wind_down(self) -> None:
        """Take no requests for workers any more, and send workers elsewhere as they become free. Any thread may call
        it. (With a broker elsewhere, workers are that broker's.)"""
        return

    @property
    def wound_down(self) -> bool:
        """Whether no worker is left since then."""
        return True

    def stop(self) -> None:
        """End the threads and close the sockets; also when it was not started."""

    @property
    def alive(self) -> bool:
        """Whether its threads run, and there is no problem."""

    @property
    def ready(self) -> bool:
        """Whether clients are served."""
        return True

    def threads(self) -> dict[str, CallInThread]:
        """Its threads, and how to have a function called in each."""

    def workers(self) -> dict[bytes, int] | None:
        """How many workers each service has; None: only the broker elsewhere knows."""
        return None

    def gathered(self) -> dict[str, int]:
        """Messages that came without wanting an answer: "stored", "dropped", and "waiting" for either."""
        return {}

    def counters(self) -> Mapping[str, int] | None:
        """The integrated broker's counters."""
        return None

    def refusals(self) -> Mapping[tuple[str, str], int]:
        """What the integrated broker refused, by user and action."""
        return {}


class IntegratedFront(Front):
    """The broker's loop hands batches to the services."""

    def __init__(self, config: ServerConfig, control: ServerAccess | None) -> None:
        """Bind the endpoints: raises broker.EndpointError, AccessError, or broker.patterns.MissingDrafts."""
        self.most_body = config.wire.max_body
        self._broker = new_broker(config.wire, control, open=config.open)
        self._gathering: GatherEndpoints | None = None
        self.loop = self._broker.loop
        self.send_answers = self._broker.reply
        self.congested = self._broker.congested
        try:
            self.endpoints = tuple(self._broker.bind(endpoint) for endpoint in config.bind)
            self._gathering = GatherEndpoints(self._broker, config.gather, control, open=config.open)
            self.gathers = self._gathering.endpoints
        except BaseException:
            self.stop()
            raise
        if control is not None:
            control.warn_of_unbound((*config.bind, *config.gather))

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        here = self._broker
        for name in tsp.SERVICES:
            here.integrate(name, partial(handle_batch, name), room=tsp.ROOM)
        lasts = None if dispatcher.node is None else dispatcher.node.lasts
        connect = partial(here.connect_local, lasts=lasts)
        dispatcher.connect(LocalTransport(dispatcher.core, connect, dispatcher.guard))
        here.start()
        if self._gathering is not None:
            self._gathering.start()

    def reload(self, access: Access) -> None:
        self._broker.reload(access)
        if self._gathering is not None:  # behind: the broker goes by who each was
            self.loop.call(self._gathering.reload, access)

    def stop_gathering(self, patience: float) -> None:
        if self._gathering is not None:
            self._gathering.stop(patience)

    def wind_down(self) -> None:
        self._broker.wind_down()

    @property
    def wound_down(self) -> bool:
        return not self._broker.workers()

    def stop(self) -> None:
        if self._gathering is not None:
            self._gathering.stop(LAST)
        self._broker.stop()

    @property
    def alive(self) -> bool:
        return self._broker.alive and (self._gathering is None or self._gathering.alive)

    def workers(self) -> dict[bytes, int]:
        return self._broker.workers()

    def gathered(self) -> dict[str, int]:
        return {} if self._gathering is None else self._gathering.counts()

    def counters(self) -> Mapping[str, int]:
        return self._broker.counters()

    def refusals(self) -> Mapping[tuple[str, str], int]:
        return self._broker.refusals()

    def threads(self) -> dict[str, CallInThread]:
        return {"broker": self._broker.loop.call}


class AttachedFront(Front):
    """First it finds out which broker is there, then whether another queue serves it already. Only then are the lanes
    registered, and requests are sent in the way that suits that broker.

    Methods that begin with an underscore are called in the loop's thread."""

    def __init__(self, config: ServerConfig, endpoint: str, store: str, queue: str = "") -> None:
        """`store`, `queue`: where our store is, and which of its nodes this is; another queue is recognised by its own.
        Raises CallerError when the lanes need more file descriptors than the process may have, broker.AccessError when
        the keys cannot be used."""
        self.endpoints = (endpoint,)
        # A client that waits takes a lane: the next one must find one that is free.
        self.most_waiters = config.lanes - max(1, config.lanes // 8)
        lanes = {name: config.lanes if name in BUSY_SERVICES else min(FEW_LANES, config.lanes) for name in tsp.SERVICES}
        connections = sum(lanes.values()) + min(4 * config.lanes, ForeignTransport.MOST)
        file_limits.require(2 * connections + OTHER_FILES, f"{config.lanes} lanes")
        self._config, self._store, self._queue = config, store, queue
        curve = credentials(config.key, config.server_key)
        self._lanes = Lanes(endpoint, lanes, config.worker, curve)
        self._discovery = BrokerDiscovery(endpoint, config.worker.versions, self._found, curve)
        self.loop = self._lanes.loop
        self._dispatcher: Dispatcher
        self._kind: Kind | None = None
        """The last broker that was found."""
        self._registered = False
        self.send_answers = self._lanes.send_answers
        self.congested = lambda ask: False  # the broker does not say for whom it asks

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        self._dispatcher = dispatcher
        self.loop.add(self._discovery)
        self._discovery.start(time.monotonic())
        self._lanes.start(handle_batch, dispatcher.waiters.forget)

    def stop(self) -> None:
        self._lanes.stop()

    @property
    def alive(self) -> bool:
        return self.problem is None and self._lanes.alive

    @property
    def ready(self) -> bool:
        return self._lanes.registered()

    def threads(self) -> dict[str, CallInThread]:
        return {"lanes": self.loop.call}

    def _found(self, kind: Kind) -> None:
        """A broker is there, perhaps another one. Serve it if no other queue does."""
        if kind == self._kind:
            return
        endpoint, before = self.endpoints[0], self._kind
        if before is not None and before.access and not kind.access:
            self._give_up()
            return
        self._kind = self._lanes.kind = kind
        if kind.ours:
            log.info("the broker at %s is one of this project, and speaks MDP %s", endpoint, kind.version)
        else:
            log.warning(FOREIGN, endpoint, kind.version, self._config.attempt_timeout)
        if before is None:
            check = DuplicateQueueCheck(
                endpoint,
                self._discovery,
                self._store,
                self._queue,
                clear=self._register,
                taken=self._give_way,
            )
            self.loop.add(check)
        elif self._registered:
            self._connect()

    def _give_up(self) -> None:
        """Another broker is there, which tells nobody from anybody. For the lanes the former is there still: whoever
        asks is NOBODY."""
        self.problem = CallerError(
            f"the broker at {self.endpoints[0]} has no access control any more",
            "whoever connects there could read and close what users have submitted, and work for them",
            "start it with --access again, and then this queue; if it is meant, start this queue again",
        )

    def _give_way(self, other: str) -> None:
        """Another queue serves the broker."""
        if is_url(other) and other == self._store:
            self.problem = CallerError(
                f"another node of this store serves the broker at {self.endpoints[0]} already",
                f"it shares {other} with this one",
                "give each node a broker of its own: each would send what all workers of this one can take",
            )
            return
        self.problem = CallerError(
            f"another queue serves the broker at {self.endpoints[0]} already",
            f"its store is {other}",
            "stop that one first, or use another broker: each would get requests that are meant for the other",
        )

    def _register(self) -> None:
        """Serve the broker from now on."""
        self._registered = True
        self._lanes.register()
        self._connect()

    def _connect(self) -> None:
        """Send requests in the way that suits the broker."""
        assert self._kind is not None
        endpoint, dispatcher, config = self.endpoints[0], self._dispatcher, self._config
        if self._kind.ours:
            dispatcher.connect(SocketTransport(dispatcher.core, self.loop, endpoint, self._discovery, dispatcher.wake))
            return
        transport = ForeignTransport(
            dispatcher.core,
            self.loop,
            endpoint,
            self._discovery,
            dispatcher.wake,
            version=self._kind.version,
            room=config.lanes,
            attempt_timeout=config.attempt_timeout,
        )
        dispatcher.connect(transport)
