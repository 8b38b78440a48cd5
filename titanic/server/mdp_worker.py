"""The server as an ordinary MDP worker of a separate broker: its services behind worker sockets.

MDP gives a worker one request at a time, so each service registers many worker sockets: its lanes. All requests that
have arrived on the lanes by the end of a round are one batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import zmq

from broker import (
    NOBODY,
    BrokerKind,
    Channel,
    Curve,
    Dealer,
    Job,
    KeyProbe,
    Loop,
    OutOfSockets,
    User,
    WorkerChannel,
    WorkerConfig,
    WorkerLog,
    WorkerSession,
    user_from_json,
)
from titanic.dispatch.waiters import Waiters
from titanic.protocol.tsp import Frames
from titanic.services.ask import Answers, HandleBatch, SendAnswers

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class LaneAsk:
    """A request that arrived on a lane."""

    lane: Lane
    job: int
    body: Frames
    user: User | None
    """The user that the broker reports; None: it has no access control."""
    peer: ClassVar[None] = None
    """The same for all: the broker does not report the client's peer."""


def user_in(client: bytes, kind: BrokerKind | None) -> User | None:
    """The user in the `client` frame of a request. `kind`: the kind of the broker, as last detected.

    A broker with access control puts the user after the number of the delivery and a space. This holds even before the
    broker is detected: another one may just have replaced it. If the frame does not identify a user, it is NOBODY.
    """
    _, space, document = client.partition(b" ")
    if space:
        try:
            return user_from_json(document)
        except ValueError:
            return None if kind is not None and not kind.ours else NOBODY
    return NOBODY if kind is not None and kind.access else None


class Lane(WorkerChannel):
    """One worker socket."""

    def __init__(self, lanes: Lanes, service: bytes, endpoint: str, config: WorkerConfig) -> None:
        session = WorkerSession(service, config, now=time.monotonic())
        super().__init__(session, Dealer(zmq.Context.instance(), endpoint, hold=True, curve=lanes.curve))
        self._lanes = lanes
        self._ask: LaneAsk | None = None
        """The last one."""

    def _begin(self, job: Job) -> None:
        self._ask = LaneAsk(self, job.number, job.body, user_in(job.client, self._lanes.kind))
        self._lanes.collect(self._ask)

    def _starved(self, error: OutOfSockets, now: float) -> None:
        super()._starved(error, now)
        self._lanes.starved(error, now)

    def _refused(self, now: float) -> None:
        self._lanes.refused(now)

    def _presence_changed(self) -> None:
        self._lanes.presence_changed()

    def _stranded(self, now: float) -> None:
        """Abandon the ask: the client repeats it, and waiting for its answer could block the lane for an hour."""
        if self._ask is not None:
            ask, self._ask = self._ask, None
            self.session.final(ask.job, [], now)
            self._lanes.waiters.forget(ask)


class FirstLane(Lane):
    """The first lane of a service. At a broker with access control, the others connect once this one is registered: a
    queue without permission would be refused on all of them, again and again."""

    others: list[Lane]
    _holds = False

    def hold(self) -> None:
        """Hold the other lanes until this one is registered."""
        kind = self._lanes.kind
        holds = kind is not None and kind.access and not self.session.registered
        if holds is not self._holds:
            self._holds = holds
            for lane in self.others:
                lane.session.held = holds
                self._lanes.loop.touch(lane)

    def flush(self, now: float) -> None:
        super().flush(now)
        self.hold()


class Lanes(Channel):
    """All lanes of all services, in one thread."""

    def __init__(
        self, endpoint: str, services: Mapping[bytes, int], config: WorkerConfig, curve: Curve | None = None
    ) -> None:
        """`services`: how many lanes each has. `curve`: the keys of their connections."""
        self.curve = curve
        self.waiters: Waiters
        self._handle_batch: HandleBatch
        self._endpoint = endpoint
        self._services = services
        self._config = config
        self.kind: BrokerKind | None = None
        """The kind of the broker, as last detected."""
        self.loop = Loop()
        # Any thread may call it.
        self.send_answers: SendAnswers = partial(self.loop.call, self._send_answers)
        self._lanes: list[Lane] = []
        self._batches: dict[bytes, list[LaneAsk]] = {}
        interval = config.heartbeat_interval
        self._log = WorkerLog(log, "titanic", endpoint, interval, self, services="titanic.*")
        self.loop.add(self._log)
        self._thread = threading.Thread(target=self.loop.run, name="lanes", daemon=True)

    def start(self, handle_batch: HandleBatch, waiters: Waiters) -> None:
        """Run, without any lanes yet. `handle_batch` gets the asks, in the lanes' thread. `waiters` forget those whose
        connection broke: their answers cannot be delivered."""
        self._handle_batch, self.waiters = handle_batch, waiters
        self._thread.start()

    def stop(self) -> None:
        """Disconnect and stop the thread."""
        self.loop.call(self._leave)
        self.loop.stop()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def registered(self) -> bool:
        """Whether any lane is registered."""
        return any(lane.session.registered for lane in self._lanes)

    def registered_at(self) -> str:
        return self._endpoint

    def key_probe(self, when: float) -> KeyProbe:
        return KeyProbe([self._endpoint], self.curve, when)

    def collect(self, ask: LaneAsk) -> None:
        """Add a request to the batch. Called by a lane."""
        self._batches.setdefault(ask.lane.session.service, []).append(ask)

    def starved(self, error: OutOfSockets, now: float) -> None:
        """Log that a lane could not connect. Called by the lane."""
        self._log.starved(str(error), now)

    def refused(self, now: float) -> None:
        """Log that the broker refused a lane. Called by the lane."""
        self._log.refused(now)
        self.loop.touch(self._log)

    def presence_changed(self) -> None:
        """Update the log of the connection. Called by a lane that was registered or disconnected."""
        self.loop.touch(self._log)

    def register(self) -> None:
        """Register with the broker. Call this in the loop's thread."""
        for service, count in self._services.items():
            first = FirstLane(self, service, self._endpoint, self._config)
            first.others = [Lane(self, service, self._endpoint, self._config) for _ in range(count - 1)]
            first.hold()
            self._lanes += [first, *first.others]
        for lane in self._lanes:
            self.loop.add(lane)
        self.loop.add(self)  # last: it is flushed after all lanes

    def _send_answers(self, answers: Answers) -> None:
        now = time.monotonic()
        for ask, body in answers:
            ask.lane.session.final(ask.job, body, now)
            self.loop.touch(ask.lane)

    def _leave(self) -> None:
        self._log.leave()
        now = time.monotonic()
        for lane in self._lanes:
            lane.session.leave(now)
            self.loop.touch(lane)

    def flush(self, now: float) -> None:
        """Pass on the batches of all lanes."""
        batches, self._batches = self._batches, {}
        for service, batch in batches.items():
            self._handle_batch(service, batch)
