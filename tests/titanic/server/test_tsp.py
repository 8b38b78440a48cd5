"""Titanic's services on the wire, byte for byte as RFC 9 says."""

from __future__ import annotations

import json

from support.each import each
from support.raw_mdp import RawClient, raw_client, raw_worker
from support.serving import QUICK
from support.waiting import until

from broker import Worker
from titanic import Server

UNKNOWN = b"0123456789abcdef0123456789abcdef"


def reply_of(raw: RawClient, uuid: bytes) -> list[bytes]:
    """The reply once it is there."""

    def look() -> list[bytes] | None:
        reply = raw.ask(b"titanic.reply", uuid)
        return None if reply[0][:3] == b"300" else reply

    reply = until(look)
    assert reply is not None
    return reply


def test_the_whole_conversation(server: Server, raw: RawClient) -> None:
    reply = raw.ask(b"titanic.request", b"echo", b"hello", b"", b"world")
    assert reply[0] == b"200"
    assert len(reply) == 2
    uuid = reply[1]
    assert len(uuid) == 32
    assert uuid == uuid.lower()
    assert int(uuid, 16)
    assert raw.ask(b"titanic.reply", uuid) == [b"300"]
    with raw_worker(server.endpoints[0], b"echo") as worker:
        token, body = worker.take()
        assert body == [b"hello", b"", b"world"]
        assert raw.ask(b"titanic.reply", uuid) == [b"300"]
        worker.final(token, b"", b"reply", b"")
        assert reply_of(raw, uuid) == [b"200", b"", b"reply", b""]
        assert reply_of(raw, uuid.upper()) == [b"200", b"", b"reply", b""]
        for _ in range(3):
            assert raw.ask(b"titanic.reply", uuid) == [b"200", b"", b"reply", b""]
        assert raw.ask(b"titanic.close", uuid.upper()) == [b"200"]
        assert raw.ask(b"titanic.close", uuid) == [b"200"]
        assert raw.ask(b"titanic.reply", uuid)[0][:4] == b"400 "


def test_a_req_socket_of_version_0_1_is_served_as_well(server: Server) -> None:
    with raw_client(server.endpoints[0]) as raw:
        raw.socket.send_multipart([b"", b"MDPC01", b"titanic.request", b"echo", b"x"])
        assert raw.socket.poll(30_000)
        reply = raw.socket.recv_multipart()
    assert reply[:4] == [b"", b"MDPC01", b"titanic.request", b"200"]
    assert len(reply) == 5


NO_UUIDS = [
    [b"../../etc/passwd"],
    [b"../../../../../../etc/passwd\0\0\0\0"],
    [b""],
    [b"0" * 31],
    [b"0" * 33],
    [b"g" * 32],
    [b"01234567-89ab-cdef-0123-456789ab"],
    [b"01234567-89ab-cdef-0123-456789abcdef"],
    [UNKNOWN, b""],
    [UNKNOWN, UNKNOWN],
    [b"\xff" * 32],
    ["٠".encode() * 16],
    [b"0" * 1_000_000],
]


@each("service", [b"titanic.reply", b"titanic.close"])
def test_what_is_no_uuid_is_refused(raw: RawClient, service: bytes) -> None:
    for body in NO_UUIDS:
        reply = raw.ask(service, *body)
        assert len(reply) == 1, body
        assert reply[0][:4] == b"400 ", body


def test_an_unknown_uuid(raw: RawClient) -> None:
    (status,) = raw.ask(b"titanic.reply", UNKNOWN)
    assert status[:4] == b"400 "
    assert raw.ask(b"titanic.close", UNKNOWN) == [b"200"]


NOT_ACCEPTED = [
    [b"echo"],
    [b"", b"x"],
    [b"e" * 256, b"x"],
    [b"e\0", b"x"],
    [b"\xff", b"x"],
    [b"mmi.service", b"echo"],
    [b"mmi.workers", b""],
    [b"titanic.close", UNKNOWN],
    [b"titanic.request", b"echo", b"x"],
]


