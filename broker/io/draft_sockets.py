"""Draft sockets: CLIENT and SERVER (RFC 41), SCATTER and GATHER (RFC 49). The only place that opens them.

They are thread-safe and carry single frames only. ZeroMQ calls them drafts, and the pyzmq on PyPI is built without:
it makes such sockets and aborts the process when they connect. So either a pyzmq with drafts does it, or PyPI's
`pyomq`, which is written in Rust and speaks the same on the wire.

Neither can poll these sockets together with others, so a thread waits for each that receives. What pyomq 0.21
does otherwise than ZeroMQ, and what follows from it here (tests/broker/test_pyomq.py watches over each):

- With DONTWAIT it sends after all, or waits for ever, and receives with an "internal error": time-outs are used.
- Receiving with a time-out polls every millisecond or two: 500 round trips a second instead of 27,000. So threads that
  only receive do so without one, and are woken by closing the socket (which ZeroMQ forbids).
- More messages on their way than queues hold bring both directions to a standstill: so the queues are long, and
  the users of the sockets bound what is on its way.
- It takes messages without a connected peer, IMMEDIATE or not, and loses them when the socket is closed; of several
  endpoints each gets its share, connected or not. So a scattering end has a socket for each, and checks whether a peer
  is connected before it sends; and no socket without a peer waits when it is closed.
- While anybody in the process waits in a send without a time-out, on whatever socket, all others cannot connect, be
  closed or report the connected peers. No socket here has such a send. A send of other code must not hold up an end
  either: closing is left to a thread, and takes no longer than STUCK.
- It gives out messages of several frames, which there must not be, frame by frame: so each is taken whole.
- It has no trackers, but refers to a large message until it has left: so the references are counted.
"""

from __future__ import annotations

import importlib
import sys
import time
from importlib.util import find_spec
from threading import Lock, Thread
from typing import Any, Protocol

import zmq

from broker.errors import BrokerError, EndpointError
from broker.io.sockets import full

QUEUE = 100_000
"""Messages that a socket holds in each direction, by default."""

MUTE = 1000
"""Milliseconds after which a socket that cannot send says so."""

POLL_MS = 100
"""Milliseconds after which a waiting thread checks whether it still should."""

STUCK = 1.0
"""Seconds beyond its linger that closing a socket may take."""

_TRUST = 0.001
"""Seconds for which a peer that was there is believed to be there: a socket does not learn sooner that it has left."""


class MissingDrafts(BrokerError):
    """Nothing here has draft sockets."""


class Unreachable(BrokerError):
    """A message cannot be sent: the peer is gone, or there is no peer, or all that may wait is waiting."""


class Leaving(Protocol):
    """A message that ZeroMQ is sending."""

    @property
    def done(self) -> bool:
        """Whether ZeroMQ has released it."""


class Backend(Protocol):
    """Something that has draft sockets."""

    module: Any
    wakes: bool
    """Whether a thread that receives is woken when another one closes the socket."""

    def address(self, socket: Any, data: bytes, routing_id: int) -> None:
        """Send to the peer with a routing id."""

    def track(self, socket: Any, data: bytes, routing_id: int) -> Leaving:
        """The same with a large message; return a tracker that shows when it has left."""

    def receive(self, socket: Any) -> Any:
        """The next message's frame; None for a message of several, which is to be discarded."""

    def watch(self, socket: Any) -> ConnectionMonitor | None:
        """Make a monitor of a socket's connections; None: IMMEDIATE suffices."""


def choose() -> Backend:
    """What to take here. Raises MissingDrafts."""
    if zmq.DRAFT_API and zmq.has("draft"):
        return _Libzmq()
    if find_spec("pyomq") is not None:
        return _Omq()
    raise MissingDrafts(
        "CLIENT, SERVER, SCATTER and GATHER sockets are drafts, and this pyzmq was built without them; "
        "pip install pyomq, or build pyzmq against a libzmq with drafts"
    )


