"""What libraries said when they connected, byte for byte, without them."""

from __future__ import annotations

import pytest
from support.each import each
from support.zmtp_peer import commands
from zmq.utils import z85

from broker.zmtp import Connection, ConnectionState, Event, PeerReady
from broker.zmtp.encryption import CurveServer, CurveSession

SIGNATURE = "ff00000000000000{:02x}7f"
"""libzmq writes what would be the size of an identity of ZMTP 1.0."""

NULL = "03014e554c4c" + "00" * 48

LIBZMQ = {
    ("DEALER", ""): "04290552454144590b536f636b65742d54797065000000064445414c4552084964656e7469747900000000",
    ("DEALER", "me"): "042b0552454144590b536f636b65742d54797065000000064445414c4552084964656e74697479000000026d65",
    ("REQ", ""): "04260552454144590b536f636b65742d5479706500000003524551084964656e7469747900000000",
    ("REQ", "me"): "04280552454144590b536f636b65742d5479706500000003524551084964656e74697479000000026d65",
    ("ROUTER", ""): "04290552454144590b536f636b65742d5479706500000006524f55544552084964656e7469747900000000",
    ("ROUTER", "me"): "042b0552454144590b536f636b65742d5479706500000006524f55544552084964656e74697479000000026d65",
}
"""READY of libzmq 4.3.5."""

HELLO_X = "010568656c6c6f000178"
"""The message hello, x."""

JEROMQ = "01050000"
"""A DEALER of JeroMQ 0.3.6 without an identity, in ZMTP 2.0, behind the signature."""

SERVER = CurveServer(
    z85.decode(b"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"), z85.decode(b"JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6")
)
"""The server of the example in libzmq's manual (zmq_curve), to which the HELLO was said."""

CURVE = (
    "ff00000000000000017f03014355525645"
    + "00" * 47
    + "04c80548454c4c4f0100"
    + "00" * 72
    + "24b4c7eee79c6b6d6f1dcb6ac9af0666bf9012fb8ea516280d0d7fed5b507b2a0000000000000001223e335dd43dd45c8f584e80b6421e3b"
    "19a3263e41c8752442305e0bdf3affd8d1f7aaf3198dd3c306b39f5b5fb8e6207eea2587bf730d0b8eef06822e73e7325baa475d1ed1196f"
    "bfff058782597d0c"
)
"""A DEALER of libzmq 4.3.5 up to its HELLO."""


def hear(connection: Connection, said: bytes, step: int) -> list[Event]:
    events: list[Event] = []
    for at in range(0, len(said), step):
        events += connection.receive(said[at : at + step])
        if connection.state is ConnectionState.DECISION:
            connection.accept()
            events += connection.receive(b"")
    return events


@each("step", [1, 11, 64, 1000])
@each(("kind", "identity"), LIBZMQ)
def test_libzmq_without_keys(kind: str, identity: str, step: int) -> None:
    size = 1 + len(identity)
    whole = bytes.fromhex(SIGNATURE.format(size) + NULL + LIBZMQ[kind, identity] + "0100" * (kind == "REQ") + HELLO_X)
    ready, *messages = hear(Connection(), whole, step)
    metadata = {b"socket-type": kind.encode(), b"identity": identity.encode()}
    assert ready == PeerReady((3, 1), kind.encode(), identity.encode(), b"", metadata)
    assert messages == [[*[b""] * (kind == "REQ"), b"hello", b"x"]]


@pytest.mark.parametrize("step", [1, 1000])
def test_libzmq_with_keys(step: int) -> None:
    connection = Connection(curve=CurveSession(SERVER))
    assert hear(connection, bytes.fromhex(CURVE), step) == []
    ((flags, welcome),) = commands(b"".join(connection.take_output())[64:])
    assert (flags, welcome[:8], len(welcome)) == (4, b"\x07WELCOME", 168)


@pytest.mark.parametrize("step", [1, 1000])
def test_jeromq(step: int) -> None:
    whole = bytes.fromhex(SIGNATURE.format(1) + JEROMQ + HELLO_X)
    assert hear(Connection(), whole, step) == [PeerReady((2, 0), b"DEALER", b"", b"", {}), [b"hello", b"x"]]
