"""A peer that says anything in any order, cut anywhere, beside a model of the connection: the same events and answers,
each at the earliest byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.torture import LONG
from support.zmtp_peer import CurveClient, command, commands, frame, greeting, hello_2, message, properties

from broker.zmtp import (
    Connection,
    ConnectionFailed,
    ConnectionState,
    Failure,
    MessageLimits,
    OversizedMessage,
    PeerReady,
    Ping,
)
from broker.zmtp.encryption import CurveServer, CurveSession

LIMITS = MessageLimits(max_message=600, max_frames=4, max_command=400)
MOST_SKIPPED = 64 * LIMITS.max_frames
KEYS = CurveServer(*(lambda pair: (pair.public, pair.secret))(CurveClient(bytes(32))))
NAME = b"server"

MORE, LONG_SIZE, COMMAND, INNER_COMMAND = 1, 2, 4, 2


class Sealed(NamedTuple):
    """What is in a MESSAGE of CURVE; broken: it cannot be decrypted."""

    flags: int
    body: bytes
    nonce: int
    broken: bool


class Said(NamedTuple):
    """A frame of the peer."""

    flags: int
    body: bytes
    sealed: Sealed | None = None
    good: bool = False
    """CURVE: it is a HELLO or an INITIATE that is right if it is due."""
    wide: bool = False
    """Its size takes eight bytes, as small as it is."""

    @property
    def head(self) -> int:
        return 9 if self.wide or len(self.body) > 255 or self.flags & LONG_SIZE else 2

    @property
    def data(self) -> bytes:
        if self.head == 2:
            return bytes((self.flags, len(self.body))) + self.body
        return bytes((self.flags | LONG_SIZE,)) + len(self.body).to_bytes(8, "big") + self.body


Due = tuple[int, Any]
"""An event (a `Failure` stands for its end of the connection) or an answer, and the bytes that must come before."""


class Ended(Exception):
    """The model's connection has failed."""


class Frames:
    """Puts messages together."""

    def __init__(self, first: int) -> None:
        """`first`: how much the first frame that is thrown away counts."""
        self.frames: list[bytes] = []
        self.skipping = False
        self.skipped = 0
        self._first = first

    def begins(self, size: int) -> list[bytes] | None:
        """A frame of this size; the head of a message that is too large now."""
        if self.skipping or (
            sum(map(len, self.frames)) + size <= LIMITS.max_message and len(self.frames) < LIMITS.max_frames
        ):
            return None
        head, self.frames = self.frames, []
        self.skipping, self.skipped = True, self._first - 1
        return head

    def ends(self, body: bytes, more: bool) -> list[bytes] | None:
        """The message that is complete with it."""
        if self.skipping:
            self.skipping = more
            self.skipped += 1
            if more and self.skipped > MOST_SKIPPED:
                raise Ended(Failure.TOO_LARGE)
            return None
        self.frames.append(body)
        if more:
            return None
        whole, self.frames = self.frames, []
        return whole


