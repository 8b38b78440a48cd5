"""File descriptors of connections are used again, while messages of those that had them before are still to be read."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest
import zmq
from support.secured import access, new_pair, user

from broker.access.authorization import Guard
from broker.io.user_connections import UserConnections

ALICE, MALLORY = new_pair(), new_pair()


class Frame:
    """What ZeroMQ tells of a message: the key, and the descriptor that its connection has or had."""

    def __init__(self, key: bytes, descriptor: int) -> None:
        self._said = {"User-Id": key.decode(), int(zmq.SRCFD): descriptor, "Identity": ""}

    def get(self, name: str | int) -> str | int:
        return self._said[name]


class Desk:
    """Connections, and a listening socket that they come to."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        guard = Guard(access({user("alice"): ALICE, user("mallory"): MALLORY}))
        self.connections = UserConnections(guard, self, 100, 1000)
        self.connections.bound(f"tcp://127.0.0.1:{self.listener.getsockname()[1]}")

    def settle(self) -> None: ...

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a new connection, the server's first."""
        client = socket.create_connection(self.listener.getsockname())
        server, _ = self.listener.accept()
        self.connections.accepted(server.fileno())
        self.connections.asked()
        return server, client


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.listener.close()


def ended(stream: socket.socket) -> bool:
    return bool(select.select([stream], [], [], 0)[0])


@pytest.mark.parametrize("told", [True, False], ids=["accepted", "not yet told"])
def test_who_is_refused_late_does_not_end_the_connection_that_has_his_number_now(desk: Desk, told: bool) -> None:
    first, mallory = desk.connect()
    number = first.fileno()
    with mallory:
        first.close()
        desk.connections.ended(number)
    if told:
        server, client = desk.connect()
    else:
        client = socket.create_connection(desk.listener.getsockname())
        server, _ = desk.listener.accept()
    with server, client:
        assert server.fileno() == number
        assert not desk.connections.look(b"a name", Frame(MALLORY.public, number))
        assert not ended(client)
        if not told:
            desk.connections.accepted(number)
        assert desk.connections.look(b"\0abcd", Frame(ALICE.public, number))
        assert desk.connections.speaker.there
        assert len(desk.connections) == 1


def test_when_all_is_read_a_number_is_certain_again(desk: Desk) -> None:
    first, mallory = desk.connect()
    number = first.fileno()
    with mallory:
        first.close()
        desk.connections.ended(number)
    server, client = desk.connect()
    with server, client:
        for _ in range(2):
            assert desk.connections.ends
            desk.connections.forget_ended()
        assert not desk.connections.ends
        assert not desk.connections.look(b"a name", Frame(MALLORY.public, number))
        assert ended(client)
