"""Clients and workers of all dialects, with keys or without; the frames are written from titanic/PROTOCOL.md."""

from __future__ import annotations

from typing import NamedTuple

import zmq
from majortomo.client import Client as TheirClient  # type: ignore[import-untyped]
from majortomo.error import Disconnected  # type: ignore[import-untyped]
from majortomo.worker import Worker as TheirWorker  # type: ignore[import-untyped]
from support.secured import keyed
from support.waiting import PATIENCE

from broker.access.keys import Keys

REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Dialect(NamedTuple):
    """What stands in front of the service or of the body."""

    request: tuple[bytes, ...]
    replies: tuple[tuple[bytes, ...], ...]
    worker: tuple[bytes, ...]
    final: bytes = b"\4"
    disconnect: bytes = b"\6"
    heartbeat: bytes = b"\5"
    echoes_service: bool = True


DIALECTS = {
    "0.1": Dialect((b"", b"MDPC01"), ((b"", b"MDPC01"),), (b"", b"MDPW01"), b"\3", b"\5", b"\4"),
    "0.2": Dialect((b"MDPC02", b"\1"), ((b"MDPC02", b"\3"),), (b"MDPW02",)),
    "majortomo": Dialect((b"", b"MDPC02", b"\2"), ((b"", b"MDPC02", b"\4"),), (b"", b"MDPW02"), echoes_service=False),
    "queue": Dialect((b"MDPC02", b"\5"), ((b"MDPC02", b"\3"), (b"MDPC02", b"\7")), (b"MDPW02",)),
}


class Spoken:
    """One socket that speaks a dialect."""

    def __init__(self, dialect: str, endpoint: str, keys: Keys | None, server: bytes) -> None:
        self.endpoint = endpoint
        self.dialect = DIALECTS[dialect]
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndtimeo = 0
        if keys is not None:
            keyed(self.socket, keys, server)
        self.monitor = self.socket.get_monitor_socket(REFUSED)

    def connect(self) -> None:
        self.socket.connect(self.endpoint)

    def send(self, service: bytes, *body: bytes, mark: bytes = b"") -> None:
        """A REQUEST; `mark` is what it can be cancelled by."""
        request = self.dialect.request
        if mark:
            request = (mark, *((b"",) if request[0] else ()), *request)
        self.socket.send_multipart([*request, service, *body])

    def receive(self) -> list[bytes]:
        """The body of the next reply, whose mark is dropped."""
        frames = self._next()
        if frames[0] and b"" in frames[:2]:
            del frames[: 1 if not self.dialect.request[0] else 2]
        for head in self.dialect.replies:
            if tuple(frames[: len(head)]) == head:
                return frames[len(head) + self.dialect.echoes_service :]
        raise AssertionError(f"not of this dialect: {frames}")

    def ask(self, service: bytes, *body: bytes) -> list[bytes]:
        self.send(service, *body)
        return self.receive()

    def register(self, service: bytes) -> bool:
        """Say READY, and good-bye; whether the broker took this worker."""
        self.ready(service)
        command, _ = self._command()
        assert command in (self.dialect.heartbeat, self.dialect.disconnect)
        self.socket.send_multipart([*self.dialect.worker, self.dialect.disconnect])
        return command == self.dialect.heartbeat

    def take_one(self, service: bytes, reply: bytes) -> list[bytes] | None:
        """Say READY, take a request, reply to it, and say good-bye; the body that came, or None if the broker did not
        want this worker."""
        self.ready(service)
        command = self.dialect.heartbeat
        while command == self.dialect.heartbeat:
            command, rest = self._command()
        if command == self.dialect.disconnect:
            return None
        assert (command, rest[1]) == (b"\2", b"")
        self.socket.send_multipart([*self.dialect.worker, self.dialect.final, rest[0], b"", reply])
        self.socket.send_multipart([*self.dialect.worker, self.dialect.disconnect])
        return rest[2:]

    def ready(self, service: bytes) -> None:
        self.socket.send_multipart([*self.dialect.worker, b"\1", service])

    def shut_out(self) -> bool:
        """Wait until the handshake has failed; whether nothing was heard but that."""
        assert self.monitor.poll(int(PATIENCE * 1000)), "neither let in nor refused"
        return not self.socket.poll(0)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)

    def _next(self) -> list[bytes]:
        assert self.socket.poll(int(PATIENCE * 1000)), "nothing came"
        return self.socket.recv_multipart()

    def _command(self) -> tuple[bytes, list[bytes]]:
        frames, at = self._next(), len(self.dialect.worker)
        assert tuple(frames[:at]) == self.dialect.worker, frames
        return frames[at], frames[at + 1 :]


class Majortomo(Spoken):
    """Like `Spoken`, but PyPI's majortomo asks and works, which gets keys from its context."""

    def __init__(self, endpoint: str, keys: Keys, server: bytes) -> None:
        super().__init__("majortomo", endpoint, keys, server)
        self._context = zmq.Context.shadow(zmq.Context.instance())
        self._context.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        self._context.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        self._context.setsockopt(zmq.CURVE_SERVERKEY, server)
        self._client = TheirClient(endpoint, zmq_context=self._context, zmq_linger=0)

    def ask(self, service: bytes, *body: bytes) -> list[bytes]:
        self._client.connect()
        self._client.send(service, *body)
        reply: list[bytes] = self._client.recv_all_as_list(PATIENCE)
        return reply

    def take_one(self, service: bytes, reply: bytes) -> list[bytes] | None:
        with TheirWorker(self.endpoint, service, zmq_context=self._context) as worker:
            try:
                client, body = worker.wait_for_request()
            except Disconnected:
                return None
            worker.send_reply_final(client, [reply])
            return list(body)

    def close(self) -> None:
        self._client.close()
        super().close()
