"""A queue at a separate broker, of which it is an ordinary worker and client."""

from __future__ import annotations

import logging
import time

from broker import UNANSWERING, BrokerKind, credentials
from titanic.dispatch.broker_connection import BrokerDiscovery
from titanic.dispatch.dispatcher import Dispatcher
from titanic.dispatch.transport import SocketTransport
from titanic.dispatch.transport_foreign import ForeignTransport
from titanic.errors import CallerError
from titanic.protocol import tsp
from titanic.server.duplicate_queue import DuplicateQueueCheck
from titanic.server.front import Front
from titanic.server.mdp_worker import Lanes
from titanic.server.watchdog import CallInThread
from titanic.services.ask import HandleBatch
from titanic.settings import ServerConfig
from titanic.util import files
from titanic.util.text import is_url

log = logging.getLogger(__name__)

OTHER_FILES = 40
"""File descriptors besides those of the lanes, which take two each."""

FEW_LANES = 4
"""Lanes of a rarely used service."""

BUSY_SERVICES = (tsp.REQUEST, tsp.REPLY, tsp.CLOSE, tsp.SUBMIT, tsp.WAIT)

FOREIGN = (
    "the broker at %s (MDP %s) is not a titanic broker: a request that is closed or expires after it was sent is"
    " still executed, and a request without a reply after attempt_timeout, %g s, is sent to a second worker even"
    " if the first one still runs it; use 'titanic broker' to avoid both"
)
"""P2 and P4 need a broker that knows which worker has a request, and returns requests that no worker has."""


SAYS_NOTHING = (
    "the broker at %s does not report which services have workers (RFC 8): a request for a service without workers"
    " waits in that broker, and its attempt fails after attempt_timeout, %g s"
)


class AttachedFront(Front):
    """Detects the kind of broker, then checks whether another queue serves it already. Only then it registers the
    lanes, and sends requests in the way that suits that broker.

    Methods that start with an underscore are called in the loop's thread, and so are `found`, `register` and
    `give_way`."""

    def __init__(self, config: ServerConfig, endpoint: str, store: str, queue: str = "") -> None:
        """`store`, `queue`: the path of the store, and the id of this node; another queue has different ones. Raises
        CallerError when the lanes need more file descriptors than the process may have, broker.AccessError when the
        keys cannot be used."""
        self.endpoints = (endpoint,)
        # Each waiting client occupies a lane: some must stay free.
        self.most_waiters = config.lanes - max(1, config.lanes // 8)
        lanes = {name: config.lanes if name in BUSY_SERVICES else min(FEW_LANES, config.lanes) for name in tsp.SERVICES}
        connections = sum(lanes.values()) + min(4 * config.lanes, ForeignTransport.MOST)
        files.require_open_files(2 * connections + OTHER_FILES, f"{config.lanes} lanes")
        self._config, self._store, self._queue = config, store, queue
        curve = credentials(config.key, config.server_key)
        self._lanes = Lanes(endpoint, lanes, config.worker, curve)
        self._discovery = BrokerDiscovery(endpoint, config.worker.versions, self, curve)
        self.loop = self._lanes.loop
        self._dispatcher: Dispatcher
        self._kind: BrokerKind | None = None
        """The last broker that was found."""
        self._registered = False
        self.send_answers = self._lanes.send_answers
        self.congested = lambda ask: False  # the broker does not report the client's peer

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        self._dispatcher = dispatcher
        self.loop.add(self._discovery)
        self._discovery.start(time.monotonic())
        self._lanes.start(handle_batch, dispatcher.waiters)

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

    def found(self, kind: BrokerKind) -> None:
        """Serve the broker that was detected, perhaps another one than before, if no other queue does."""
        if kind == self._kind:
            return
        endpoint, before = self.endpoints[0], self._kind
        if before is not None and before.access and not kind.access:
            self._give_up()
            return
        self._kind = self._lanes.kind = kind
        if kind.ours:
            log.info("the broker at %s is a titanic broker and speaks MDP %s", endpoint, kind.version)
        else:
            log.warning(FOREIGN, endpoint, kind.version, self._config.attempt_timeout)
        if kind.version == UNANSWERING:
            log.warning(SAYS_NOTHING, endpoint, self._config.attempt_timeout)
        if before is None:
            self.loop.add(DuplicateQueueCheck(endpoint, self._discovery, self._store, self._queue, self))
        elif self._registered:
            self._connect()

    def _give_up(self) -> None:
        """Stop serving: the broker was replaced by one without access control. The lanes still expect the former one,
        so that all asks come from NOBODY."""
        self.problem = CallerError(
            f"the broker at {self.endpoints[0]} no longer has access control",
            "anyone who connects there could read and close users' requests, and execute them",
            "start it with --access again, and then this queue; if this is intended, just restart this queue",
        )

    def give_way(self, other: str) -> None:
        """Stop serving: another queue serves the broker."""
        if is_url(other) and other == self._store:
            self.problem = CallerError(
                f"another node of this store serves the broker at {self.endpoints[0]} already",
                f"it shares {other} with this one",
                "give each node its own broker: otherwise each node would dispatch enough for all of the workers",
            )
            return
        self.problem = CallerError(
            f"another queue serves the broker at {self.endpoints[0]} already",
            f"its store is {other}",
            "stop that one first, or use another broker: otherwise each would receive requests of the other",
        )

    def register(self) -> None:
        """Serve the broker from now on."""
        self._registered = True
        self._lanes.register()
        self._connect()

    def _connect(self) -> None:
        """Send requests in the way that suits the broker."""
        assert self._kind is not None
        endpoint, dispatcher, config = self.endpoints[0], self._dispatcher, self._config
        if self._kind.ours:
            parts = dispatcher.core, self.loop, endpoint, self._discovery, dispatcher, dispatcher.deliveries
            own, is_first = SocketTransport(*parts), dispatcher.transport is None
            dispatcher.connect(own)
            if is_first:
                dispatcher.resume(own)
            return
        transport = ForeignTransport(
            dispatcher.core,
            self.loop,
            endpoint,
            self._discovery,
            dispatcher,
            version=self._kind.version,
            room=config.lanes,
            attempt_timeout=config.attempt_timeout,
        )
        dispatcher.connect(transport)
