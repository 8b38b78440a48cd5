"""Malformed handshakes by the thousand a second: one thread, many sockets, none of which blocks."""

from __future__ import annotations

import random
import select
import socket
import struct
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple
from urllib.parse import urlsplit

import zmq

from broker.io.curve import Curve

AT_ONCE = 40
"""Connections that the server may not have accepted yet: fewer than a listening socket of ZeroMQ keeps in its queue."""

OPEN = 400
"""Connections on which something may still be said."""

STAYING = 300
"""Connections that stay where they stopped. Of both, the oldest ends when there are more."""

GREETING, WELCOME = 64, 170
"""Bytes that a server says, before and after a client's HELLO."""

READY = b"\5READY"
"""What a server says only to whom it lets in."""

LINGER = struct.pack("ii", 1, 0)
"""What is closed sends RST."""

COMMAND, LONG_COMMAND = 4, 6
"""Flags of frames."""

Steps = Sequence[tuple[int, bytes]]
"""What to send, and how much must have been heard before."""


class End(Enum):
    """What a client does when it has said all."""

    WAITS = "waits"
    STAYS = "stays"
    LEAVES = "leaves"
    BREAKS = "breaks"
    FLEES = "flees"
    """Before the server may have seen it."""


class Attempt(NamedTuple):
    kind: str
    steps: Steps
    end: End


class Recorded(NamedTuple):
    """What a client that was let in has said."""

    greeting: bytes
    hello: bytes
    initiate: bytes
    message: bytes

    @property
    def all(self) -> bytes:
        return b"".join(self)

    def replayed(self) -> Steps:
        """As it was said."""
        welcomed = GREETING + WELCOME
        return ((0, self.greeting), (GREETING, self.hello), (welcomed, self.initiate), (welcomed, self.message))


def address(endpoint: str) -> tuple[str, int]:
    url = urlsplit(endpoint)
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


def record(endpoint: str, curve: Curve, message: Sequence[bytes]) -> Recorded:
    """What a client with a right key says, until it has its answer to a message."""
    with socket.create_server(("127.0.0.1", 0)) as listener, zmq.Context.instance().socket(zmq.DEALER) as client:
        client.linger = 0
        curve.apply(client)
        client.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        client.send_multipart(message)
        here, _ = listener.accept()
        with here, socket.create_connection(address(endpoint)) as there:
            said = carry(here, there, client)
    hello = GREETING + 2 + said[GREETING + 1]
    assert said[hello] in (COMMAND, LONG_COMMAND)
    initiate = hello + (
        2 + said[hello + 1] if said[hello] == COMMAND else 9 + int.from_bytes(said[hello + 1 : hello + 9])
    )
    return Recorded(said[:GREETING], said[GREETING:hello], said[hello:initiate], said[initiate:])


def carry(here: socket.socket, there: socket.socket, client: zmq.Socket[bytes]) -> bytes:
    """Carry what is said from here to there and back, until a client has a message; what was said here."""
    said = b""
    while not client.poll(0):
        readable, _, _ = select.select([here, there], [], [], 0.01)
        if here in readable:
            data = here.recv(65536)
            said += data
            there.sendall(data)
        if there in readable:
            here.sendall(there.recv(65536))
    return said


