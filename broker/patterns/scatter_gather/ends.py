"""The two ends of scatter-gather (RFC 49): single frames one way, over draft sockets (`broker.io.draft_sockets`).

message   scatter ── one frame ──▶ gather
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Self

from broker.client import Body, body_frames
from broker.config import check
from broker.errors import BrokerError, Means, TimedOut, UsageError
from broker.io.draft_sockets import POLL_MS, DraftSocket, Unreachable
from broker.io.sockets import protect

QUEUE = 1000
"""Messages that an end holds for each of the others, or from each, by default."""


class SharedSocket:
    """The base of both ends: a socket that any threads use until it is closed."""

    def __init__(self, socket: DraftSocket | ScatterSockets, *, open: bool) -> None:
        """`open`: whether it may listen where other machines can connect. These sockets have no keys."""
        self._socket = socket
        self._open = open
        self._state = threading.Condition()
        self._users = 0
        self._stopped = False
        self._closing = False
        self._closed = False

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with its real port comes back. May be repeated. Raises Unprotected for one that other
        machines can reach, unless this end is open."""
        protect(endpoint, open=self._open, by=Means.NONE)
        return self._socket.bind(endpoint)

    def connect(self, endpoint: str) -> None:
        """Connect. May be repeated."""
        self._socket.connect(endpoint)

    def stop(self) -> None:
        """End all waiting; call `close` next. Any thread and signal handlers may call this."""
        self._stopped = True

    def close(self, linger: int = 0) -> None:
        """Close the socket, even while other threads use it. What was sent may still go out, for `linger`
        milliseconds."""
        self.stop()
        self._closing = True
        with self._state:
            self._state.wait_for(lambda: not self._users)
            closed, self._closed = self._closed, True
        if not closed and not self._socket.close(linger):
            self._fell_short()

    def _fell_short(self) -> None:
        """Report that not all messages could go out."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _unusable(self) -> bool:
        """Whether the socket may no longer be used."""
        return self._stopped

    def _enter(self) -> bool:
        with self._state:
            unusable = self._unusable
            self._users += not unusable
            return not unusable

    def _leave(self) -> None:
        with self._state:
            self._users -= 1
            self._state.notify_all()


def over(until: float | None) -> bool:
    """Return whether a time has come; None: never."""
    return until is not None and time.monotonic() >= until


MOST_BYTES = 128 << 20
"""Of a message."""

QUIET = 0.5
"""Seconds without a message after which a gathering end that was stopped expects no more."""

LAST = 5.0
"""Seconds for which a stopped end reads on, and as long again for what its socket holds then."""


class Unread(BrokerError):
    """A gathering end was stopped, and messages went on coming."""

    def __init__(self) -> None:
        super().__init__(
            f"messages were still arriving {LAST:g} s after the stop; an unknown number in transit is lost; "
            "stop the senders first"
        )


class Gather(SharedSocket):
    """Takes messages of all scattering ends, fairly. Any threads may share it; each message goes to one of them.

    with Gather() as gather:
        gather.bind("tcp://127.0.0.1:5557")
        for message in gather:
            ...
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES, queue: int = QUEUE, open: bool = False) -> None:
        """`most_bytes`: of a message; a peer that sends a larger one loses its connection. `queue`: messages that wait
        here from each scattering end. `open`: whether it may listen where other machines can connect. Raises
        MissingDrafts."""
        check(queue > 0, f"queue is {queue}; it must be 1 or more")
        self._gathering = DraftSocket("GATHER", receive_queue=queue, most_bytes=most_bytes)
        super().__init__(self._gathering, open=open)
        self._stopped_at = self._came_at = float("-inf")

    def stop(self) -> None:
        """Let `receive` return what is still coming, and end then. Any thread and signal handlers may call this.

        A scattering end cannot be paused: closing a connection, or only the endpoint, loses its content.
        """
        if not self._stopped:
            self._stopped_at = time.monotonic()
        super().stop()

    def receive(self, timeout: float | None = None) -> bytes | None:
        """One message; None after `timeout` seconds (None: wait for ever), when this end was closed meanwhile, or was
        stopped and all that had been sent has come. Raises Unread if that has no end."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._enter():
            try:
                if (got := self._gathering.receive(self._patience(until))) is not None:
                    self._came_at = time.monotonic()
                    return got[0]
            finally:
                self._leave()
            if over(until) or self._all_came():
                return None
        return None

    def __iter__(self) -> Iterator[bytes]:
        """All messages, until this end is stopped or closed. Raises Unread."""
        while (message := self.receive()) is not None:
            yield message

    @property
    def _unusable(self) -> bool:
        return self._closing

    def _patience(self, until: float | None) -> int:
        """Milliseconds to wait for a message."""
        now = time.monotonic()
        if self._stopped:
            if now >= self._stopped_at + 2 * LAST:
                raise Unread
            if now >= self._stopped_at + LAST:
                return 0
        return POLL_MS if until is None else max(0, min(POLL_MS, int((until - now) * 1000)))

    def _all_came(self) -> bool:
        """Whether nothing is expected after `stop`; called when nothing is there."""
        now = time.monotonic()
        if not self._stopped:
            return False
        if now >= max(self._came_at, self._stopped_at) + QUIET:
            return True
        if now >= self._stopped_at + LAST:
            raise Unread
        return False


LINGER = 30_000
"""Milliseconds that may pass at the end until all has been sent."""

_PAUSE = 0.0005
"""Seconds between two tries to send a message. They double up to `_PAUSE_MOST`."""

_PAUSE_MOST = 0.005


class Unsent(BrokerError):
    """A scattering end was closed, and some of what it had taken could not be sent."""


class Scatter(SharedSocket):
    """Sends each message to one of the gathering ends, in turn. Any threads may share it.

    with Scatter() as scatter:
        scatter.connect("tcp://10.0.0.1:5557")
        scatter.send(b"hello")
    """

    def __init__(self, *, queue: int = QUEUE, early: bool = True, open: bool = False) -> None:
        """`queue`: messages that wait for each gathering end before `send` blocks. `early`: whether they may also wait
        for an end that was connected to and is not there yet (RFC 49). `open`: whether it may listen where other
        machines can connect. Raises MissingDrafts."""
        check(queue > 0, f"queue is {queue}; it must be 1 or more")
        self._queue = queue
        self._sockets = ScatterSockets(queue, POLL_MS / 1000, early=early)
        super().__init__(self._sockets, open=open)
        self.sent = 0
        """Messages that were taken over."""

    def close(self, linger: int = LINGER) -> None:
        """Send what was taken over, for `linger` milliseconds at most, and close it. Raises Unsent if that is too
        short, or no peer is left."""
        super().close(linger)

    def __exit__(self, *error: object) -> None:
        try:
            self.close()
        except Unsent:
            if error[0] is None:  # else that one says more
                raise

    def _fell_short(self) -> None:
        most = min(self.sent, 2 * self._queue)
        raise Unsent(f"up to {most} of {self.sent} messages were not sent: receivers are gone, or do not read")

    def send(self, message: Body, timeout: float | None = None) -> None:
        """Send one frame, bytes or text. Nothing is dropped: it waits while no queue has room, for `timeout` seconds.
        There is a queue for each end that is connected to, whether it is there yet or not.

        Raises TimedOut; then the message is not sent.
        """
        (frame,) = body_frames((message,))
        until = None if timeout is None else time.monotonic() + timeout
        while self._enter():
            try:
                self._sockets.send(frame)
                with self._state:
                    self.sent += 1
                return
            except Unreachable as error:
                if over(until):
                    raise TimedOut(
                        f"no receiver accepted the message within {timeout:g} s; is a receiver running?"
                    ) from error
            finally:
                self._leave()
        raise UsageError("the sender is closed")


class ScatterSockets:
    """A SCATTER socket for each endpoint, so that each message goes to a connected peer. Any threads may share it.

    One socket would do, but pyomq distributes messages over all endpoints, connected or not.
    """

    def __init__(self, queue: int, patience: float, *, early: bool) -> None:
        """`queue`: messages for each endpoint. `patience`: seconds for which it waits when it cannot send. `early`:
        whether messages wait here while no peer is connected. Raises MissingDrafts."""
        self._queue = queue
        self._early = early
        self._endpoints = 0
        """That were connected to."""
        self._held: deque[bytes] = deque()
        """Messages that wait for a peer."""
        self._lock = threading.Lock()
        self._carrier: threading.Thread | None = None
        """Sends what is held."""
        self._carry_until = float("inf")
        self._patience = patience
        self._sockets: tuple[DraftSocket, ...] = ()
        self._spare: DraftSocket | None = self._make()
        self._next = 0

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with its real port comes back. EndpointError says why not."""
        socket = self._spare = self._spare or self._make()
        bound = socket.bind(endpoint)
        self._keep(socket)
        return bound

    def connect(self, endpoint: str) -> None:
        """Connect; EndpointError says why not."""
        socket = self._spare = self._spare or self._make()
        socket.connect(endpoint)
        self._keep(socket)
        self._endpoints += 1

    def send(self, message: bytes) -> None:
        """Send a message to the next connected peer that has room; while there is none, hold it for an endpoint that
        was connected to. Raises Unreachable."""
        end, pause = time.monotonic() + self._patience, _PAUSE
        while not self._take(message):
            if time.monotonic() >= end:
                raise Unreachable("no receiver accepts the message")
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MOST)

    def _take(self, message: bytes) -> bool:
        """Send or hold a message, if that is possible now."""
        if not self._held and self._offer(message):
            return True
        if not self._early or not (self._held or self._deserted()):
            return False
        with self._lock:
            if len(self._held) >= self._queue * self._endpoints:
                return False
            self._held.append(message)
            if self._carrier is None:
                self._carrier = threading.Thread(target=self._carry, name="scatter", daemon=True)
                self._carrier.start()
            return True

    def _deserted(self) -> bool:
        """Whether no peer is known to be connected; libzmq does not say."""
        return not any(socket.tells_peers and socket.has_peers() for socket in self._sockets)

    def _carry(self) -> None:
        """Send what is held, until there is no more of it."""
        pause = _PAUSE
        while True:
            with self._lock:
                while self._held and self._offer(self._held[0]):
                    self._held.popleft()
                    pause = _PAUSE
                if not self._held or time.monotonic() >= self._carry_until:
                    self._carrier = None
                    return
            time.sleep(pause)
            pause = min(2 * pause, POLL_MS / 1000)

    def close(self, linger: int) -> bool:
        """Close it; what was sent may still go out, for `linger` milliseconds. False when there was more than could."""
        end = self._carry_until = time.monotonic() + linger / 1000
        if (carrier := self._carrier) is not None:
            carrier.join()
        sockets = [*self._sockets, *([self._spare] if self._spare else [])]
        left = [socket.close(max(1, int((end - time.monotonic()) * 1000))) for socket in sockets]
        return all(left) and not self._held

    def _offer(self, message: bytes) -> bool:
        sockets = self._sockets
        first, self._next = self._next, self._next + 1  # two threads that take the same one do no harm
        for at in range(len(sockets)):
            socket = sockets[(first + at) % len(sockets)]
            if socket.has_peers():
                try:
                    socket.send(message)
                except Unreachable:  # its queue is full
                    continue
                return True
        return False

    def _keep(self, socket: DraftSocket) -> None:
        self._sockets, self._spare = (*self._sockets, socket), None

    def _make(self) -> DraftSocket:
        return DraftSocket("SCATTER", mute=0, send_queue=self._queue)