def test_requests_that_are_not_accepted(server: Server, raw: RawClient) -> None:
    for body in NOT_ACCEPTED:
        reply = raw.ask(b"titanic.request", *body)
        assert len(reply) == 1, body
        assert reply[0][:4] == b"400 ", body
        with server.store.read() as transaction:
            assert transaction.counts().requests == 0, body


def test_bad_ones_among_good_ones_spoil_nothing(raw: RawClient) -> None:
    for number in range(300):
        raw.send(b"titanic.request", *([b"echo", b"%d" % number] if number % 3 else [b"mmi.x", b"y"]))
    replies = [raw.receive() for _ in range(300)]
    assert sum(reply[0] == b"200" for reply in replies) == 200
    assert sum(reply[0].startswith(b"400 ") for reply in replies) == 100
    assert len({reply[1] for reply in replies if reply[0] == b"200"}) == 200


@each("body", [[b""], [b"", b"", b""], [b"\0" * 1000], [bytes([n % 256]) for n in range(1000)]])
def test_bodies_come_through_unchanged(server: Server, raw: RawClient, body: list[bytes]) -> None:
    with Worker("echo", lambda frames: frames, server.endpoints[0], config=QUICK):
        assert reply_of(raw, raw.submit(b"echo", *body)) == [b"200", *body]


def test_1000_small_ones_and_a_large_one(server: Server, raw: RawClient) -> None:
    large = bytes(range(256)) * (20 << 12)
    with Worker("echo", lambda frames: frames, server.endpoints[0], jobs=4, config=QUICK):
        raw.send(b"titanic.request", b"echo", large)
        for number in range(1000):
            raw.send(b"titanic.request", b"echo", b"%d" % number)
        answers = [raw.receive() for _ in range(1001)]
        assert {answer[0] for answer in answers} == {b"200"}
        bodies = {reply_of(raw, uuid)[1] for _, uuid in answers}
    assert bodies == {large, *(b"%d" % number for number in range(1000))}


def test_frames_that_are_no_mdp_stop_nobody(server: Server, raw: RawClient) -> None:
    for frames in ([b""], [b"x"] * 50, [b"MDPC02"], [b"MDPC02", b"\x09", b"titanic.reply"], [b"MDPC02", b"\x01"]):
        raw.socket.send_multipart(frames)
    assert raw.ask(b"titanic.close", UNKNOWN) == [b"200"]


LISTINGS = [
    b"[",
    b"[]",
    b"\xff",
    b"[" * 100_000,
    b'{"limit": 0}',
    b'{"limit": true}',
    b'{"limit": "7"}',
    b'{"limit": 1e99}',
    b'{"limit": ' + b"9" * 10_000 + b"}",
    b'{"uuid": "x"}',
    b'{"uuid": {}}',
    b'{"after": 7}',
    b'{"state": "gone"}',
    b'{"state": "\\ud800"}',
    b'{"service": "\\ud800"}',
    b'{"\\ud800": 1}',
    b'{"other": 1}',
]


def test_listings_that_cannot_be(raw: RawClient) -> None:
    for options in LISTINGS:
        reply = raw.ask(b"titanic.list", options)
        assert len(reply) == 1, options
        assert reply[0][:4] == b"400 ", options
        assert raw.ask(b"titanic.close", UNKNOWN) == [b"200"], options


def test_stats_count_what_happened(server: Server, raw: RawClient) -> None:
    uuid = raw.submit(b"absent", b"x")
    raw.ask(b"titanic.request", b"", b"")
    status, document = raw.ask(b"titanic.stats", b"")
    stats = json.loads(document)
    assert status == b"200"
    assert stats["store"]["waiting"] == 1
    assert stats["services"] == {"absent": 1}
    assert (stats["since_start"]["accepted"], stats["since_start"]["refused"]) == (1, 1)
    raw.ask(b"titanic.close", uuid)
    assert json.loads(raw.ask(b"titanic.stats", b"")[1])["since_start"]["closed"] == 1