class Malformed:
    """Handshakes of all kinds, none of which is to be let in."""

    def __init__(self, recorded: Recorded, seed: int) -> None:
        self._good = recorded
        self._random = random.Random(seed)
        self._kinds = (
            self._noise,
            self._greeting,
            self._mechanism,
            self._hello,
            self._no_handshake,
            self._initiate,
            self._out_of_order,
            self._replay,
            self._cut,
        )

    def __iter__(self) -> Iterator[Attempt]:
        dice, ends = self._random, (End.WAITS,) * 9 + (End.STAYS, End.LEAVES, End.BREAKS) * 2 + (End.FLEES,)
        while True:
            make = dice.choice(self._kinds)
            yield Attempt(make.__name__[1:], make(), dice.choice(ends))

    def _noise(self) -> Steps:
        dice = self._random
        start = dice.choice((b"", b"", b"\xff", b"\xff" + bytes(8) + b"\x7f", b"GET / HTTP/1.1\r\n\r\n", b"\x16\3\1"))
        return ((0, start + dice.randbytes(dice.randrange(300))),)

    def _greeting(self) -> Steps:
        """Other versions, wrong bytes, and something right behind it."""
        dice = self._random
        greeting = bytearray(self._good.greeting)
        if dice.random() < 0.5:
            greeting[10:12] = bytes((dice.choice((0, 1, 2, 3, 4, 255)), dice.choice((0, 1, 2, 255))))
        else:
            for _ in range(dice.randrange(1, 4)):
                greeting[dice.randrange(32)] = dice.randrange(256)  # the filler behind may be anything
        return ((0, bytes(greeting)), (dice.choice((0, 10, GREETING)), self._good.hello))

    def _mechanism(self) -> Steps:
        dice = self._random
        ready = READY + b"\x0bSocket-Type\0\0\0\6DEALER" + b"\x08Identity" + b"\0\0\0\1x"
        name, command = dice.choice(
            (
                (b"NULL", ready),
                (b"PLAIN", b"\5HELLO\5alice\6secret"),
                (b"GSSAPI", dice.randbytes(50)),
                (b"curve", self._good.hello[2:]),
                (b"CURVE\0X", self._good.hello[2:]),
                (dice.randbytes(20), ready),
            )
        )
        greeting = self._good.greeting[:12] + name.ljust(20, b"\0") + bytes((dice.randrange(2),)) + bytes(31)
        message = b"\1\6MDPC02\1\1\1\0\4echo"
        return ((0, greeting), (dice.choice((0, GREETING)), self._command(command) + message))

    def _hello(self) -> Steps:
        """Wrong lengths, wrong content, wrong versions, or one wrong bit."""
        dice, good = self._random, self._good.hello[2:]
        body = dice.choice(
            (
                lambda: b"\5HELLO" + dice.randbytes(dice.randrange(400)),
                lambda: b"\5HELLO\1\0" + dice.randbytes(len(good) - 8),
                lambda: good[: dice.randrange(len(good))],
                lambda: good + dice.randbytes(dice.randrange(1, 300)),
                lambda: self._mutated(good),
                lambda: dice.randbytes(len(good)),
            )
        )()
        return ((0, self._good.greeting), (dice.choice((0, GREETING)), self._command(body)))

    def _no_handshake(self) -> Steps:
        """A message, a command that there is not, a frame of an enormous length."""
        dice = self._random
        size = dice.choice((1 << 8, 1 << 16, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)) - dice.randrange(
            2
        )
        frame = dice.choice(
            (
                b"\0\4echo",
                b"\1\6MDPC02\1\1\1\0\4echo",
                bytes((dice.randrange(256),)) + size.to_bytes(8) + dice.randbytes(100),
                bytes((LONG_COMMAND,)) + size.to_bytes(8) + self._good.hello[2:],
                self._command(b"\5ERROR\3400"),
                self._command(b"\4PING\0\0"),
                self._command(b""),
                self._command(b"\xff"),
                b"\4\0" * 500,
            )
        )
        after = dice.choice(((), ((GREETING, self._good.hello), (GREETING + WELCOME, frame))))
        return ((0, self._good.greeting), *(after or ((GREETING, frame),)))

    def _initiate(self) -> Steps:
        """A good HELLO, which anybody can make who knows the server's key, and a bad INITIATE."""
        dice = self._random
        good = self._good.initiate[2:] if self._good.initiate[0] == COMMAND else self._good.initiate[9:]
        body = dice.choice(
            (
                lambda: good[:9] + dice.randbytes(dice.randrange(600)),
                lambda: good[:9] + dice.randbytes(len(good) - 9),
                lambda: good[: dice.randrange(len(good))],
                lambda: good + dice.randbytes(dice.randrange(1, 100_000)),
                lambda: self._mutated(good),
            )
        )()
        welcomed = GREETING + WELCOME
        return ((0, self._good.greeting), (GREETING, self._good.hello), (welcomed, self._command(body)))

    def _out_of_order(self) -> Steps:
        dice = self._random
        parts = [*self._good[1:], self._command(READY), self._good.greeting]
        return ((0, self._good.greeting), *((GREETING, dice.choice(parts)) for _ in range(dice.randrange(1, 5))))

    def _replay(self) -> Steps:
        """Byte for byte, or with something changed; in turns with the server, or all at once."""
        dice = self._random
        if dice.random() < 0.5:
            return self._good.replayed()
        return ((0, self._good.all if dice.random() < 0.5 else self._mutated(self._good.all)),)

    def _cut(self) -> Steps:
        """It stops at some point."""
        left = self._random.randrange(len(self._good.all))
        steps = []
        for heard, data in self._good.replayed():
            steps.append((heard, data[:left]))
            left -= len(data)
            if left <= 0:
                break
        return steps

    def _mutated(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._random.choice((1, 1, 1, 2, 10))):
            changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    @staticmethod
    def _command(body: bytes) -> bytes:
        if len(body) < 256:
            return bytes((COMMAND, len(body))) + body
        return bytes((LONG_COMMAND,)) + len(body).to_bytes(8) + body


