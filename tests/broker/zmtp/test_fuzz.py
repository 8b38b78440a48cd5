"""Bytes at random: no exception but those that are said, the same events however the bytes are cut, no growth."""

from __future__ import annotations

import os
import random
import sys

import pytest
from support.torture import LONG, SEED, tally
from support.zmtp_peer import CurveClient, command, commands, greeting, hello_2, message, null, ready

from broker.zmtp import Connection, ConnectionFailed, ConnectionState, Event, MessageLimits
from broker.zmtp.encryption import CurveServer, CurveSession
from titanic.bench.stage import memory_bytes

LIMITS = MessageLimits(max_message=2000, max_frames=20, max_command=400)
MOST_GROWTH = 16 << 20
"""Bytes of memory that the process may have more, after nine times as many byte strings as it had before."""
KEYS = CurveServer(*(lambda pair: (pair.public, pair.secret))(CurveClient(bytes(32))))


def run(data: bytes, cuts: list[int], keys: CurveServer | None, most: int = sys.maxsize) -> list[Event]:
    """The events of a connection that gets these bytes, cut there, and reads so many messages at once."""
    connection = Connection(curve=keys and CurveSession(keys), limits=LIMITS)
    events: list[Event] = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events += connection.receive(data[begin:end], most)
        while connection.state is ConnectionState.DECISION:
            connection.accept()
            events += connection.receive(b"")
        while connection.has_more:
            events += connection.receive(b"", most)
        assert sum(map(len, connection.take_output())) <= 64 + 512 + 30 * (end - begin)
        assert held(connection) <= LIMITS.max_message + LIMITS.max_command + 64 + end - begin
    return events


def held(connection: Connection) -> int:
    """Bytes that it keeps of what has come."""
    reader = connection._reader
    parts = [connection._greeting, reader._data[reader._at :], *reader._parts, *reader.frames, *connection._sealed]
    return sum(map(len, parts))


def seeds(dice: random.Random) -> bytes:
    """What a peer might send, from the greeting on."""
    messages = [message(*(dice.randbytes(dice.choice((0, 1, 20, 255, 256, 600))) for _ in range(dice.randint(1, 3))))]
    more = dice.choice((command(b"PING", b"\0\1abc"), command(b"ERROR", b"\2no"), b"", *messages))
    start = dice.choice(
        (
            null(),
            null(Identity=b"me", X=b"y"),
            null(version=b"\3\0"),
            hello_2(3, b"i"),
            hello_2(),
            greeting(),
            greeting(b"CURVE"),
            ready(),
        )
    )
    return start + messages[0] + more + messages[0]


def mutated(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        at = dice.randrange(len(changed)) if changed else 0
        match dice.randrange(5):
            case 0 if changed:
                changed[at] ^= 1 << dice.randrange(8)
            case 1 if changed:
                changed[at] = dice.choice((0, 1, 2, 4, 6, 255))
            case 2:
                del changed[at : at + dice.randint(1, 20)]
            case 3:
                changed[at:at] = dice.randbytes(dice.randint(1, 20))
            case _:
                changed += changed[at : at + dice.randint(1, 80)]
    return bytes(changed)


def split(data: bytes, dice: random.Random) -> list[int]:
    return sorted(dice.randrange(len(data) + 1) for _ in range(dice.choice((0, 1, 3, 10))))


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["random", "mutated", "curve"])
def test_ten_million_byte_strings(kind: str) -> None:
    byte_strings(kind, 340_000, SEED)
    memory = memory_bytes(os.getpid()) or 0
    byte_strings(kind, 3_060_000, SEED + 1)
    assert (memory_bytes(os.getpid()) or 0) < memory + MOST_GROWTH
    tally["byte strings for ZMTP"] += 3_400_000


@pytest.mark.parametrize("kind", ["random", "mutated", "curve"])
def test_byte_strings(kind: str) -> None:
    byte_strings(kind, 3000, 7)


def byte_strings(kind: str, count: int, seed: int) -> None:
    dice = random.Random(seed)
    for number in range(count):
        keys = None
        if kind == "random":
            data = dice.choice((b"", greeting(), null())) + dice.randbytes(dice.randint(0, 200))
        else:
            data = mutated(seeds(dice), dice)
        if kind == "curve":
            keys = KEYS
            data = greeting(b"CURVE") + mutated(CurveClient(KEYS.public).hello() if number % 9 == 0 else data, dice)
        whole = run(data, [], keys)
        assert run(data, split(data, dice), keys, dice.choice((1, 2, sys.maxsize))) == whole, (seed, number, data)
        assert all(not isinstance(event, ConnectionFailed) for event in whole[:-1]), (seed, number, data)


def test_sealed_frames_that_were_changed() -> None:
    """A single bit of what a peer with keys sends after the handshake."""
    dice = random.Random(11)
    for _ in range(300 if not LONG else 30_000):
        connection, client = Connection(curve=CurveSession(KEYS), limits=LIMITS), CurveClient(KEYS.public)
        connection.receive(greeting(b"CURVE") + client.hello())
        client.welcome(commands(b"".join(connection.take_output())[64:])[0][1][8:])
        connection.receive(client.initiate())
        connection.accept()
        good = client.seal(b"good")
        assert connection.receive(good) == [[b"good"]]
        data = bytearray(client.seal(dice.randbytes(dice.randint(0, 100))))
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        for event in connection.receive(bytes(data)):
            assert isinstance(event, ConnectionFailed)
