"""Requests without an answer: a GATHER endpoint (RFC 49) receives messages (see PROTOCOL.md) and stores each one.

Senders learn only that a message was received, so every message that can be stored is stored. While the store is full,
or a service has reached its limits, messages are kept here and retried. When too many are kept, receiving stops, and
senders have to wait. A message that can never be stored is dropped, counted and logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from broker import NOBODY, Access, Broker, ClientConfig, ClientSession, User, protect, read_error
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.server.server_access import ServerAccess

log = logging.getLogger(__name__)

MOST_IN_HAND = 2000
"""Maximum number of received messages that are not stored yet."""

PAUSE = 0.5
"""Seconds until a refused message is retried."""

POLL_INTERVAL = 0.05
"""Seconds that the thread waits for messages, or for answers, before it polls the other."""

QUIET = 4
"""Consecutive rounds without a message at shutdown, after which no more are expected."""


class GatherEndpoint:
    """The GATHER socket, the thread that reads it, and the messages that are not stored yet."""

    def __init__(self, here: Broker, user: User | None) -> None:
        """`user`: the user that submits; None: there is no access control. Raises broker.patterns.MissingDrafts."""
        from broker.patterns import Gather, unpack  # servers that do not gather do without

        self.counts = {"stored": 0, "dropped": 0}
        self._gather, self._unpack = Gather(), unpack
        self.bind = self._gather.bind
        self._answers: SimpleQueue[list[Frames]] = SimpleQueue()
        self.peer = here.connect_local(self._answers.put, user)
        self._session = ClientSession(ClientConfig(timeout=None), correlated=True)
        self._in_hand: dict[int, Frames] = {}
        self._refused: list[Frames] = []
        self._again_at = 0.0
        self._patience = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gather", daemon=True)
        self.start = self._thread.start

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Received messages that are neither stored nor dropped yet."""
        return len(self._in_hand) + len(self._refused)

    def stop(self, patience: float) -> None:
        """Store what has come, within `patience` seconds. The broker still has to run."""
        self._patience = patience
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self._gather.close(0)

    def _run(self) -> None:
        while not self._end.is_set():
            self._round()
        last, quiet = time.monotonic() + self._patience, 0
        while (quiet < QUIET or self._in_hand) and time.monotonic() < last:
            quiet = 0 if self._round() else quiet + 1
        if left := self.waiting:
            log.warning("%d gathered messages could not be stored before shutdown; they are lost", left)

    def _round(self) -> bool:
        """Receive, store and handle answers once; return whether a message was received."""
        came = False
        if self.waiting < MOST_IN_HAND:
            came = self._take()
            self._hear(0.0)
        else:
            self._hear(POLL_INTERVAL)
        if self._refused and time.monotonic() >= self._again_at:
            refused, self._refused = self._refused, []
            self._store(refused)
        return came

    def _take(self) -> bool:
        messages: list[Frames] = []
        room = MOST_IN_HAND - self.waiting
        wait, came = POLL_INTERVAL if not self._in_hand else 0.001, False
        while len(messages) < room and (message := self._gather.receive(wait)) is not None:
            frames = self._unpack(message)
            if frames is None:
                self._drop("its format is invalid")
            else:
                messages.append(frames)
            wait, came = 0.0, True
        if messages:
            self._store(messages)
        return came

    def _store(self, messages: list[Frames]) -> None:
        now = time.monotonic()
        for frames in messages:
            self._in_hand[self._session.request(tsp.REQUEST, frames, now)] = frames
        self.peer.send([frames for _, frames in self._session.take_output() if frames is not None])

    def _hear(self, patience: float) -> None:
        try:
            batch = self._answers.get(timeout=patience) if patience else self._answers.get_nowait()
        except Empty:
            return
        now = time.monotonic()
        for frames in batch:
            self._session.receive(self._session.connection, frames, now)
        for event in self._session.take_events():
            self._learn(self._in_hand.pop(event.ticket), _status(event.body))

    def _learn(self, message: Frames, status: tsp.StatusFrame | None) -> None:
        if status is not None and status.code == 200:
            self.counts["stored"] += 1
        elif status is not None and status.code < 500:
            self._drop(status.text)
        else:
            if not self._refused:
                self._again_at = time.monotonic() + PAUSE
                log.warning("gathered messages wait: %s", status.text if status else "the broker does not accept them")
            self._refused.append(message)

    def _drop(self, why: str) -> None:
        self.counts["dropped"] += 1
        if self.counts["dropped"] in (1, 10, 100) or self.counts["dropped"] % 1000 == 0:
            log.warning("%d gathered messages dropped; the last one: %s", self.counts["dropped"], why)


class GatherEndpoints:
    """All GATHER endpoints of a server, with one socket for all. With access control each has its own socket and user,
    because messages contain neither their endpoint nor their sender."""

    def __init__(self, here: Broker, endpoints: Sequence[str], control: ServerAccess | None, *, open: bool) -> None:
        """Bind them. Raises broker.EndpointError, AccessError, or broker.patterns.MissingDrafts. `open`: whether other
        machines may reach them."""
        self.endpoints: tuple[str, ...] = ()
        """With real ports."""
        self._sockets: list[GatherEndpoint] = []
        self._named: list[tuple[str, GatherEndpoint]] = []
        if control is not None:
            control.check_gathering(endpoints)  # the access file can only name endpoints on this machine
        else:
            for endpoint in endpoints:
                protect(endpoint, open=open)
        try:
            for endpoint in endpoints:
                if control is not None or not self._sockets:
                    self._sockets.append(
                        GatherEndpoint(here, None if control is None else control.access.endpoints[endpoint])
                    )
                self.endpoints += (self._sockets[-1].bind(endpoint),)
                self._named.append((endpoint, self._sockets[-1]))
        except BaseException:
            self.stop(0.0)
            raise

    def start(self) -> None:
        """Start receiving messages."""
        for one in self._sockets:
            one.start()

    def stop(self, patience: float) -> None:
        """Store what has come, within `patience` seconds. The broker still has to run."""
        end = time.monotonic() + patience
        for one in self._sockets:
            one.stop(max(0.0, end - time.monotonic()))

    def reload(self, access: Access) -> None:
        """Update the endpoints' users. Called in the broker's loop."""
        for endpoint, one in self._named:
            one.peer.user = access.endpoints.get(endpoint, NOBODY)

    @property
    def alive(self) -> bool:
        """Whether all threads run."""
        return all(one.alive for one in self._sockets)

    def counts(self) -> dict[str, int]:
        """The number of messages: "stored", "dropped" and "waiting"; empty without endpoints."""
        if not self._sockets:
            return {}
        counts = {name: sum(one.counts[name] for one in self._sockets) for name in ("stored", "dropped")}
        return {**counts, "waiting": sum(one.waiting for one in self._sockets)}


def _status(body: Frames) -> tsp.StatusFrame | None:
    """The status of an answer from the server, or of an error from the broker; None: it is neither."""
    if (error := read_error(body)) is not None:
        return tsp.StatusFrame(error.status, error.text)
    return tsp.read_status(body[0]) if body else None
