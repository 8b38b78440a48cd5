"""A queue at a separate broker, of which it is an ordinary worker and client. It gives way to another queue there."""

from __future__ import annotations

import logging
import random
import time

import zmq

from broker import (
    UNANSWERING,
    BrokerKind,
    ClientConfig,
    ClientSession,
    Dealer,
    EventKind,
    OutOfSockets,
    SessionChannel,
    credentials,
    earliest,
    read_json,
)
from titanic.dispatch.broker_connection import BrokerDiscovery, Shortage
from titanic.dispatch.dispatcher import Dispatcher
from titanic.dispatch.transport import SocketTransport
from titanic.dispatch.transport_foreign import ForeignTransport
from titanic.errors import CallerError
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
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

PATIENCE, RETRIES = 1.0, 1
"""Timeout of a queue's answer in seconds, and how often it is asked again."""

MAX_CHECKS, PAUSE = 10, (0.3, 1.0)
"""How often it checks again after it has registered, and the range of random pauses between checks: two queues that
check at the same time would see only themselves."""


class AttachedFront(Front):
    """Detects the kind of broker, then checks whether another queue serves it already. Only then it registers the
    lanes, and sends requests in the way that suits that broker.

    Methods that start with an underscore are called in the loop's thread, and so are `found`, `register` and
    `give_way`."""

    def __init__(self, config: ServerConfig, endpoint: str, store: str, queue: str) -> None:
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


class DuplicateQueueCheck(SessionChannel[ClientSession]):
    """Checks whether another queue serves a broker, and reports that to its owner.

    Two queues would share the requests for `titanic.request` and the other services, so that replies would be searched
    in the wrong store. Registered names prove nothing: the names of a killed queue stay registered until its heartbeats
    are missed, and it must be possible to restart it at once. So the registered queue is asked for an answer. Two
    queues that start together find none, and both register. So each checks a few times more, and one of them gives way.

    Nodes that share a store must use different brokers. Two nodes at one broker would each send as many requests as all
    of the broker's workers can take.
    """

    def __init__(
        self,
        endpoint: str,
        discovery: BrokerDiscovery,
        store: str,
        queue: str,
        owner: AttachedFront,
    ) -> None:
        """`store`: the path of our own store. `queue`: the id of this node: other machines may have the same path."""
        super().__init__(ClientSession(), Dealer(zmq.Context.instance(), endpoint, hold=True, curve=discovery.curve))
        self._endpoint = endpoint
        self._own = store, queue
        self._discovery = discovery
        self._owner = owner
        self._asked: bytes | None = None
        self._done = False
        self._registered = False
        self._checks = 0
        """How often it has checked since it registered."""
        self._again_at: float | None = None
        """When it checks again."""
        self._shortage = Shortage()

    def next_deadline(self) -> float | None:
        return None if self._done else earliest(self._again_at, self.session.next_deadline(), self._shortage.ends)

    def flush(self, now: float) -> None:
        if self._done or self._shortage.lasts(now) or (self._again_at is not None and now < self._again_at):
            return
        self._again_at = None
        if self._discovery.kind is None:
            self._dealer.close(linger=0)
            self._asked = None
            return
        if self._asked is None:
            self.session = ClientSession(ClientConfig(PATIENCE, RETRIES, self._discovery.kind.version))
            if self._discovery.kind.version == UNANSWERING:  # it does not report which services are registered
                self._ask(tsp.STATS, b"{}", now)
            else:
                self._ask(b"mmi.service", tsp.STATS, now)
        for _, kind, body, _ in self.session.take_events():
            self._learn(body if kind is EventKind.FINAL else None, now)
        try:
            self._dealer.send(self.session.take_output())
            self._shortage.recovered()
        except OutOfSockets as error:  # the question was not sent
            self._shortage.failed(error, now)
            self._asked = None
        if self._done:
            self._dealer.close()

    def _lost(self, now: float) -> None:
        """Do nothing: the discovery notices it, too, and all questions are repeated once it has detected the broker."""

    def _ask(self, service: bytes, body: bytes, now: float) -> None:
        self._asked = service
        self.session.request(service, [body], now)

    def _learn(self, answer: Frames | None, now: float) -> None:
        """Handle the answer to the last question; None: there was none."""
        if self._asked == b"mmi.service":
            if answer is None:  # the broker has gone; another queue may be registered when it is back
                self._asked = None
            elif answer[:1] == [b"200"]:
                self._ask(tsp.STATS, b"{}", now)
            else:
                self._go_on(now)
        elif answer is not None and answer[:1] == [tsp.OK]:
            other = _queue(answer)
            if self._registered and other >= self._own:  # this queue, or one that sees this one and gives way
                self._go_on(now)
            else:
                self._done = True
                self._owner.give_way(other[0])
        elif answer is not None and answer[0].startswith(b"403"):
            log.error(
                "cannot check whether another queue serves %s already: %s; grant the user of this queue's key"
                ' work = ["titanic.*"], and make sure that there is no other queue',
                self._endpoint,
                answer[0].decode(errors="replace"),
            )
            self._go_on(now)
            self._done = True
        else:
            if not self._registered and self.session.config.version != UNANSWERING:
                log.info("the queue that is registered at %s does not answer: replacing it", self._endpoint)
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        """Go on: there is no queue that has precedence."""
        self._asked = None
        if not self._registered:
            self._registered = True
            self._owner.register()
        elif self._checks >= MAX_CHECKS:
            self._done = True
        self._checks += 1
        self._again_at = now + random.uniform(*PAUSE)


def _queue(answer: Frames) -> tuple[str, str]:
    """The path of another queue's store, and the id of its node, from its titanic.stats."""
    try:
        stats = read_json(answer[1])
        return str(stats["store"]["path"]), str(stats.get("queue", ""))
    except (IndexError, KeyError, TypeError, AttributeError, ValueError):
        return "unknown", ""
