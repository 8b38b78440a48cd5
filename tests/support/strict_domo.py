"""A broker as Generaldomo's own: MDP 0.1 behind a SERVER socket, which reads the frames of a message strictly.

    client   06 MDPC01  service  body…          answered with the same two frames and the reply
    worker   06 MDPW01  command  …              READY, REPLY with the client's address and '', HEARTBEAT, DISCONNECT

It keeps no address stacks. What is anything else is a fault, and dropped; so is an empty last frame, at which
Generaldomo's own ends. Of `mmi.` it knows `mmi.service`.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque

from broker.io.draft_sockets import DraftSocket


def pack(*frames: bytes) -> bytes:
    sizes = [bytes([len(one)]) if len(one) < 255 else b"\xff" + len(one).to_bytes(4) for one in frames]
    return b"".join(size + one for size, one in zip(sizes, frames, strict=True))


def unpack(data: bytes) -> list[bytes]:
    frames = []
    while data:
        size, at = (data[0], 1) if data[0] < 255 else (int.from_bytes(data[1:5]), 5)
        frames.append(data[at : at + size])
        data = data[at + size :]
    return frames


class StrictDomo:
    """The broker, in a thread."""

    def __init__(self, *, mmi: bool = True) -> None:
        """`mmi`: whether it answers what it does not know; else it drops it."""
        self.faults: list[list[bytes]] = []
        self.most_from_one = 0
        """Requests of one connection that were in hand at a time."""
        self._mmi = mmi
        self._socket = DraftSocket("SERVER")
        self.endpoint = self._socket.bind("tcp://127.0.0.1:*")
        self._requests: dict[bytes, deque[tuple[int, list[bytes]]]] = defaultdict(deque)
        self._free: dict[bytes, deque[int]] = defaultdict(deque)
        self._services: dict[int, bytes] = {}
        self._in_hand: dict[int, int] = defaultdict(int)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> StrictDomo:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._socket.wake(0)
        self._thread.join()
        self._socket.close(0)

    def _run(self) -> None:
        while not self._end.is_set():
            if (got := self._socket.receive(None)) is not None:
                self._take(unpack(got[0]), got[1])

    def _take(self, frames: list[bytes], peer: int) -> None:
        match frames:
            case [*_, b""]:
                self.faults.append(frames)
            case [b"MDPC01", service, body, *_] if service.startswith(b"mmi."):
                known = service == b"mmi.service"
                if known or self._mmi:
                    present = body in self._services.values()
                    code = (b"200" if present else b"404") if known else b"501"
                    self._socket.send(pack(b"MDPC01", service, code), peer)
            case [b"MDPC01", service, _, *_]:
                self._requests[service].append((peer, frames[2:]))
                self._in_hand[peer] += 1
                self.most_from_one = max(self.most_from_one, self._in_hand[peer])
                self._dispatch(service)
            case [b"MDPW01", b"\1", service]:
                self._services[peer] = service
                self._socket.send(pack(b"MDPW01", b"\4"), peer)
                self._is_free(peer)
            case [b"MDPW01", b"\3", address, b"", _, *_]:
                client = int(address)
                self._in_hand[client] -= 1
                self._socket.send(pack(b"MDPC01", self._services[peer], *frames[4:]), client)
                self._is_free(peer)
            case [b"MDPW01", b"\4"]:
                self._socket.send(pack(b"MDPW01", b"\4"), peer)
            case [b"MDPW01", b"\5"]:
                self._free[self._services.pop(peer)].remove(peer)
            case _:
                self.faults.append(frames)

    def _is_free(self, worker: int) -> None:
        service = self._services[worker]
        self._free[service].append(worker)
        self._dispatch(service)

    def _dispatch(self, service: bytes) -> None:
        while self._requests[service] and self._free[service]:
            client, body = self._requests[service].popleft()
            address = b"%d" % client
            self._socket.send(pack(b"MDPW01", b"\2", address, b"", *body), self._free[service].popleft())
