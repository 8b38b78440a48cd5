"""The connections of a session over CLIENT sockets: each message is one packed frame."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from broker.core.mdp import Frames
from broker.drafts import DraftSocket, Unreachable
from broker.patterns.core.generaldomo import pack_mdp, unpack_mdp
from broker.transport import LINGER, Dealer


class _End(threading.Event):
    """That a connection is to be closed."""

    linger = LINGER


class PackedDealer(Dealer):
    """As `Dealer`, but a thread reads each connection, and calls `wake` when there is something to `receive`."""

    def __init__(self, endpoint: str | Sequence[str], wake: Callable[[], None]) -> None:
        super().__init__(zmq.Context.instance(), endpoint)
        self._wake = wake
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._end = _End()

    def receive(self) -> Frames | None:
        """One message of the present connection; `[]` for one that makes no sense."""
        while self._inbox:
            number, data = self._inbox.popleft()
            if number == self.number and self.socket is not None:
                self.answered = True
                return unpack_mdp(data) or []
        return None

    def sockets(self) -> list[Any]:
        """None that could be polled."""
        return []

    def close(self, linger: int = LINGER) -> None:
        """Have the thread close the present connection."""
        self._end.linger = linger
        self._end.set()
        socket: Any = self.socket
        if socket is not None:
            socket.wake(linger)
        self.socket = None

    def _transmit(self, frames: Frames) -> None:
        socket: Any = self.socket
        try:
            socket.send(pack_mdp(frames))
        except Unreachable as error:
            raise zmq.Again from error

    def _open(self, number: Any) -> None:
        self._choose()
        socket = DraftSocket("CLIENT", mute=0)
        try:
            socket.connect(self.server)
        except BaseException:
            socket.close(0)
            raise
        self.number, self._end = number, _End()
        self.socket = socket  # type: ignore[assignment]
        threading.Thread(target=self._read, args=(socket, number, self._end), name="client", daemon=True).start()

    def _read(self, socket: DraftSocket, number: int, end: _End) -> None:
        while not end.is_set():
            got = socket.receive(None)
            while got is not None:
                self._inbox.append((number, got[0]))
                got = socket.receive(0) if len(self._inbox) < 1000 else None
            if self._inbox:
                self._wake()
        socket.close(end.linger)
