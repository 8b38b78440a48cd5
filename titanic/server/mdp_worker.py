"""Titanic as an ordinary MDP worker of a broker elsewhere: its services behind worker sockets.

MDP gives a worker one request at a time, so each service registers many worker sockets: its lanes. All requests that
are ready on all lanes at the end of a round are one batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
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
from titanic.protocol.tsp import Frames
from titanic.services.ask import Answers, HandleBatch, SendAnswers

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class LaneAsk:
    """A request that came on a lane."""

    lane: Lane
    job: int
    body: Frames
    user: User | None
    """Who asks, as the broker says; None: it has no access control."""
    peer: ClassVar[None] = None
    """The same for all: the broker does not say from where it came."""


def user_in(client: bytes, kind: BrokerKind | None) -> User | None:
    """Who asks, by the `client` frame of a request. `kind`: the broker, as it was last found to be.

    One with access control tells it behind the number of the delivery and a space. It is believed before it is known
    which broker is there: another one may just have taken its place. Who cannot be told from its frame is NOBODY.
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
        """Give up the ask: the client asks again, and an ask can wait for an hour, too long for a lane to be away."""
        if self._ask is not None:
            ask, self._ask = self._ask, None
            self.session.final(ask.job, [], now)
            self._lanes.lost(ask)


class FirstLane(Lane):
    """The first lane of a service. At a broker with access control the others connect when this one has been let in: a
    queue that may not work there would be refused by all of them, again and again."""

    others: list[Lane]
    _holds = False

    def hold(self) -> None:
        """Have the others wait, or not any more."""
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
        self.lost: Callable[[LaneAsk], None]
        self._handle_batch: HandleBatch
        self._endpoint = endpoint
        self._services = services
        self._config = config
        self.kind: BrokerKind | None = None
        """The broker, as it was last found to be."""
        self.loop = Loop()
        # Any thread may call it.
        self.send_answers: SendAnswers = partial(self.loop.call, self._send_answers)
        self._lanes: list[Lane] = []
        self._batches: dict[bytes, list[LaneAsk]] = {}
        interval = config.heartbeat_interval
        probe = partial(KeyProbe, [endpoint], curve)
        self._log = WorkerLog(log, "titanic", endpoint, interval, self.registered, services="titanic.*", probe=probe)
        self.loop.add(self._log)
        self._thread = threading.Thread(target=self.loop.run, name="lanes", daemon=True)

    def start(self, handle_batch: HandleBatch, lost: Callable[[LaneAsk], None]) -> None:
        """Run, without any lanes yet. `handle_batch` gets the asks. `lost` is told of asks whose connection is gone:
        their answers reach nobody. Both are called in the lanes' thread."""
        self._handle_batch, self.lost = handle_batch, lost
        self._thread.start()

    def stop(self) -> None:
        """Say good-bye and end the thread."""
        self.loop.call(self._leave)
        self.loop.stop()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def registered(self) -> bool:
        """Whether a lane has heard from the broker."""
        return any(lane.session.registered for lane in self._lanes)

    def collect(self, ask: LaneAsk) -> None:
        """Called by a lane: a request has come."""
        self._batches.setdefault(ask.lane.session.service, []).append(ask)

    def starved(self, error: OutOfSockets, now: float) -> None:
        """Called by a lane that could not connect."""
        self._log.starved(str(error), now)

    def refused(self, now: float) -> None:
        """Called by a lane that the broker sent away."""
        self._log.refused(now)
        self.loop.touch(self._log)

    def presence_changed(self) -> None:
        """Called by a lane that was let in, or has lost the broker."""
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
        self.loop.add(self)  # the last: its flush comes when all lanes have been looked at

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
        """Hand over what the lanes collected."""
        batches, self._batches = self._batches, {}
        for service, batch in batches.items():
            self._handle_batch(service, batch)
