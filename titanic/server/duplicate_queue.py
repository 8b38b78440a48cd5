"""Detects another queue at the same broker: one of the two has to give way."""

from __future__ import annotations

import logging
import random
from typing import Protocol

import zmq

from broker import (
    UNANSWERING,
    ClientConfig,
    ClientSession,
    Dealer,
    EventKind,
    OutOfSockets,
    SessionChannel,
    earliest,
    read_json,
)
from titanic.dispatch.broker_connection import BrokerDiscovery, Shortage
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames

log = logging.getLogger(__name__)

PATIENCE, RETRIES = 1.0, 1
"""Timeout of a queue's answer in seconds, and how often it is asked again."""

MAX_CHECKS, PAUSE = 10, (0.3, 1.0)
"""How often it checks again after it has registered, and the range of random pauses between checks: two queues that
check at the same time would see only themselves."""


class CheckOwner(Protocol):
    """The front of the queue."""

    def register(self) -> None:
        """Serve the broker from now on: no other queue does."""

    def give_way(self, other: str) -> None:
        """Stop serving: a queue with the store `other` serves the broker. May also be called some seconds after
        `register`."""


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
        owner: CheckOwner,
    ) -> None:
        """`store`: the path of our own store. `queue`: the id of this node; empty when there can be no others."""
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
