"""The connections of a session over CLIENT sockets: all frames of a message are packed into one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from broker.core.mdp import Frames
from broker.io.dealer import Dealer
from broker.io.draft_sockets import DraftSocket, Unreachable
from broker.io.sockets import LINGER
from broker.patterns.generaldomo.wire import pack_mdp, unpack_mdp

Deliver = Callable[[int, bytes], None]


class _Connection:
    """One connection: its socket, and the thread that reads it."""

    def __init__(self, number: int, endpoint: str, deliver: Deliver) -> None:
        self._number = number
        self._deliver = deliver
        self._end = threading.Event()
        self._linger = LINGER
        self._socket = DraftSocket("CLIENT", mute=0)
        try:
            self._socket.connect(endpoint)
        except BaseException:
            self._socket.close(0)
            raise
        threading.Thread(target=self._read, name="client reads", daemon=True).start()

    def send(self, data: bytes) -> None:
        """Send a message. Raises Unreachable when the queue is full."""
        self._socket.send(data)

    def close(self, linger: int) -> None:
        """Have the thread close it."""
        self._linger = linger
        self._end.set()
        self._socket.wake(linger)

    def _read(self) -> None:
        while not self._end.is_set():
            if (got := self._socket.receive(None)) is not None:
                self._deliver(self._number, got[0])
        self._socket.close(self._linger)


class ClientDealer(Dealer):
    """As `Dealer`, but a thread reads each connection, and `wake` is called for each message there is to `receive`."""

    def __init__(self, endpoint: str | Sequence[str], wake: Callable[[], None]) -> None:
        super().__init__(zmq.Context.instance(), endpoint)
        self._wake = wake
        self._inbox: deque[tuple[int, bytes]] = deque()

    def receive(self) -> Frames | None:
        """One message of the present connection; `[]` for one that makes no sense."""
        while self._inbox:
            number, data = self._inbox.popleft()
            if number == self.number and self.socket is not None:
                self.answered = True
                return unpack_mdp(data) or []
        return None

    def sockets(self) -> list[Any]:
        return []

    def close(self, linger: int = LINGER) -> None:
        connection: Any = self.socket
        self.socket = None
        if connection is not None:
            connection.close(linger)

    def _transmit(self, frames: Frames) -> None:
        connection: Any = self.socket
        try:
            connection.send(pack_mdp(frames))
        except Unreachable as error:
            raise zmq.Again from error

    def _open(self, number: Any) -> None:
        endpoint = self._choose()
        connection: Any = _Connection(number, endpoint, self._arrived)
        self.number, self.socket = number, connection

    def _arrived(self, number: int, data: bytes) -> None:
        """Called by the thread that reads."""
        self._inbox.append((number, data))
        self._wake()