class _Libzmq:
    """A pyzmq with drafts."""

    module: Any = zmq
    wakes = False

    def address(self, socket: Any, data: bytes, routing_id: int) -> None:
        socket.send(data, routing_id=routing_id)

    def track(self, socket: Any, data: bytes, routing_id: int) -> Leaving:
        tracker: Leaving = socket.send(data, routing_id=routing_id, copy=False, track=True)
        return tracker

    def receive(self, socket: Any) -> Any:
        return socket.recv(copy=False)  # it discards by itself

    def watch(self, socket: Any) -> None:
        return None


class _Omq:
    """pyomq."""

    wakes = True

    def __init__(self) -> None:
        self.module: Any = importlib.import_module("pyomq")

    def address(self, socket: Any, data: bytes, routing_id: int) -> None:
        frame = self.module.Frame(data)
        frame.routing_id = routing_id
        socket.send(frame, copy=False)

    def track(self, socket: Any, data: bytes, routing_id: int) -> Leaving:
        self.address(socket, data, routing_id)
        return _Held(data)

    def receive(self, socket: Any) -> Any:
        frames = socket.recv_multipart(copy=False)  # all or nothing, also when threads share the socket
        return frames[0] if len(frames) == 1 else None

    def watch(self, socket: Any) -> ConnectionMonitor:
        return ConnectionMonitor(socket, self.module.ZMQError)


class ConnectionMonitor:
    """Knows whether a socket of pyomq has connections."""

    def __init__(self, socket: Any, error: type[Exception]) -> None:
        """`error`: raised when there is no news."""
        self._socket, self._error = socket, error
        self._monitor, self._lock = socket.monitor(), Lock()
        self._present, self._look_at = False, 0.0

    def anybody(self) -> bool:
        """Whether there is any."""
        now = time.monotonic()
        if self._present and now < self._look_at:
            return True
        with self._lock:
            try:
                while True:  # news is much cheaper to ask for than the list; it may be incomplete
                    self._monitor.recv_nowait()
                    self._present = False
            except self._error:
                self._present = self._present or bool(self._socket.connections())
            self._look_at = now + _TRUST
            return self._present


