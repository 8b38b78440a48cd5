"""Draft sockets: CLIENT and SERVER (RFC 41), SCATTER and GATHER (RFC 49). The only place that opens them.

They are thread-safe and carry single frames only. ZeroMQ calls them drafts, and the pyzmq on PyPI is built without:
it makes such sockets and aborts the process when they connect. So either a pyzmq with drafts does it, or PyPI's
`pyomq`, which is written in Rust and speaks the same on the wire.

Neither can poll these sockets together with others, so a thread waits for each that receives. What pyomq 0.21
does otherwise than ZeroMQ, and what follows from it here (tests/broker/test_pyomq.py watches over each):

- With DONTWAIT it sends after all, or waits for ever, and receives with an "internal error": time-outs are used.
- Receiving with a time-out looks once a millisecond or two: 500 round trips a second instead of 27,000. So threads that
  only receive do so without one, and are woken by closing the socket (which ZeroMQ forbids).
- More messages on their way than queues hold bring both directions to a standstill: so the queues are long, and who
  uses the sockets bounds what is on its way.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import zmq

from broker.errors import BrokerError, EndpointError
from broker.transport import check_port

QUEUE = 100_000
"""Messages that a socket may hold in each direction."""

MUTE = 1000
"""Milliseconds after which a socket that cannot send says so."""

LOOK = 100
"""Milliseconds after which a thread that waits looks whether it still should."""


class MissingDrafts(BrokerError):
    """Nothing here has draft sockets."""


class Unreachable(BrokerError):
    """A message cannot be sent: the peer is gone, or there is no peer, or all that may wait is waiting."""


class Backend(NamedTuple):
    """Something that has draft sockets."""

    module: Any
    address: Callable[[Any, bytes, int], None]
    """How it sends to the peer with a routing id."""
    wakes: bool
    """Whether a thread that receives is woken when another one closes the socket."""


def choose() -> Backend:
    """What to take here. Raises MissingDrafts."""
    if zmq.DRAFT_API and zmq.has("draft"):
        return Backend(zmq, lambda socket, data, routing_id: socket.send(data, routing_id=routing_id), wakes=False)
    if find_spec("pyomq") is not None:
        omq = importlib.import_module("pyomq")

        def address(socket: Any, data: bytes, routing_id: int) -> None:
            frame = omq.Frame(data)
            frame.routing_id = routing_id
            socket.send(frame, copy=False)

        return Backend(omq, address, wakes=True)
    raise MissingDrafts(
        "CLIENT, SERVER, SCATTER and GATHER sockets are drafts, and this pyzmq was built without them; "
        "pip install 'titanic-queue[drafts]', or build pyzmq against a libzmq with drafts"
    )


class DraftSocket:
    """A CLIENT, SERVER, SCATTER or GATHER socket. Threads may share it, but one at a time may receive."""

    def __init__(self, kind: str, *, mute: int = MUTE) -> None:
        """`kind`: its name. `mute`: for how many milliseconds it waits when it cannot send. Raises MissingDrafts."""
        self._backend = choose()
        module = self._backend.module
        self._again: type[BaseException] = module.Again
        self._failed: type[BaseException] = module.ZMQError
        self._socket = module.Context.instance().socket(getattr(module, kind))
        self._socket.sndhwm = self._socket.rcvhwm = QUEUE
        self._socket.sndtimeo = mute
        self._socket.linger = 2 * MUTE
        self._closing = False
        self._names_peers = kind == "SERVER"
        self._patience: int | None = None

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with the real port comes back. EndpointError says why not."""
        self._reach("bind", endpoint)
        found = self._socket.last_endpoint
        return found.decode() if isinstance(found, bytes) else str(found)

    def connect(self, endpoint: str) -> None:
        """Connect; EndpointError says why not."""
        self._reach("connect to", endpoint)

    def send(self, data: bytes, routing_id: int = 0) -> None:
        """One frame; `routing_id`: whom a SERVER sends it to. Waits for a while. Raises Unreachable."""
        try:
            if routing_id:
                self._backend.address(self._socket, data, routing_id)
            else:
                self._socket.send(data)
        except self._failed as error:
            raise Unreachable(f"nobody takes the message: {error}") from error

    def receive(self, milliseconds: int | None) -> tuple[bytes, int] | None:
        """One frame, and from a SERVER the routing id of who sent it; None when there was none in time.

        `milliseconds` None: for threads that only receive; comes back with None after LOOK, or only when the socket
        is closed.
        """
        if milliseconds is None:
            milliseconds = -1 if self._backend.wakes else LOOK
        if milliseconds != self._patience:
            self._socket.rcvtimeo = self._patience = milliseconds
        try:
            frame = self._socket.recv(copy=False)
        except self._again:
            return None
        except self._failed:
            if self._closing:
                return None
            raise
        return bytes(frame.bytes), frame.routing_id if self._names_peers else 0

    def wake(self, linger: int | None = None) -> None:
        """The thread that receives is to come back, soon; `close` the socket when it has."""
        self._closing = True
        if self._backend.wakes:
            self._socket.close(linger)

    def close(self, linger: int | None = None) -> None:
        """Close it, not while a thread receives; what was sent may still go out, for `linger` milliseconds."""
        self._socket.close(linger)

    def _reach(self, what: str, endpoint: str) -> None:
        check_port(endpoint)
        try:
            (self._socket.bind if what == "bind" else self._socket.connect)(endpoint)
        except (self._failed, ValueError) as error:
            raise EndpointError(
                f"cannot {what} {endpoint}: {error}; an endpoint is like tcp://127.0.0.1:5555 or ipc:///run/x.sock"
            ) from error
