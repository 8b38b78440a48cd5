"""What a connection makes of what a peer sends, at each state."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
from support.each import each
from support.zmtp_peer import (
    CurveClient,
    command,
    commands,
    frame,
    greeting,
    hello_2,
    message,
    null,
    properties,
    ready,
)

from broker.zmtp import (
    Connection,
    ConnectionFailed,
    ConnectionState,
    Event,
    Failure,
    MessageLimits,
    OversizedMessage,
    PeerReady,
    Ping,
)
from broker.zmtp.encryption import CurveServer, CurveSession

LIMITS = MessageLimits(max_message=1000, max_frames=10, max_command=300)


def make(curve: CurveServer | None = None) -> Connection:
    return Connection(curve=curve and CurveSession(curve), limits=LIMITS)


def feed(connection: Connection, data: bytes) -> list[Event]:
    """The events of these bytes; every peer is accepted."""
    events = connection.receive(data)
    while connection.state is ConnectionState.DECISION:
        connection.accept()
        events += connection.receive(b"")
    return events


def sent(connection: Connection) -> bytes:
    return b"".join(connection.take_output())


def opened(**more: bytes) -> Connection:
    connection = make()
    (event,) = feed(connection, null(**more))
    assert isinstance(event, PeerReady)
    sent(connection)
    return connection


def failure(events: list[Event]) -> Failure:
    event = events[-1]
    assert isinstance(event, ConnectionFailed)
    return event.failure


# -- the handshake without keys ------------------------------------------------------------------------------


@each(("version", "spoken"), [(b"\3\0", (3, 0)), (b"\3\1", (3, 1)), (b"\3\7", (3, 1)), (b"\4\0", (3, 1))])
def test_a_peer_of_version_3(version: bytes, spoken: tuple[int, int]) -> None:
    connection = make()
    assert sent(connection) == b"\xff" + bytes(8) + b"\x7f\x03"  # the rest depends on the peer's version
    events = connection.receive(null(version=version, Identity=b"me", X_Zone=b"east") + message(b"early", b""))
    metadata = {b"socket-type": b"DEALER", b"identity": b"me", b"x-zone": b"east"}
    assert events == [PeerReady(spoken, b"DEALER", b"me", b"", metadata)]
    assert sent(connection) == b"\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    connection.accept()
    assert connection.receive(b"") == [[b"early", b""]]
    assert sent(connection) == command(b"READY", properties(Socket_Type=b"ROUTER", Identity=b""))


def test_a_peer_of_version_2() -> None:
    connection = make()
    sent(connection)
    events = connection.receive(hello_2(3, b"me") + message(b"", b"hello"))
    assert events == [PeerReady((2, 0), b"REQ", b"me", b"", {})]
    assert sent(connection) == b"\x06\x00\x00"  # ROUTER, and no identity
    connection.accept()
    assert connection.receive(b"") == [[b"", b"hello"]]
    connection.send([b"", b"x" * 300])
    assert sent(connection) == message(b"", b"x" * 300)
    assert not connection.ping()
    assert failure(connection.receive(command(b"PING", b"\0\0"))) is Failure.MALFORMED


def test_a_peer_of_version_2_learns_the_routing_id_of_this_end() -> None:
    connection = Connection(identity=b"tcp://127.0.0.1:5555")
    connection.receive(hello_2(6))
    assert sent(connection)[11:] == b"\x06" + frame(b"tcp://127.0.0.1:5555")


def test_who_is_refused_gets_the_reason() -> None:
    connection = make()
    feed_one = connection.receive(null() + message(b"early"))
    assert len(feed_one) == 1
    sent(connection)
    connection.refuse(b"400")
    assert sent(connection) == command(b"ERROR", b"\x03400")
    assert connection.receive(b"") == connection.receive(message(b"late")) == []
    old = make()
    old.receive(hello_2())
    sent(old)
    old.refuse(b"400")
    assert sent(old) == b""


def test_calls_out_of_turn() -> None:
    connection = make()
    for call in (connection.accept, lambda: connection.refuse(b""), lambda: connection.send([b""]), connection.ping):
        with pytest.raises(ValueError, match="state GREETING"):
            call()


HUGE = (1 << 63).to_bytes(8, "big")

WRONG = {
    "http": (b"GET / HTTP/1.1\r\n", Failure.NOT_ZMTP),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Failure.NOT_ZMTP),
    "a wrong signature": (b"\xff" + bytes(9) + greeting()[10:], Failure.NOT_ZMTP),
    "zmtp 1.0": (b"\x01\x00", Failure.NOT_ZMTP),
    "zmtp 1.0, long": (b"\xff" + bytes(8) + b"\x00", Failure.NOT_ZMTP),
    "revision 0": (b"\xff" + bytes(8) + b"\x7f\x00", Failure.NOT_ZMTP),
    "another mechanism": (greeting(b"PLAIN"), Failure.MECHANISM),
    "no mechanism": (greeting(b""), Failure.MECHANISM),
    "keys": (greeting(b"CURVE"), Failure.MECHANISM),
    "a message first": (greeting() + message(b"x"), Failure.HANDSHAKE),
    "a greeting that goes on": (greeting() + bytes(100), Failure.HANDSHAKE),
    "ping first": (greeting() + command(b"PING", b"\0\0"), Failure.HANDSHAKE),
    "hello": (greeting() + command(b"HELLO", bytes(194)), Failure.HANDSHAKE),
    "a command without a name": (greeting() + frame(b"", 4), Failure.MALFORMED),
    "a name that is longer": (greeting() + frame(b"\x09READY", 4), Failure.MALFORMED),
    "a command that goes on": (greeting() + frame(b"\x05READY", 5), Failure.MALFORMED),
    "reserved flags": (greeting() + b"\x08\x00", Failure.MALFORMED),
    "no socket type": (greeting() + command(b"READY"), Failure.SOCKET_TYPE),
    "sub": (greeting() + ready(b"SUB"), Failure.SOCKET_TYPE),
    "identity of 256": (null(Identity=b"x" * 256), Failure.HANDSHAKE),
    "identity of zero": (null(Identity=b"\0x"), Failure.HANDSHAKE),
    "metadata cut": (greeting() + command(b"READY", properties(Socket_Type=b"DEALER")[:-1]), Failure.HANDSHAKE),
    "metadata with a size beyond": (greeting() + command(b"READY", b"\x01a\xff\xff\xff\xff"), Failure.HANDSHAKE),
    "a property without a name": (greeting() + command(b"READY", b"\x00\0\0\0\0"), Failure.HANDSHAKE),
    "a large command": (greeting() + b"\x06" + (301).to_bytes(8, "big"), Failure.TOO_LARGE),
    "an endless command": (greeting() + b"\x06" + b"\xff" * 8, Failure.TOO_LARGE),
    "a command of 2^63": (greeting() + b"\x06" + HUGE, Failure.TOO_LARGE),
    "error": (greeting() + command(b"ERROR", b"\x05sorry"), Failure.PEER),
    "error without a reason": (greeting() + command(b"ERROR"), Failure.PEER),
    "2.0, sub": (hello_2(2), Failure.SOCKET_TYPE),
    "2.0, unknown type": (hello_2(77), Failure.SOCKET_TYPE),
    "2.0, long identity": (hello_2()[:12] + b"\x02", Failure.HANDSHAKE),
    "2.0, identity of zero": (hello_2(5, b"\0"), Failure.HANDSHAKE),
}


@each("what", WRONG)
def test_a_wrong_handshake_ends_the_connection(what: str) -> None:
    data, kind = WRONG[what]
    whole = make()
    events = whole.receive(data)
    assert (len(events), failure(events)) == (1, kind)
    assert whole.state is ConnectionState.CLOSED
    assert whole.receive(null() + message(b"x")) == []
    byte_by_byte = make()
    assert [event for at in range(len(data)) for event in byte_by_byte.receive(data[at : at + 1])] == events


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n" * 500, greeting(b"PLAIN") + bytes(9000), hello_2(2) + bytes(9000)]
)
def test_a_connection_that_has_ended_keeps_nothing(data: bytes) -> None:
    connection = make()
    assert isinstance(connection.receive(data)[-1], ConnectionFailed)
    assert connection._greeting == connection._reader._data == b""


def test_a_property_that_comes_twice() -> None:
    twice = properties(Socket_Type=b"DEALER") + properties(socket_type=b"REQ")
    assert failure(make().receive(greeting() + command(b"READY", twice))) is Failure.HANDSHAKE


# -- messages ------------------------------------------------------------------------------------------------

SIZES = (0, 1, 254, 255, 256, 700)


def test_messages_of_all_sizes_however_they_are_cut() -> None:
    bodies = [bytes([size % 251]) * size for size in SIZES]
    data = b"".join(message(b"", body) for body in bodies) + message(*[b"x"] * 10)
    expected = [*([b"", body] for body in bodies), [b"x"] * 10]
    for step in (1, 2, 3, 7, 255, 256, len(data)):
        connection = opened()
        got = [event for at in range(0, len(data), step) for event in connection.receive(data[at : at + step])]
        assert got == expected
        for frames in expected:
            assert isinstance(frames, list)
            connection.send(frames)
        assert sent(connection) == data


def test_a_large_frame_is_put_together_once() -> None:
    connection = Connection(limits=MessageLimits(max_message=1 << 22))
    feed(connection, null())
    sent(connection)
    body = bytes(range(256)) * 4096
    data = message(b"a", body, b"z") + message(b"next")
    got = [event for at in range(0, len(data), 50_000) for event in connection.receive(data[at : at + 50_000])]
    assert got == [[b"a", body, b"z"], [b"next"]]
    assert not connection._reader._data, "what was said last is not kept"
    connection.send([b"a", body, b"z"])
    output = connection.take_output()
    assert any(part is body for part in output)
    assert b"".join(output) == message(b"a", body, b"z")


@each(
    "data",
    [
        *(frame(b"x" * 1001), b"\x02\x7f" + b"\xff" * 7, b"\x02" + HUGE, b"\x03" + b"\xff" * 8),
        *(b"\x06" + (301).to_bytes(8, "big"), b"\x06" + HUGE),
    ],
)
def test_a_frame_over_the_limit_ends_the_connection(data: bytes) -> None:
    connection = opened()
    events = connection.receive(message(b"before") + data)
    assert events[0] == [b"before"]
    assert failure(events[1:]) is Failure.TOO_LARGE


@each("bodies", [[b"x" * 600, b"y" * 401], [b""] * 11, [b"x"] * 600, [b"", *[b"z" * 999] * 40]])
def test_of_a_message_over_the_limits_the_head_is_told_and_the_rest_thrown_away(bodies: list[bytes]) -> None:
    for step in (1, 7, 1 << 20):
        connection = opened()
        data = message(b"before") + message(*bodies) + message(b"behind")
        events = [event for at in range(0, len(data), step) for event in connection.receive(data[at : at + step])]
        assert (events[0], events[2:]) == ([b"before"], [[b"behind"]])
        assert isinstance(events[1], OversizedMessage)
        assert events[1].head == bodies[: len(events[1].head)]


def test_a_message_without_an_end_ends_the_connection() -> None:
    connection = opened()
    events = connection.receive(frame(b"", 1) * 10_000)
    assert isinstance(events[0], OversizedMessage)
    assert failure(events[1:]) is Failure.TOO_LARGE


def test_commands_after_the_handshake() -> None:
    connection = opened()
    data = (
        frame(b"first", 1)
        + command(b"PING", b"\x00\x15context")  # also between the frames of a message
        + command(b"PONG")
        + command(b"SUBSCRIBE", b"x")
        + command(b"whatever")
        + frame(b"last")
    )
    assert connection.receive(data) == [Ping(2.1), [b"first", b"last"]]
    assert sent(connection) == command(b"PONG", b"context")
    assert connection.ping(0.5, b"c")
    assert sent(connection) == command(b"PING", b"\x00\x05c")
    assert failure(connection.receive(command(b"PING", b"\0"))) is Failure.MALFORMED
    for wrong in (command(b"PING", bytes(19)), frame(b"\x04PING\0\0", 5), b"\x08\x00"):
        assert failure(opened().receive(wrong)) is Failure.MALFORMED
    assert opened().receive(command(b"ERROR", b"\x03bye")) == [ConnectionFailed(Failure.PEER, "'bye'")]


# -- with keys -----------------------------------------------------------------------------------------------


CURVE = greeting(b"CURVE")


@pytest.fixture(scope="module")
def keys() -> CurveServer:
    client = CurveClient(bytes(32))  # only for its pair of keys
    return CurveServer(client.public, client.secret)


def welcomed(keys: CurveServer) -> tuple[Connection, CurveClient]:
    connection, client = make(keys), CurveClient(keys.public)
    sent(connection)
    assert connection.receive(greeting(b"CURVE") + client.hello()) == []
    output = sent(connection)
    assert output[:54] == b"\x01" + b"CURVE".ljust(20, b"\0") + b"\x01" + bytes(31) + b"\x04"
    ((flags, body),) = commands(output[53:])
    assert (flags, body[:8], len(body)) == (4, b"\x07WELCOME", 168)
    client.welcome(body[8:])
    return connection, client


def shaken(keys: CurveServer) -> tuple[Connection, CurveClient]:
    connection, client = welcomed(keys)
    (event,) = connection.receive(client.initiate())
    assert event == PeerReady((3, 1), b"DEALER", b"", client.public, {b"socket-type": b"DEALER"})
    connection.accept()
    ((flags, body),) = commands(sent(connection))
    assert (flags, body[:6]) == (4, b"\x05READY")
    assert client.metadata(body[6:]) == properties(Socket_Type=b"ROUTER", Identity=b"")
    return connection, client


def test_messages_with_keys(keys: CurveServer) -> None:
    connection, client = shaken(keys)
    data = client.seal(b"a", 1) + client.seal(b"\x04PING\x00\x0ac", 2) + client.seal(b"b" * 500) + client.seal(b"")
    assert connection.receive(data) == [Ping(1.0), [b"a", b"b" * 500], [b""]]
    connection.send([b"x", b"y" * 300])
    plain = [client.open(body) for flags, body in commands(sent(connection)) if not flags & 5]
    assert plain == [b"\x02\x04PONGc", b"\x01x", b"\x00" + b"y" * 300]


def test_who_is_refused_with_keys_gets_the_reason(keys: CurveServer) -> None:
    connection, client = welcomed(keys)
    connection.receive(client.initiate())
    connection.refuse(b"400")
    assert sent(connection) == command(b"ERROR", b"\x03400")


def with_key(client: CurveClient, public: bytes) -> CurveClient:
    client.public = public
    return client


def with_nonce(client: CurveClient, number: int) -> CurveClient:
    client.nonce = number
    return client


def to_server(client: CurveClient, public: bytes) -> CurveClient:
    client.server = public
    return client


def with_zero_transient(client: CurveClient) -> CurveClient:
    client.transient = bytes(32)
    return client


def with_last_bit_changed(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


def sealed(client: CurveClient, *nonces: int) -> bytes:
    return b"".join(client.seal(b"x", 0, nonce.to_bytes(8, "big")) for nonce in nonces)


Wrong = dict[str, tuple[Callable[[CurveClient], bytes], Failure]]

STARTS: Wrong = {
    "NULL": (lambda client: greeting(), Failure.MECHANISM),
    "2.0": (lambda client: hello_2(), Failure.MECHANISM),
    "two servers": (lambda client: greeting(b"CURVE", as_server=True), Failure.MECHANISM),
    "INITIATE": (lambda client: CURVE + command(b"INITIATE", bytes(200)), Failure.HANDSHAKE),
    "a MESSAGE": (lambda client: CURVE + frame(b"\x07MESSAGE" + bytes(60)), Failure.HANDSHAKE),
    "zeros": (lambda client: CURVE + command(b"HELLO", bytes(194)), Failure.HANDSHAKE),
    "no zeros": (lambda client: CURVE + client.hello(zeros=b"1" * 64), Failure.HANDSHAKE),
    "a zero key": (lambda client: CURVE + with_zero_transient(client).hello(), Failure.KEYS),
    "another version": (lambda client: CURVE + client.hello(version=b"\2\0"), Failure.HANDSHAKE),
    "cut": (lambda client: CURVE + command(b"HELLO", client.hello()[8:-1]), Failure.HANDSHAKE),
    "it goes on": (lambda client: CURVE + command(b"HELLO", client.hello()[8:] + b"x"), Failure.HANDSHAKE),
    "another server": (lambda client: CURVE + to_server(client, client.public).hello(), Failure.KEYS),
    "twice": (lambda client: CURVE + client.hello() * 2, Failure.HANDSHAKE),
}


@each("what", STARTS)
def test_a_wrong_start_with_keys(keys: CurveServer, what: str) -> None:
    say, kind = STARTS[what]
    assert failure(make(keys).receive(say(CurveClient(keys.public)))) is kind


INITIATES: Wrong = {
    "another's nonce": (lambda client: with_nonce(client, 0).initiate(), Failure.KEYS),
    "another server": (lambda client: to_server(client, client.public).initiate(), Failure.KEYS),
    "a zero key": (lambda client: with_key(client, bytes(32)).initiate(), Failure.KEYS),
    "a key that it has not": (lambda client: with_key(client, client.server).initiate(), Failure.KEYS),
    "a vouch of zeros": (lambda client: client.initiate(vouch=bytes(96)), Failure.KEYS),
    "metadata cut": (lambda client: client.initiate(metadata=b"\x01a"), Failure.HANDSHAKE),
    "identity of 256": (lambda client: client.initiate(metadata=properties(Identity=b"x" * 256)), Failure.TOO_LARGE),
    "cut": (lambda client: command(b"INITIATE", client.cookie), Failure.HANDSHAKE),
    "a changed bit": (lambda client: with_last_bit_changed(client.initiate()), Failure.KEYS),
    "READY": (lambda client: ready(), Failure.HANDSHAKE),
}


@each("what", INITIATES)
def test_a_wrong_initiate(keys: CurveServer, what: str) -> None:
    (say, kind), (connection, client) = INITIATES[what], welcomed(keys)
    assert failure(connection.receive(say(client))) is kind


def test_an_initiate_with_the_cookie_of_another_connection(keys: CurveServer) -> None:
    connection, _ = welcomed(keys)
    _, stranger = welcomed(keys)
    assert failure(connection.receive(stranger.initiate())) is Failure.KEYS


def test_a_handshake_that_is_replayed(keys: CurveServer) -> None:
    """What one connection has sent is worth nothing on another."""
    connection, client = make(keys), CurveClient(keys.public)
    hello = client.hello()
    connection.receive(greeting(b"CURVE") + hello)
    client.welcome(commands(sent(connection)[64:])[0][1][8:])
    initiate = client.initiate()
    connection.receive(initiate)
    replayed = make(keys)
    assert replayed.receive(greeting(b"CURVE") + hello) == []
    assert failure(replayed.receive(initiate)) is Failure.KEYS


MESSAGES: Wrong = {
    "in clear": (lambda client: message(b"in clear"), Failure.MALFORMED),
    "a PING in clear": (lambda client: command(b"PING", b"\0\0"), Failure.MALFORMED),
    "a nonce twice": (lambda client: sealed(client, 3, 3), Failure.KEYS),
    "a nonce of the handshake": (lambda client: sealed(client, 2), Failure.KEYS),
    "the last nonce, and the first": (lambda client: sealed(client, 2**64 - 1, 0), Failure.KEYS),
    "a changed bit": (lambda client: with_last_bit_changed(client.seal(b"x")), Failure.KEYS),
    "zeros": (lambda client: frame(b"\x07MESSAGE" + bytes(7) + b"\xff" + bytes(40)), Failure.KEYS),
    "too short": (lambda client: frame(b"\x07MESSAGE" + bytes(24)), Failure.MALFORMED),
    "of 2^63 bytes": (lambda client: b"\x02" + HUGE, Failure.TOO_LARGE),
    "without a name": (lambda client: client.seal(b"", 2), Failure.MALFORMED),
    "ERROR": (lambda client: client.seal(b"\x05ERROR", 2), Failure.PEER),
}


@each("what", MESSAGES)
def test_a_wrong_message_with_keys(keys: CurveServer, what: str) -> None:
    (say, kind), (connection, client) = MESSAGES[what], shaken(keys)
    assert failure(connection.receive(say(client))) is kind


def test_messages_over_the_limits_with_keys(keys: CurveServer) -> None:
    connection, client = shaken(keys)
    data = b"".join(client.seal(b"x" * 150, 1) for _ in range(7)) + client.seal(b"") + client.seal(b"behind")
    assert connection.receive(data) == [OversizedMessage([b"x" * 150] * 6), [b"behind"]]
    events = connection.receive(b"".join(client.seal(b"", 1) for _ in range(1000)))
    assert events[0] == OversizedMessage([b""] * 10)
    assert failure(events[1:]) is Failure.TOO_LARGE


@pytest.mark.parametrize("encrypted", [False, True])
def test_one_call_reads_so_many_messages_and_commands_at_most(encrypted: bool, keys: CurveServer) -> None:
    """So that no peer holds a server's only thread, however small its messages are."""
    connection, client = shaken(keys) if encrypted else (opened(), None)
    for flag, body, event in ((0, b"", [b""]), (2, b"\x04PING\0\0", Ping(0.0))):
        if client is not None:
            data = b"".join(client.seal(body, flag) for _ in range(2500)) + client.seal(b"last")
        else:
            data = (command(b"PING", b"\0\0") if flag else message(b"")) * 2500 + message(b"last")
        calls = [connection.receive(data, 1000)]
        while connection.has_more:
            calls.append(connection.receive(b"", 1000))
        assert [*chain.from_iterable(calls)] == [*[event] * 2500, [b"last"]]
        assert max(map(len, calls)) <= 1000
        assert connection.receive(b"") == []


def test_no_nonce_is_sent_twice(keys: CurveServer) -> None:
    connection, client = shaken(keys)
    assert isinstance(connection._curve, CurveSession)
    connection._curve._nonce = 2**64 - 2
    connection.send([b"the last"])
    ((_, body),) = commands(sent(connection))
    assert client.open(body) == b"\x00the last"
    with pytest.raises(Exception, match="all nonces are used"):
        connection.send([b"one more"])