def without_keys() -> Iterator[Attempt]:
    """What every client does that has no key."""
    greeting = b"\xff" + bytes(8) + b"\x7f\3\1" + b"NULL".ljust(20, b"\0") + bytes(32)
    while True:
        yield Attempt("without a key", ((0, greeting),), End.WAITS)


class _Client:
    """One connection."""

    __slots__ = ("attempt", "heard", "stream", "waits")

    def __init__(self, attempt: Attempt, stream: socket.socket) -> None:
        self.attempt = attempt
        self.stream = stream
        self.heard = b""
        self.waits = deque(attempt.steps)


class Handshakes:
    """Makes attempts at an endpoint, AT_ONCE of them at the same time, and notes what comes of them."""

    def __init__(self, endpoint: str, attempts: Iterator[Attempt]) -> None:
        self.made: Counter[str] = Counter()
        """By their kinds: those of which the server has read something, or could have."""
        self.let_in: list[Attempt] = []
        """Those that were told READY."""
        self.welcomed = 0
        """Those that were told WELCOME: their HELLO was right."""
        self.refused = 0
        """Those that the server ended."""
        self._address = address(endpoint)
        self._attempts = attempts
        self._epoll = select.epoll()
        self._open: dict[int, _Client] = {}
        """By file descriptors, the oldest first."""
        self._fresh = 0
        """How many of them have heard nothing."""
        self._staying: deque[_Client] = deque()

    def run(self, count: int) -> None:
        """So many more."""
        for _ in range(count):
            self._begin(next(self._attempts))
            self._poll(0)
            while self._fresh >= AT_ONCE:
                self._poll(0.1)
            while len(self._open) > OPEN:
                self._close(next(iter(self._open.values())))

    def close(self) -> None:
        """End all, at once."""
        while self._open and self._poll(0.2):
            pass
        for client in [*self._open.values(), *self._staying]:
            client.stream.close()
        self._open.clear()
        self._staying.clear()
        self._epoll.close()

    def _begin(self, attempt: Attempt) -> None:
        stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)  # else ports run out
        stream.connect_ex(self._address)
        client = _Client(attempt, stream)
        self._open[stream.fileno()] = client
        self._fresh += 1
        self._epoll.register(stream, select.EPOLLIN | select.EPOLLOUT)

    def _poll(self, seconds: float) -> bool:
        """Go on with those who can; whether there was one."""
        events = self._epoll.poll(seconds)
        for descriptor, event in events:
            client = self._open[descriptor]
            try:
                if event & ~select.EPOLLOUT and not self._hear(client):
                    self.refused += 1
                    self._close(client)
                    continue
                self._say(client)
            except BlockingIOError:
                pass
            except OSError:  # it was reset
                self.refused += 1
                self._close(client)
        return bool(events)

    def _hear(self, client: _Client) -> bool:
        """Whether the server is still there."""
        data = client.stream.recv(4096)
        if data and not client.heard:
            self._fresh -= 1
        client.heard += data
        return bool(data)

    def _say(self, client: _Client) -> None:
        waits, heard = client.waits, len(client.heard)
        while waits and waits[0][0] <= heard:
            needed, data = waits.popleft()
            sent = client.stream.send(data) if data else 0
            if sent < len(data):
                waits.appendleft((needed, data[sent:]))
                return
        if waits:
            self._epoll.modify(client.stream, select.EPOLLIN)
            return
        end = client.attempt.end
        if end is End.FLEES or (heard and end in (End.LEAVES, End.BREAKS)):
            if end is End.LEAVES:
                client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            self._close(client)
        elif heard and end is End.STAYS:
            self._done(client)
            self._staying.append(client)
            if len(self._staying) > STAYING:
                self._staying.popleft().stream.close()
        else:
            self._epoll.modify(client.stream, select.EPOLLIN)

    def _done(self, client: _Client) -> None:
        self._epoll.unregister(client.stream)
        del self._open[client.stream.fileno()]
        self._fresh -= not client.heard
        self.made[client.attempt.kind] += 1
        self.welcomed += len(client.heard) >= GREETING + WELCOME
        if READY in client.heard[GREETING:]:
            self.let_in.append(client.attempt)

    def _close(self, client: _Client) -> None:
        with suppress(OSError):  # what was said last
            self._hear(client)
        self._done(client)
        client.stream.close()