class _Held:
    """A message without other references before it was sent."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def done(self) -> bool:
        return sys.getrefcount(self._data) <= 2  # that of this object, and that of the call


class DraftSocket:
    """A CLIENT, SERVER, SCATTER or GATHER socket. Threads may share it, but one at a time may receive."""

    def __init__(
        self,
        kind: str,
        *,
        mute: int = MUTE,
        send_queue: int = QUEUE,
        receive_queue: int = QUEUE,
        most_bytes: int | None = None,
        unread: int = 0,
    ) -> None:
        """`kind`: its name. `mute`: for how many milliseconds it waits when it cannot send. Raises MissingDrafts.

        `send_queue`, `receive_queue`: messages for and from each peer. `most_bytes`: of a message that comes in; a
        peer that sends a larger one loses its connection, and so does one that reads nothing for `unread` milliseconds.
        """
        self._backend = choose()
        module = self._backend.module
        self._again: type[BaseException] = module.Again
        self._failed: type[BaseException] = module.ZMQError
        socket = self._socket = module.Context.instance().socket(getattr(module, kind))
        socket.sndhwm, socket.rcvhwm = send_queue, receive_queue
        socket.sndtimeo = mute
        socket.linger = 2 * MUTE
        if most_bytes is not None:
            socket.maxmsgsize = most_bytes
        if kind in ("SERVER", "GATHER"):  # as for a ROUTER: a peer that vanished sends no good-bye
            socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, 60
            socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = 15, 4
            socket.handshake_ivl = 30_000
        if unread:
            socket.setsockopt(module.TCP_MAXRT, unread)
        if kind == "SCATTER":
            socket.immediate = 1
        self._watched = self._backend.watch(socket)
        self._kind = kind
        self._closing = False
        self._guard = Lock()  # the thread that receives closes it, too, once it is woken
        self._patience: int | None = None

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with the real port comes back. EndpointError says why not."""
        self._reach("bind", endpoint)
        found = self._socket.last_endpoint
        return found.decode() if isinstance(found, bytes) else str(found)

    def connect(self, endpoint: str) -> None:
        """Connect; EndpointError says why not."""
        if endpoint.startswith("tcp://") and "*" in endpoint:  # pyomq would try for ever
            raise EndpointError(f"cannot connect to {endpoint}: * is only for listening; give an address and a port")
        self._reach("connect to", endpoint)

    def send(self, data: bytes, routing_id: int = 0) -> None:
        """One frame; `routing_id`: the peer of a SERVER. Waits for a while. Raises Unreachable."""
        try:
            if routing_id:
                self._backend.address(self._socket, data, routing_id)
            else:
                self._socket.send(data)
        except self._failed as error:
            raise Unreachable(f"no receiver accepts the message: {error}") from error

    def send_tracked(self, data: bytes, routing_id: int) -> Leaving:
        """The same with a large message of a SERVER: an object that reports when it has left. `data` belongs to this
        call alone."""
        try:
            return self._backend.track(self._socket, data, routing_id)
        except self._failed as error:
            raise Unreachable(f"no receiver accepts the message: {error}") from error

    def receive(self, milliseconds: int | None) -> tuple[bytes, int] | None:
        """One frame, and from a SERVER the routing id of its sender; None when there was none in time, or a message of
        several was discarded (RFC 41 and 49).

        `milliseconds` None: for threads that only receive; comes back with None after POLL_MS, or only when the socket
        is closed.
        """
        if milliseconds is None:
            milliseconds = -1 if self._backend.wakes else POLL_MS
        if milliseconds != self._patience:
            self._socket.rcvtimeo = self._patience = milliseconds
        try:
            frame = self._backend.receive(self._socket)
        except self._again:
            return None
        except self._failed:
            if self._closing:
                return None
            raise
        if frame is None:
            return None
        return bytes(frame.bytes), frame.routing_id if self._kind == "SERVER" else 0

    def wake(self, linger: int | None = None) -> None:
        """The thread that receives is to come back, soon; `close` the socket when it has."""
        self._closing = True
        if self._backend.wakes:
            self.close(linger)

    def close(self, linger: int | None = None) -> bool:
        """Close it, not while a thread receives; what was sent may still go out, for `linger` milliseconds.

        False when there was more than could; a pyzmq with drafts cannot say, and sends in the background.
        """
        if self._socket.closed:
            return True
        linger = 2 * MUTE if linger is None else linger
        if not self._backend.wakes:
            return self._close(linger)
        closed: list[bool] = []
        closing = Thread(target=lambda: closed.append(self._close(linger)), name="socket closes", daemon=True)
        closing.start()
        closing.join(linger / 1000 + STUCK)
        return closed == [True]

    def _close(self, linger: int) -> bool:
        with self._guard:
            if self._socket.closed:
                return True
            if not self.has_peers():
                # It would not connect again. How long that takes shows whether messages are left.
                linger = min(linger, MUTE // 2 if self._kind == "SCATTER" else 1)
            started = time.monotonic()
            self._socket.close(linger)
            return not self._backend.wakes or time.monotonic() - started < linger / 1000

    @property
    def tells_peers(self) -> bool:
        """Whether connections can be observed."""
        return self._watched is not None

    def has_peers(self) -> bool:
        """Whether a peer is connected; True if that is unknown."""
        return self._watched is None or self._watched.anybody()

    def _reach(self, what: str, endpoint: str) -> None:
        whole = full(endpoint)
        try:
            (self._socket.bind if what == "bind" else self._socket.connect)(whole)
        except (self._failed, ValueError) as error:
            raise EndpointError(
                f"cannot {what} {endpoint}: {error}; write it like tcp://127.0.0.1:5555 or ipc:///run/x.sock"
            ) from error
