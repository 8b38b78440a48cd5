"""How requests travel from the dispatcher to a broker and their replies back.

    LocalCourier    to the broker in this process, without a socket
    SocketCourier   to a broker of this project elsewhere: any number in flight on one connection
    LaneCourier     to any other MDP broker: one in flight per connection, many connections

The first two ask `mmi.workers` about all services at once. The third has only RFC 8's `mmi.service`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import zmq

from broker import ClientConfig, ClientSession, Dealer, EventKind, LocalPeer, Loop
from titanic.dispatch.core import Send
from titanic.tsp import Frames

MMI_TIMEOUT = 2.5
FOR_EVER = 1 << 30


class Results(Protocol):
    """Who is told what came of it: the dispatcher's core."""

    def replied(self, uuid: bytes, body: Frames, now: float) -> None:
        """The whole reply to a request."""

    def timed_out(self, uuid: bytes, now: float) -> None:
        """There was none in time."""

    def present(self, name: bytes, workers: int, now: float) -> None:
        """How many workers a service has."""


class Courier(Protocol):
    """Carries requests, questions about presence, and what comes back."""

    def send(self, sends: Sequence[Send], now: float) -> None:
        """Send requests."""

    def ask(self, names: Sequence[bytes], now: float) -> None:
        """Ask for the presence of services."""

    def push(self, now: float) -> None:
        """Let go out what was sent and asked."""

    def deliver(self, now: float) -> None:
        """Tell what has come."""


class _Correlated:
    """What the two couriers for our own broker have in common: one session with any number in flight."""

    def __init__(self, results: Results) -> None:
        self.session = ClientSession(ClientConfig(timeout=None), correlated=True)
        self._results = results
        self._uuids: dict[int, bytes] = {}
        self._parts: dict[int, Frames] = {}
        self._names: set[bytes] = set()
        self._question = 0

    def send(self, sends: Sequence[Send], now: float) -> None:
        for uuid, service, body in sends:
            self._uuids[self.session.request(service, body, now)] = uuid

    def ask(self, names: Sequence[bytes], now: float) -> None:
        self._names.update(names)
        if not self._question:
            self._question = self.session.request(b"mmi.workers", [b""], now, timeout=MMI_TIMEOUT, retries=FOR_EVER)

    def deliver(self, now: float) -> None:
        for ticket, kind, body in self.session.take_events():
            if ticket == self._question:
                self._question = 0
                self._tell_presence(body, now)
            elif kind is EventKind.PARTIAL:
                self._parts.setdefault(ticket, []).extend(body)
            else:
                parts = self._parts.pop(ticket, None)
                self._results.replied(self._uuids.pop(ticket), parts + body if parts else body, now)

    def _tell_presence(self, body: Frames, now: float) -> None:
        try:
            workers = json.loads(body[0])
        except (ValueError, IndexError):
            workers = {}
        names, self._names = self._names, set()
        for name in names:
            self._results.present(name, workers.get(name.decode(), 0), now)


class LocalCourier(_Correlated):
    """To the broker in this process."""

    def __init__(self, results: Results) -> None:
        super().__init__(results)
        self.peer: LocalPeer | None = None

    def receive(self, messages: Sequence[Frames], now: float) -> None:
        """Messages from the broker; to be called in the dispatcher's thread."""
        for frames in messages:
            self.session.receive(self.session.connection, frames, now)

    def push(self, now: float) -> None:
        output = [frames for _, frames in self.session.take_output() if frames is not None]
        if output and self.peer is not None:
            self.peer.send(output)


class Connection:
    """A session on its own socket, as a channel of a loop."""

    def __init__(self, session: ClientSession, endpoint: str) -> None:
        self.session = session
        self._dealer = Dealer(zmq.Context.instance(), endpoint, watch=True)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        return self._dealer.sockets()

    def changed(self) -> bool:
        return self._dealer.changed()

    def drain(self, now: float) -> bool:
        while (frames := self._dealer.receive()) is not None:
            self.session.receive(self._dealer.number, frames, now)
        if self._dealer.broke():
            # The broker has died or lost us: it will not answer what it was sent.
            self.session.lost(now)
        return False

    def tick(self, now: float) -> None:
        self.session.tick(now)

    def next_deadline(self) -> float | None:
        return self.session.next_deadline()

    def flush(self, now: float) -> None:
        self._dealer.send(self.session.take_output())

    def close(self) -> None:
        self._dealer.close()


class SocketCourier(_Correlated):
    """To a broker of this project elsewhere."""

    def __init__(self, results: Results, loop: Loop, endpoint: str) -> None:
        super().__init__(results)
        self._connection = Connection(self.session, endpoint)
        loop.add(self._connection)

    def push(self, now: float) -> None:
        self._connection.flush(now)


class LaneCourier:
    """To a broker that need not keep envelope stacks: each request has a connection to itself."""

    MOST_LANES = 1000

    def __init__(
        self, results: Results, loop: Loop, endpoint: str, *, version: str, room: int, attempt_timeout: float
    ) -> None:
        """`room`: requests in flight for a service that is there, since MMI does not tell how many workers it has."""
        self._results = results
        self._loop = loop
        self._endpoint = endpoint
        self._room = room
        self._config = ClientConfig(timeout=attempt_timeout, retries=0, version=version)
        self._lanes: list[Connection] = []
        self._free: list[Connection] = []
        self._busy: dict[Connection, Send | bytes] = {}  # a request, or the service that was asked for
        self._queue: deque[Send | bytes] = deque()
        self._parts: dict[Connection, Frames] = {}

    def send(self, sends: Sequence[Send], now: float) -> None:
        self._queue.extend(sends)
        self._start(now)

    def ask(self, names: Sequence[bytes], now: float) -> None:
        self._queue.extendleft(names)  # a question is short: it need not wait behind requests
        self._start(now)

    def push(self, now: float) -> None:
        for lane in self._busy:
            lane.flush(now)

    def deliver(self, now: float) -> None:
        for lane in list(self._busy):
            for _, kind, body in lane.session.take_events():
                if kind is EventKind.PARTIAL:
                    self._parts.setdefault(lane, []).extend(body)
                else:
                    self._end(lane, self._parts.pop(lane, []) + body, kind is EventKind.GAVE_UP, now)
        self._start(now)

    def _end(self, lane: Connection, body: Frames, gave_up: bool, now: float) -> None:
        task = self._busy.pop(lane)
        self._free.append(lane)
        if isinstance(task, bytes):
            self._results.present(task, self._room if body == [b"200"] else 0, now)
        elif gave_up:
            self._results.timed_out(task.uuid, now)
        else:
            self._results.replied(task.uuid, body, now)

    def _start(self, now: float) -> None:
        while self._queue and (lane := self._take_lane()) is not None:
            task = self._queue.popleft()
            self._busy[lane] = task
            if isinstance(task, bytes):
                lane.session.request(b"mmi.service", [task], now, timeout=MMI_TIMEOUT)
            else:
                lane.session.request(task.service, task.body, now)

    def _take_lane(self) -> Connection | None:
        if self._free:
            return self._free.pop()
        if len(self._lanes) >= self.MOST_LANES:
            return None
        lane = Connection(ClientSession(self._config), self._endpoint)
        self._lanes.append(lane)
        self._loop.add(lane)
        return lane