class Model:
    """What a connection must make of all that a peer says."""

    def __init__(self, secure: bool, start: Start, said: list[Said], decision: bool | None) -> None:
        self.events: list[Due] = []
        self.answers: list[Due] = [(0, b"\xff" + bytes(8) + b"\x7f\x03")]
        self.state = ConnectionState.GREETING
        self._secure, self._start, self._decision = secure, start, decision
        self._nonce = 0
        self._inner = Frames(first=1)
        self._outer = Frames(first=2)
        self.at = 0
        try:
            self._greet()
            for one in said:
                if self.state in (ConnectionState.DECISION, ConnectionState.CLOSED):
                    return
                self._take(one)
        except Ended as end:
            self.events.append((self.at, end.args[0]))
            self.state = ConnectionState.CLOSED

    def _greet(self) -> None:
        start = self._start
        self.at = start.noticed if start.failure else len(start.data)
        if not start.failure or self.at > 11:
            if start.old:
                self.answers.append((11, b"\x06" + frame(NAME)))
            else:
                mechanism = b"CURVE" if self._secure else b"NULL"
                self.answers.append((11, greeting(mechanism, as_server=self._secure)[11:]))
        if start.failure:
            raise Ended(start.failure)
        if start.old:
            self._peer_ready()
        else:
            self.state = ConnectionState.HELLO if self._secure else ConnectionState.READY

    def _take(self, one: Said) -> None:
        begin, flags = self.at, one.data[0]
        self.at = begin + one.head
        if flags > (3 if self._start.old else 6) or flags in (5, 7):
            raise Ended(Failure.MALFORMED)
        if flags & COMMAND or self.state is not ConnectionState.OPEN:
            if len(one.body) > LIMITS.max_command:
                raise Ended(Failure.TOO_LARGE)
            self.at = begin + len(one.data)
            if not flags & COMMAND:
                raise Ended(Failure.HANDSHAKE)
            name, data = one.body[1 : 1 + one.body[0]] if one.body else b"", one.body[1 + (one.body or b"\0")[0] :]
            if not name or len(name) < one.body[0]:
                raise Ended(Failure.MALFORMED)
            if self._secure and self.state is ConnectionState.OPEN:
                raise Ended(Failure.MALFORMED)
            self._command(name, data, one)
            return
        if len(one.body) > LIMITS.max_message:
            raise Ended(Failure.TOO_LARGE)
        if (head := self._outer.begins(len(one.body))) is not None:
            self.events.append((self.at, OversizedMessage(head)))
        self.at = begin + len(one.data)
        whole = self._outer.ends(one.body, bool(flags & MORE))
        if whole is None:
            return
        if not self._secure:
            self.events.append((self.at, whole))
            return
        for body in whole:
            self._open(body, one.sealed if one.body == body else None)

    def _open(self, body: bytes, sealed: Sealed | None) -> None:
        if len(body) < 33 or body[:8] != b"\x07MESSAGE":
            raise Ended(Failure.MALFORMED)
        if sealed is None or sealed.broken or sealed.nonce <= self._nonce:
            raise Ended(Failure.KEYS)
        self._nonce = sealed.nonce
        if sealed.flags & INNER_COMMAND:
            name, data = sealed.body[1 : 1 + sealed.body[0]], sealed.body[1 + sealed.body[0] :]
            self._command(name, data, None)
            return
        if (head := self._inner.begins(len(sealed.body))) is not None:
            self.events.append((self.at, OversizedMessage(head)))
        if (whole := self._inner.ends(sealed.body, bool(sealed.flags & MORE))) is not None:
            self.events.append((self.at, whole))

    def _command(self, name: bytes, data: bytes, one: Said | None) -> None:
        match self.state, name:
            case _, b"ERROR":
                raise Ended(Failure.PEER)
            case ConnectionState.OPEN, b"PING":
                if not 2 <= len(data) <= 18:
                    raise Ended(Failure.MALFORMED)
                self.events.append((self.at, Ping(int.from_bytes(data[:2], "big") / 10)))
                self._answer(b"PONG", data[2:])
            case ConnectionState.OPEN, _:
                pass
            case ConnectionState.READY, b"READY":
                self._peer_ready(data)
            case ConnectionState.HELLO, b"HELLO":
                if one is None or not one.good:
                    raise Ended(Failure.HANDSHAKE)
                self._nonce, self.state = 1, ConnectionState.INITIATE
                self.answers.append((self.at, 170))
            case ConnectionState.INITIATE, b"INITIATE":
                if one is None or not one.good:
                    raise Ended(Failure.KEYS if len(data) >= 248 else Failure.HANDSHAKE)
                self._nonce = 2
                self._peer_ready(properties(Socket_Type=b"DEALER"))
            case _:
                raise Ended(Failure.HANDSHAKE)

    def _peer_ready(self, data: bytes = b"") -> None:
        """The peer's part is over: what it is was chosen among those in `READYS`."""
        if self._start.old:
            about = PeerReady((2, 0), b"DEALER", b"me", b"", {})
        else:
            if data not in READYS:
                raise Ended(Failure.HANDSHAKE)
            about = READYS[data](self._start.version)
            if isinstance(about, Failure):
                raise Ended(about)
        self.events.append((self.at, about))
        self.state = ConnectionState.DECISION
        if self._decision is None:
            return
        self.state = ConnectionState.OPEN if self._decision else ConnectionState.CLOSED
        if self._start.old:
            return
        if self._decision:
            self._answer(b"READY", properties(Socket_Type=b"ROUTER", Identity=NAME), sealing=30)
        else:
            self.answers.append((self.at, command(b"ERROR", b"\x03400")))

    def _answer(self, name: bytes, data: bytes, sealing: int = 0) -> None:
        """A command; with keys only its size is known: a box has 16 bytes more than its content."""
        body = bytes((len(name),)) + name + data
        if not self._secure:
            self.answers.append((self.at, frame(body, COMMAND)))
        else:  # READY is a command with a nonce and a box, anything else is in a MESSAGE
            size = len(body) + 8 + 16 if sealing else 8 + 8 + 16 + 1 + len(body)
            self.answers.append((self.at, (2 if size < 256 else 9) + size))


