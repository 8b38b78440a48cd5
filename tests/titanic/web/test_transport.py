"""What leaves in one piece, and in what order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvloop
from support.each import each

from titanic.web.protocol import SMALL, JoiningTransport

HEAD, BODY, LARGE = b"HTTP/1.1 200 OK\r\n\r\n", b"body", b"x" * SMALL


class Recorded(asyncio.Transport):
    """A transport that notes what it is told to do."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.pieces.append(b"closed")

    def abort(self) -> None:
        self.pieces.append(b"aborted")

    def is_closing(self) -> bool:
        return bool({b"closed", b"aborted"} & set(self.pieces))


def in_a_turn(act: Callable[[JoiningTransport], None]) -> tuple[list[bytes], list[bytes]]:
    """What has been sent at the end of what is done in one turn of a loop, and after the turn."""

    async def turn() -> tuple[list[bytes], list[bytes]]:
        inner = Recorded()
        act(JoiningTransport(inner, asyncio.get_running_loop()))
        within = inner.pieces.copy()
        await asyncio.sleep(0)
        return within, inner.pieces

    return asyncio.run(turn())


def writes(*parts: bytes) -> Callable[[JoiningTransport], None]:
    def act(transport: JoiningTransport) -> None:
        for part in parts:
            transport.write(part)

    return act


@each(
    ("parts", "within", "after"),
    [
        ((HEAD, BODY), [HEAD + BODY], []),
        ((HEAD, b""), [HEAD], []),
        ((HEAD,), [], [HEAD]),
        ((HEAD, LARGE, BODY), [HEAD, LARGE], [BODY]),
        ((HEAD, BODY, HEAD, BODY), [HEAD + BODY, HEAD + BODY], []),
        ((b"",), [], []),
    ],
)
def test_what_is_written(parts: tuple[bytes, ...], within: list[bytes], after: list[bytes]) -> None:
    assert in_a_turn(writes(*parts)) == (within, within + after)


def test_all_is_sent_before_it_closes() -> None:
    def act(transport: JoiningTransport) -> None:
        transport.write(HEAD)
        transport.close()

    assert in_a_turn(act) == ([HEAD, b"closed"], [HEAD, b"closed"])


def test_nothing_is_sent_once_it_was_aborted() -> None:
    def act(transport: JoiningTransport) -> None:
        transport.write(HEAD)
        transport.abort()

    assert in_a_turn(act) == ([b"aborted"], [b"aborted"])


def test_nothing_is_sent_once_it_has_closed_by_itself() -> None:
    async def turn() -> list[bytes]:
        inner = Recorded()
        transport = JoiningTransport(inner, asyncio.get_running_loop())
        transport.write(HEAD)
        inner.close()
        await asyncio.sleep(0)
        return inner.pieces

    assert asyncio.run(turn()) == [b"closed"]


def test_what_a_client_has_taken_can_be_asked_after_its_end() -> None:
    """A handler that fails after its client has gone closes the connection again."""

    async def ask() -> int:
        loop, (here, there) = asyncio.get_running_loop(), socket.socketpair()
        with there:
            inner, _ = await loop.connect_accepted_socket(asyncio.Protocol, here)
            transport = JoiningTransport(inner, loop)
            transport.close()
            while transport.get_extra_info("socket").fileno() >= 0:
                await asyncio.sleep(0)
            return transport.taken()

    assert uvloop.run(ask()) == 0