def about(socket_type: bytes, identity: bytes = b"", **more: bytes) -> Any:
    metadata = {b"socket-type": socket_type, **({b"identity": identity} if identity else {})}
    return lambda version: PeerReady(version, socket_type, identity, b"", metadata)


READYS: dict[bytes, Any] = {
    properties(Socket_Type=b"DEALER"): about(b"DEALER"),
    properties(Socket_Type=b"REQ", Identity=b"me"): about(b"REQ", b"me"),
    properties(Socket_Type=b"SUB"): lambda version: Failure.SOCKET_TYPE,
    properties(Identity=b"me"): lambda version: Failure.SOCKET_TYPE,
    properties(Socket_Type=b"DEALER", Identity=b"\0"): lambda version: Failure.HANDSHAKE,
    properties(Socket_Type=b"DEALER", Identity=b"x" * 256): lambda version: Failure.HANDSHAKE,
    properties(Socket_Type=b"DEALER")[:-1]: lambda version: Failure.HANDSHAKE,
}


class Start(NamedTuple):
    """A greeting."""

    data: bytes
    version: tuple[int, int] = (3, 1)
    failure: Failure | None = None
    noticed: int = 64
    """The bytes at which the failure shows."""
    old: bool = False
    """ZMTP 2.0."""


def starts(secure: bool) -> list[Start]:
    mine, other = (b"CURVE", b"NULL") if secure else (b"NULL", b"CURVE")
    two = hello_2(5, b"me")
    return [
        Start(greeting(mine)),
        Start(greeting(mine, b"\x03\x00"), (3, 0)),
        Start(greeting(mine, b"\x03\x07")),
        Start(greeting(mine, b"\x09\x00")),
        Start(two, failure=Failure.MECHANISM, noticed=11) if secure else Start(two, old=True),
        Start(greeting(other), failure=Failure.MECHANISM),
        Start(greeting(b"PLAIN"), failure=Failure.MECHANISM),
        Start(b"GET / HTTP/1.1\r\n", failure=Failure.NOT_ZMTP, noticed=1),
        Start(b"\xff" + bytes(8) + b"\0", failure=Failure.NOT_ZMTP, noticed=10),
        Start(greeting(mine, b"\x00\x00"), failure=Failure.NOT_ZMTP, noticed=11),
    ]


bodies = st.one_of(
    st.binary(max_size=12), st.sampled_from([b"x" * size for size in (255, 256, 299, 300, 400, 401, 600, 601)])
)


counts = st.sampled_from([1, 2, 3, 4, 5, 6, 251, 252, 253, 254, 255, 256, 257, 258, 259, 260, 261])
wild = st.sampled_from([False] * 9 + [True])


class AnyOrder(RuleBasedStateMachine):
    """What is said waits until it is delivered, in pieces."""

    @initialize(
        secure=st.booleans(),
        which=st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]),
        at_once=st.sampled_from([True, True, True, False]),
        step=st.sampled_from([1, 10, 11, 63, 64, 1 << 20]),
    )
    def begin(self, secure: bool, which: int, at_once: bool, step: int) -> None:
        """`at_once`: the handshake is made before anything else is said, so that it is not spoilt."""
        self.secure, self.start = secure, starts(secure)[which]
        self.connection = Connection(identity=NAME, curve=CurveSession(KEYS) if secure else None, limits=LIMITS)
        self.client = CurveClient(KEYS.public)
        self.data, self.delivered = self.start.data, 0
        self.said: list[Said] = []
        self.decision: bool | None = None
        self.events: list[Any] = []
        self.answered = 0
        self.check()
        while at_once and self.connection.state not in (ConnectionState.OPEN, ConnectionState.CLOSED):
            if self.connection.state is ConnectionState.DECISION:
                self.decide(True)
                continue
            if self.delivered == len(self.data):
                self.the_usual()
            self.deliver(step)

    # -- what the peer says ----------------------------------------------------------------------------------

    def spoils(self, wild: bool) -> bool:
        """Whether something in clear would end an encrypted connection: that is said now and then only."""
        return self.secure and not wild and self.connection.state is ConnectionState.OPEN

    def say(self, one: Said) -> None:
        self.said.append(one)
        self.data += one.data

    @rule(flags=st.sampled_from([0, 0, 0, 0, 1, 1, 1, 4, 5, 7, 8]), body=bodies, wide=st.booleans(), wild=wild)
    def a_frame(self, flags: int, body: bytes, wide: bool, wild: bool) -> None:
        if self.spoils(wild):
            self.seal(flags & MORE, body)
            return
        self.say(Said(flags, body, wide=wide))

    @rule(count=counts)
    def frames_without_an_end(self, count: int) -> None:
        if self.secure:
            return
        for _ in range(count):
            self.say(Said(MORE, b""))

    @rule(data=st.sampled_from([*READYS]), wild=wild)
    def ready(self, data: bytes, wild: bool = True) -> None:
        if self.spoils(wild):
            return
        self.say(Said(COMMAND, b"\x05READY" + data))

    @rule()
    def the_usual(self) -> None:
        """The next step of a handshake, whatever was said before."""
        if not self.secure:
            self.ready(properties(Socket_Type=b"DEALER"))
        elif not self.client.nonce:
            self.hello(True)
        else:
            self.initiate(True)

    @rule(good=st.booleans(), wild=wild)
    def hello(self, good: bool, wild: bool = True) -> None:
        if self.spoils(wild):
            return
        first = self.client.nonce == 0
        body = commands(self.client.hello())[0][1] if good and first else b"\x05HELLO" + bytes(194)
        self.say(Said(COMMAND, body, good=good and first))

    @rule(good=st.booleans(), wild=wild)
    def initiate(self, good: bool, wild: bool = True) -> None:
        if self.spoils(wild):
            return
        if good and self.client.shared and self.client.nonce == 1:
            ((flags, body),) = commands(self.client.initiate())
            self.say(Said(flags & COMMAND, body, good=True))
        else:
            self.say(Said(COMMAND, b"\x08INITIATE" + bytes(248)))

    @rule(body=bodies, flags=st.sampled_from([0, 0, 1, 1]), broken=wild, again=wild)
    def sealed(self, body: bytes, flags: int, broken: bool, again: bool) -> None:
        self.seal(flags, body, broken, again and not broken)

    @rule(count=counts)
    def sealed_without_an_end(self, count: int) -> None:
        for _ in range(count):
            self.seal(MORE, b"")

    @rule(
        data=st.sampled_from([bytes(range(size)) for size in (0, 1, 2, 3, 9, 17, 18, 18, 19, 20)]),
        name=st.sampled_from([*[b"PING"] * 9, b"PONG", b"SUBSCRIBE", b"x", b"ERROR"]),
    )
    def a_command(self, data: bytes, name: bytes) -> None:
        body = bytes((len(name),)) + name + data
        self.say(Said(COMMAND, body))
        if self.secure:
            self.said.pop()
            self.data = self.data[: -len(body) - 2]
            self.seal(INNER_COMMAND, body)

    def seal(self, flags: int, body: bytes, broken: bool = False, again: bool = False) -> None:
        if not self.client.shared or self.client.nonce < 2:
            return
        nonce = self.client.nonce if again else self.client.nonce + 1
        self.client.nonce = nonce
        ((_, whole),) = commands(self.client.seal(body, flags, nonce.to_bytes(8, "big")))
        if broken:
            whole = whole[:-1] + bytes((whole[-1] ^ 1,))
        self.say(Said(0, whole, Sealed(flags, body, nonce, broken)))

    # -- what the server does --------------------------------------------------------------------------------

    @rule(size=st.one_of(st.integers(1, 70), st.just(1 << 20)))
    def deliver(self, size: int) -> None:
        piece = self.data[self.delivered : self.delivered + size]
        self.delivered += len(piece)
        self.events += self.connection.receive(piece)
        self.check()

    @rule(early=st.booleans())
    def deliver_to_the_next_effect(self, early: bool) -> None:
        """Or to the byte before it."""
        model = Model(self.secure, self.start, self.said, self.decision)
        later = [at for at, _ in model.events + model.answers if at > self.delivered]
        self.deliver(min(later, default=len(self.data)) - self.delivered - early)

    @precondition(lambda self: self.connection.state is ConnectionState.DECISION)
    @rule(accept=st.sampled_from([True, True, True, False]))
    def decide(self, accept: bool) -> None:
        self.decision = accept
        if accept:
            self.connection.accept()
        else:
            self.connection.refuse(b"400")
        self.events += self.connection.receive(b"")
        self.check()

    @precondition(lambda self: self.connection.state is ConnectionState.OPEN)
    @rule(frames=st.lists(bodies, min_size=1, max_size=3))
    def send(self, frames: list[bytes]) -> None:
        self.connection.send(frames)
        output = b"".join(self.connection.take_output())
        if self.secure:
            opened = [self.client.open(body) for _, body in commands(output)]
            flags = [MORE] * (len(frames) - 1) + [0]
            assert opened == [bytes((flag,)) + body for flag, body in zip(flags, frames, strict=True)]
        else:
            assert output == message(*frames)

    def check(self) -> None:
        model = Model(self.secure, self.start, self.said, self.decision)
        expected = [event for at, event in model.events if at <= self.delivered]
        assert [*self.shown()] == expected
        output = b"".join(self.connection.take_output())
        due = [answer for at, answer in model.answers if at <= self.delivered]
        for answer in due[self.answered :]:
            size = answer if isinstance(answer, int) else len(answer)
            part, output = output[:size], output[size:]
            assert len(part) == size
            if isinstance(answer, bytes):
                assert part == answer
            elif part[2:10] == b"\x07WELCOME":
                self.client.welcome(part[10:])
        assert output == b""
        self.answered = len(due)

    def shown(self) -> Iterator[Any]:
        for event in self.events:
            if isinstance(event, ConnectionFailed):
                assert event is self.events[-1]
                yield event.failure
            elif isinstance(event, PeerReady):
                assert bool(event.key) is self.secure
                yield event._replace(key=b"")
            else:
                yield event


AnyOrder.TestCase.settings = settings(
    max_examples=20_000 if LONG else 100, stateful_step_count=40, deadline=None, derandomize=not LONG
)
TestAnyOrder = pytest.mark.torture(short=True)(AnyOrder.TestCase)
