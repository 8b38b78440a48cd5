"""Access control with real keys: who gets in, what each may do, and what those do to others who may not."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import zmq
from support.broker_invariants import check
from support.ports import free_port
from support.secured import SERVER, access, keyed, new_pair, raw_socket, say_too_much, secured_broker, told, user
from support.waiting import PATIENCE, until
from support.zmtp import message, zmtp

from broker import Access, Broker, Client, EndpointError, KeyRefused, Keys, UsageError, server
from broker.io import admission, connections
from broker.io.sockets import monitored_event
from broker.server import EXPIRY_EVERY

Socket = zmq.Socket[bytes]

ALICE, BOB, CAROL, LIMITED, STRANGER = (new_pair() for _ in range(5))
CALLER = user("caller", call=["echo"])
WORKER = user("worker", work=["echo"])
OTHER = user("other", call=["mail.*"], work=["mail.*"])
FEW = user("few", call=["echo"], limits={"connections": 2})
USERS = {CALLER: ALICE, WORKER: BOB, OTHER: CAROL, FEW: LIMITED}
OTHERS = {CALLER: ALICE, WORKER: BOB}
FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH

KEYS = {
    "no key": (None, b""),
    "unknown key": (STRANGER, SERVER.public),
    "wrong server key": (ALICE, STRANGER.public),
}
CLIENTS: dict[str, tuple[int, list[bytes]]] = {
    "0.1": (zmq.REQ, [b"MDPC01"]),
    "0.2": (zmq.DEALER, [b"MDPC02", b"\1"]),
    "majortomo": (zmq.DEALER, [b"", b"MDPC02", b"\2"]),
    "queue": (zmq.DEALER, [b"MDPC02", b"\5"]),
}
WORKERS: dict[str, tuple[list[bytes], bytes]] = {
    "0.1": ([b"", b"MDPW01"], b"\3"),
    "0.2": ([b"MDPW02"], b"\4"),
    "majortomo": ([b"", b"MDPW02"], b"\4"),
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Its only heartbeat within a test is the answer to a READY."""
    with secured_broker(access(USERS), heartbeat_interval=60) as broker:
        yield broker
        sound = threading.Event()
        broker.loop.call(lambda: (check(broker.core), sound.set()))
        assert sound.wait(60)


@pytest.fixture
def echo(broker: Broker) -> Iterator[Callable[[], None]]:
    """A worker, and a client that finds that all is well."""
    with raw_socket(where(broker), BOB) as worker, raw_socket(where(broker), ALICE) as client:
        worker.send_multipart([b"MDPW02", b"\1", b"echo"])
        assert told(worker) == [b"MDPW02", b"\5"]

        def ask() -> None:
            client.send_multipart([b"MDPC02", b"\1", b"echo", b"hi"])
            while (request := told(worker))[1] != b"\2":
                assert request == [b"MDPW02", b"\5"], "the worker is there no more"
                worker.send_multipart(request)
            worker.send_multipart([b"MDPW02", b"\4", request[2], b"", b"ho"])
            assert told(client) == [b"MDPC02", b"\3", b"echo", b"ho"]

        ask()
        yield ask
        ask()


def where(broker: Broker) -> str:
    return broker.core.about.endpoints[0]


def reload(broker: Broker, access: Access) -> None:
    broker.reload(access)
    done = threading.Event()
    broker.loop.call(done.set)
    assert done.wait(60)


def refused(broker: Broker) -> dict[tuple[str, str], int]:
    assert broker.core.guard is not None
    return broker.core.guard.refusals.copy()


@contextmanager
def watched(
    endpoint: str, pair: Keys | None = None, server: bytes = SERVER.public, *, returns: bool = True
) -> Iterator[tuple[Socket, Callable[[int], None]]]:
    """A connected socket, and what waits for an event at it. `returns`: it connects again when it is disconnected."""
    with zmq.Context.instance().socket(zmq.DEALER) as client:
        client.linger = 0
        if not returns:
            client.reconnect_ivl = -1
        if pair is not None:
            keyed(client, pair, server)
        monitor: Socket = client.get_monitor_socket()
        client.connect(endpoint)

        def wait(events: int) -> None:
            while True:
                assert monitor.poll(30_000), "no such event"
                if monitored_event(monitor.recv_multipart()) & events:
                    return

        try:
            yield client, wait
        finally:
            client.disable_monitor()
            monitor.close(0)


def try_to_say(client: Socket, *frames: bytes) -> None:
    """Send a message, unless there is nobody to send it to: who is refused is not connected again."""
    with suppress(zmq.Again):
        client.send_multipart(frames, zmq.DONTWAIT)


# -- who gets in -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "key"), [*zip([*CLIENTS, *WORKERS], cycle(KEYS), strict=False)])
def test_nobody_else_gets_in(broker: Broker, kind: str, key: str, echo: Callable[[], None]) -> None:
    before = broker.core.stats["requests"], len(broker.core.workers)
    pair, server = KEYS[key]
    with watched(where(broker), pair, server) as (stranger, wait):
        message = [*CLIENTS[kind][1], b"echo", b"hi"] if kind in CLIENTS else [*WORKERS[kind][0], b"\1", b"echo"]
        try_to_say(stranger, *message)
        wait(FAILED)
        action = ("", "connect" if key == "unknown key" else "handshake")
        until(lambda: refused(broker).get(action))
        assert not stranger.poll(0)
    assert (broker.core.stats["requests"], len(broker.core.workers)) == before


@pytest.mark.parametrize("dialect", CLIENTS)
def test_clients(broker: Broker, dialect: str, echo: Callable[[], None]) -> None:
    kind, head = CLIENTS[dialect]
    with raw_socket(where(broker), CAROL, kind) as other, raw_socket(where(broker), ALICE, kind) as client:
        other.send_multipart([*head, b"echo", b"hi"])
        assert told(other)[-1].startswith(b"403 forbidden: user 'other' may not call 'echo'")
        client.send_multipart([*head, b"mmi.service", b"echo"])
        assert told(client)[-1] == b"200"
        other.send_multipart([*head, b"mmi.service", b"echo"])
        assert told(other)[-1] == b"404"
    assert refused(broker) == {("other", "call"): 1}


@pytest.mark.parametrize("dialect", WORKERS)
def test_workers(broker: Broker, dialect: str) -> None:
    head, final = WORKERS[dialect]
    with raw_socket(where(broker), CAROL) as other, raw_socket(where(broker), BOB) as worker:
        other.send_multipart([*head, b"\1", b"echo"])
        assert told(other) == [*head, b"\5" if dialect == "0.1" else b"\6"]
        worker.send_multipart([*head, b"\1", b"echo"])
        assert told(worker) == [*head, b"\4" if dialect == "0.1" else b"\5"]
        with raw_socket(where(broker), ALICE) as client:
            client.send_multipart([b"MDPC02", b"\1", b"echo", b"hi"])
            token = told(worker)[len(head) + 1]
            assert len(token) == 16
            worker.send_multipart([*head, final, token, b"", b"ho"])
            assert told(client) == [b"MDPC02", b"\3", b"echo", b"ho"]
    assert refused(broker) == {("other", "work"): 1}


def test_two_keys_of_one_user(broker: Broker) -> None:
    more = new_pair()
    both = access(USERS)
    both.keys[more.public.decode()] = CALLER
    reload(broker, both)
    for pair in (ALICE, more):
        with raw_socket(where(broker), pair) as client:
            client.send_multipart([b"MDPC02", b"\1", b"mmi.broker", b""])
            assert told(client)[2] == b"mmi.broker"


# -- endpoints with a user ---------------------------------------------------------------------------------


@pytest.mark.parametrize("uids", [None, [os.getuid()], [os.getuid() + 1], []])
def test_who_connects_to_a_named_endpoint_is_its_user(tmp_path: Path, uids: list[int] | None) -> None:
    endpoint = f"ipc://{tmp_path}/here"
    more = {} if uids is None else {"uids": {endpoint: uids}}
    with secured_broker(access(USERS, {endpoint: OTHER}, **more), ("tcp://127.0.0.1:*", endpoint)) as broker:
        with watched(endpoint) as (client, wait):
            if uids is not None and os.getuid() not in uids:
                wait(FAILED)
                until(lambda: refused(broker).get(("", "connect")))
                who = rf"does not admit this system user \(uid {os.getuid()}\); "
                with Client(endpoint) as other, pytest.raises(KeyRefused, match=who):
                    other.call("mmi.broker", b"")
                return
            wait(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            client.send_multipart([b"MDPC02", b"\1", b"echo", b"hi"])
            assert told(client)[-1].startswith(b"403 forbidden: user 'other'")
        with watched(where(broker)) as (client, wait):  # that one takes a key
            wait(FAILED)


def test_an_endpoint_that_stands_for_nobody_any_more(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/here"
    with secured_broker(access(USERS, {endpoint: OTHER}), (endpoint,)) as broker, raw_socket(endpoint) as client:
        client.send_multipart([b"MDPC02", b"\1", b"mmi.broker", b""])
        assert told(client)[2] == b"mmi.broker"
        reload(broker, access(USERS))
        until(lambda: refused(broker).get(("", "connect")))
        try_to_say(client, b"MDPC02", b"\1", b"mmi.broker", b"")
        assert not client.poll(50)


def test_what_cannot_be_secured_is_not_bound() -> None:
    broker = Broker(access=access(USERS), keys=SERVER)
    for endpoint in ("inproc://here", "ws://127.0.0.1:*"):
        with pytest.raises(EndpointError, match="with access control"):
            broker.bind(endpoint)
    broker.stop()
    broker = Broker(access=access(USERS, {"tcp://0.0.0.0:*": OTHER}), keys=SERVER)
    with pytest.raises(EndpointError, match="without keys, as the access file says: other machines can reach it"):
        broker.bind("tcp://0.0.0.0:*")
    broker.stop()
    broker = Broker(access=access(USERS))
    with pytest.raises(UsageError, match="needs a server key"):
        broker.bind("tcp://127.0.0.1:*")
    broker.stop()
    broker = Broker()
    with pytest.raises(UsageError, match="without access control"):
        broker.reload(access(USERS))
    broker.stop()


def test_two_brokers_in_one_process_know_different_users() -> None:
    with secured_broker(access({CALLER: ALICE})) as one, secured_broker(access({OTHER: CAROL})) as other:
        for broker, pair, stranger in ((one, ALICE, CAROL), (other, CAROL, ALICE)):
            with raw_socket(where(broker), pair) as client:
                client.send_multipart([b"MDPC02", b"\1", b"mmi.broker", b""])
                assert told(client)[2] == b"mmi.broker"
            with watched(where(broker), stranger) as (client, wait):
                wait(FAILED)


def test_a_handshake_that_says_too_much_is_ended(broker: Broker, echo: Callable[[], None]) -> None:
    """ZeroMQ would take in what it is told, as much as a message may have, for each connection without a key."""
    say_too_much(where(broker))
    until(lambda: refused(broker).get(("", "handshake")) == 1)
    until(lambda: broker.core.peers == 2)
    assert refused(broker)["", "handshake"] == 1


def test_a_large_first_message_is_no_handshake(tmp_path: Path) -> None:
    """With a key, and where none is wanted."""
    with ExitStack() as stack:
        there = f"tcp://127.0.0.1:{free_port()}"
        broker = stack.enter_context(
            secured_broker(access({CALLER: ALICE}, {there: CALLER}), ["tcp://127.0.0.1:*", there])
        )
        for endpoint, pair in zip(broker.core.about.endpoints, (ALICE, None), strict=True):
            client = stack.enter_context(raw_socket(endpoint, pair))
            client.send_multipart([b"MDPC02", b"\1", b"mmi.broker", bytes(50 << 20)])
            assert told(client)[:3] == [b"MDPC02", b"\3", b"mmi.broker"]


# -- names -------------------------------------------------------------------------------------------------


def test_names_are_refused(broker: Broker, echo: Callable[[], None]) -> None:
    with raw_socket(where(broker), CAROL, name=b"fred") as named:
        try_to_say(named, b"MDPC02", b"\1", b"mmi.broker", b"")
        until(lambda: refused(broker).get(("other", "name")))
        assert not named.poll(50)


def test_nobody_takes_the_place_of_one_who_is_gone(broker: Broker) -> None:
    """Neither what it may do, nor the replies that it waits for, though the system reuses descriptors."""
    with raw_socket(where(broker), BOB) as worker:
        worker.send_multipart([b"MDPW02", b"\1", b"echo"])
        assert told(worker) == [b"MDPW02", b"\5"]
        with raw_socket(where(broker), ALICE) as client:
            client.send_multipart([b"MDPC02", b"\1", b"echo", b"hi"])
            token = told(worker)[2]
        until(lambda: broker.core.peers == 1)
        with raw_socket(where(broker), CAROL) as named:
            named.send_multipart([b"MDPC02", b"\1", b"echo", b"hi"])
            assert told(named)[-1].startswith(b"403 forbidden: user 'other'")
            worker.send_multipart([b"MDPW02", b"\4", token, b"", b"ho"])
            until(lambda: broker.core.stats["unroutable"])
            assert not named.poll(50)


NAMED = (b"Identity", b"somebody")


@pytest.mark.parametrize(
    "said",
    [
        (),  # ZMTP does not ask for it
        ((b"Identity", b""),),
        ((b"User-Id", b"worker"),),  # and remains who he is
    ],
)
def test_who_gives_himself_no_name_is_heard(tmp_path: Path, said: tuple[tuple[bytes, bytes], ...]) -> None:
    here = f"ipc://{tmp_path}/here"
    with secured_broker(access({WORKER: BOB}, {here: CALLER}), [here]), zmtp(here, b"DEALER", *said) as stream:
        stream.sendall(message(b"MDPW02", b"\1", b"echo"))
        assert stream.recv(100) == message(b"MDPW02", b"\6")  # he may not work


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ((NAMED,), ("caller", "name")),
        (((b"Identity", b""), NAMED), ("", "handshake")),  # which one is it?
        ((NAMED, (b"Identity", b"")), ("", "handshake")),
        (((b"Identity", b"\0\0\0\0\0"),), ("", "handshake")),  # RFC 23 does not allow it
    ],
)
def test_who_gives_himself_a_name_is_not_heard(
    tmp_path: Path, said: tuple[tuple[bytes, bytes], ...], refusal: tuple[str, str]
) -> None:
    here = f"ipc://{tmp_path}/here"
    with secured_broker(access({WORKER: BOB}, {here: CALLER}), [here]) as broker:
        with pytest.raises(ConnectionResetError), zmtp(here, b"DEALER", *said):
            pass
        until(lambda: refused(broker) == {refusal: 1})


# -- other users while it runs -----------------------------------------------------------------------------


def test_a_revoked_user_is_disconnected(broker: Broker, echo: Callable[[], None]) -> None:
    with watched(where(broker), CAROL) as (client, wait):
        client.send_multipart([b"MDPC02", b"\1", b"mail.x", b"hi"])
        until(lambda: broker.core.waiting.count == 1)
        reload(broker, access({CALLER: ALICE, WORKER: BOB}))
        wait(zmq.EVENT_DISCONNECTED)
        wait(FAILED)
        until(lambda: broker.core.waiting.count == 0)
        echo()
    reload(broker, access(USERS))
    with watched(where(broker), CAROL) as (client, wait):
        wait(zmq.EVENT_HANDSHAKE_SUCCEEDED)


def test_an_expired_user_is_disconnected(
    broker: Broker, echo: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """When the time comes, and not only at a reload; the others stay."""
    with watched(where(broker), CAROL) as (client, wait):
        client.send_multipart([b"MDPC02", b"\1", b"mail.x", b"hi"])
        until(lambda: broker.core.waiting.count == 1)
        soon = replace(OTHER, expires=time.time() + 0.5)
        reload(broker, access({CALLER: ALICE, WORKER: BOB, soon: CAROL}))
        wait(zmq.EVENT_DISCONNECTED)
        wait(FAILED)
        until(lambda: broker.core.waiting.count == 0)
        until(lambda: "the keys of user 'other' have expired" in caplog.text)
        echo()
    reload(broker, access({CALLER: ALICE, WORKER: BOB, replace(OTHER, expires=time.time() + 3600): CAROL}))
    with watched(where(broker), CAROL) as (client, wait):
        wait(zmq.EVENT_HANDSHAKE_SUCCEEDED)


def test_a_user_expires_when_the_clock_is_set(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(where(broker), CAROL) as (_, wait):
        wait(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        expiring = replace(OTHER, expires=time.time() + 2 * 86_400)
        reload(broker, access({CALLER: ALICE, WORKER: BOB, expiring: CAROL}))
        for module in (admission, server):
            ahead = SimpleNamespace(time=lambda: time.time() + 3 * 86_400, monotonic=time.monotonic)
            monkeypatch.setattr(module, "time", ahead)
        wait(zmq.EVENT_DISCONNECTED)
        wait(FAILED)
        monkeypatch.undo()
    with watched(where(broker), CAROL) as (_, wait):
        wait(zmq.EVENT_HANDSHAKE_SUCCEEDED)


def test_connections_are_reviewed_although_all_have_expired(broker: Broker) -> None:
    """They come again if the clock is set back, and must not stay for ever then."""
    broker.reload(access({CALLER: ALICE, WORKER: BOB, replace(OTHER, expires=time.time() - 3600): CAROL}))
    until(lambda: (broker._expiry_at or math.inf) <= time.monotonic() + EXPIRY_EVERY, 30)


def test_a_revoked_worker_is_gone_at_once(broker: Broker) -> None:
    with raw_socket(where(broker), BOB) as worker, raw_socket(where(broker), ALICE) as client:
        worker.send_multipart([b"MDPW02", b"\1", b"echo"])
        assert told(worker) == [b"MDPW02", b"\5"]
        client.send_multipart([b"MDPC02", b"\1", b"echo", b"hi"])
        request = told(worker)
        reload(broker, access({CALLER: ALICE}))
        until(lambda: not broker.core.workers)
        assert broker.core.waiting.count == 1, "its request waits for another worker"
        try_to_say(worker, b"MDPW02", b"\4", request[2], b"", b"forged")
        assert not client.poll(50)


def test_a_worker_who_may_not_work_any_more(broker: Broker) -> None:
    with raw_socket(where(broker), BOB) as worker:
        worker.send_multipart([b"MDPW02", b"\1", b"echo"])
        assert told(worker) == [b"MDPW02", b"\5"]
        reload(broker, access({CALLER: ALICE, user("worker", work=["mail.*"]): BOB}))
        assert told(worker) == [b"MDPW02", b"\6"]
        worker.send_multipart([b"MDPW02", b"\1", b"mail.send"])
        assert told(worker) == [b"MDPW02", b"\5"], "the connection is still there"


def test_a_key_that_is_another_user_s_now(broker: Broker) -> None:
    with raw_socket(where(broker), BOB) as worker:
        worker.send_multipart([b"MDPW02", b"\1", b"echo"])
        assert told(worker) == [b"MDPW02", b"\5"]
        reload(broker, access({WORKER: STRANGER, OTHER: BOB}))
        assert told(worker) == [b"MDPW02", b"\6"]
        worker.send_multipart([b"MDPC02", b"\1", b"echo", b"hi"])
        assert told(worker)[-1].startswith(b"403 forbidden: user 'other'")


def test_what_a_user_may_do_changes_at_once(broker: Broker, echo: Callable[[], None]) -> None:
    with raw_socket(where(broker), CAROL) as client:
        for who, status in ((OTHER, b"404"), (user("other", call=["echo"]), b"200"), (OTHER, b"404")):
            reload(broker, access({**OTHERS, who: CAROL}))
            client.send_multipart([b"MDPC02", b"\1", b"mmi.service", b"echo"])
            assert told(client)[-1] == status


def test_local_peers_are_users_or_may_do_everything(broker: Broker) -> None:
    got: dict[str, list[Any]] = {"own": [], "other": []}
    own, other = broker.connect_local(got["own"].extend), broker.connect_local(got["other"].extend, OTHER)
    for peer in (own, other):
        peer.send([[b"MDPC02", b"\1", b"echo", b"hi"]])
    until(lambda: got["other"])
    assert got["other"].pop()[-1].startswith(b"403 forbidden: user 'other'")
    until(lambda: broker.core.waiting.count == 1)
    reload(broker, access(OTHERS | {user("other", call=["*"]): CAROL}))
    other.send([[b"MDPC02", b"\1", b"echo", b"hi"]])
    until(lambda: broker.core.waiting.count == 2)
    reload(broker, access({}))
    until(lambda: broker.core.waiting.count == 1)
    assert got["own"] == []


# -- too much ----------------------------------------------------------------------------------------------


def test_connections_of_a_user(broker: Broker, echo: Callable[[], None]) -> None:
    def ask(client: Socket) -> None:
        client.send_multipart([b"MDPC02", b"\1", b"mmi.broker", b""])

    def served(client: Socket) -> bool:
        ask(client)
        return bool(client.poll(200))

    with ExitStack() as stack:
        first, second = (stack.enter_context(raw_socket(where(broker), LIMITED)) for _ in range(2))
        for client in (first, second):
            ask(client)
            assert told(client)[2] == b"mmi.broker"
        third = stack.enter_context(raw_socket(where(broker), LIMITED))  # any earlier, and it could be the second
        assert not served(third)
        until(lambda: refused(broker).get(("few", "connections")))
        for client in (first, second):
            ask(client)
            assert told(client)[2] == b"mmi.broker"
        second.close()
        until(lambda: served(third))


def test_a_lowered_limit_ends_the_newest_connections(broker: Broker, echo: Callable[[], None]) -> None:
    def says(client: Socket) -> None:
        client.send_multipart([b"MDPC02", b"\1", b"mmi.broker", b""])
        assert told(client)[2] == b"mmi.broker"

    def few(most: int) -> Access:
        return access({**OTHERS, user("few", call=["echo"], limits={"connections": most}): LIMITED})

    reload(broker, few(0))
    with ExitStack() as stack:
        clients = [stack.enter_context(watched(where(broker), LIMITED, returns=False)) for _ in range(4)]
        for client, _ in clients:
            says(client)
        reload(broker, few(2))
        for _, wait in clients[2:]:
            wait(zmq.EVENT_DISCONNECTED)
        assert refused(broker) == {("few", "connections"): 2}
        for client, _ in clients[:2]:
            says(client)
        reload(broker, few(2))
        assert refused(broker) == {("few", "connections"): 2}, "who is below it is not counted again"
        for client, _ in clients[:2]:
            says(client)


def test_a_user_s_share_of_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    chief, pair = user("chief", admin=True), new_pair()
    monkeypatch.setattr(admission, "connection_limits", lambda: (16, 4))
    with secured_broker(access({**OTHERS, chief: pair})) as broker, ExitStack() as stack:

        def comes(keys: Keys) -> Callable[[], bool]:
            client, wait = stack.enter_context(watched(where(broker), keys))
            client.send_multipart([b"MDPC02", b"\1", b"mmi.broker", b""])

            def served() -> bool:
                while not client.poll(100):
                    if refused(broker):
                        wait(zmq.EVENT_DISCONNECTED)
                        return False
                return told(client)[2] == b"mmi.broker"

            return served

        assert all(comes(ALICE)() for _ in range(2))
        assert not comes(ALICE)(), "half of the places are its share"
        assert set(refused(broker)) == {("caller", "connections")}
        assert comes(BOB)()
        assert all(comes(pair)() for _ in range(4)), "administrators are not counted"


def test_connections_that_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_UNFINISHED", 5)
    with secured_broker(access(USERS)) as broker, raw_socket(where(broker), CAROL) as client, ExitStack() as stack:
        client.send_multipart([b"MDPC02", b"\1", b"mmi.broker", b""])
        assert told(client)[2] == b"mmi.broker"
        silent = [stack.enter_context(raw(broker)) for _ in range(20)]
        for connection in silent[:15]:
            while connection.recv(100):  # a greeting, then the end
                pass
        until(lambda: refused(broker).get(("", "silent")) == 15)
        client.send_multipart([b"MDPC02", b"\1", b"mmi.broker", b""])
        assert told(client)[2] == b"mmi.broker", "who has said something stays"


def test_connections_whose_handshake_failed_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay until the peer closes them, which a hostile one does not."""
    monkeypatch.setattr(admission, "MAX_UNFINISHED", 5)
    monkeypatch.setattr(connections, "LINGER", 10 * PATIENCE)
    with secured_broker(access(USERS)) as broker, ExitStack() as stack:
        for _ in range(20):
            stranger = stack.enter_context(raw(broker))
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while stranger.recv(100):
                pass
        assert len(broker._connections) <= 6


def raw(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", urlsplit(where(broker)).port or 0), timeout=30)


def test_a_handshake_that_never_ends(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(admission, "HANDSHAKE", 0.1)
    greeting = b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE" + bytes(47)
    with secured_broker(access(USERS)) as broker:
        for start in (b"", b"\xff", greeting[:20], greeting, greeting + b"\4\xc8\5HELLO"):
            with raw(broker) as stranger:
                stranger.sendall(start)
                while stranger.recv(1000):
                    pass
        until(lambda: refused(broker).get(("", "handshake"), 0) == 5)
        assert not broker.core.stats["forbidden"]
    assert not caplog.records, "each command of titanic looks like this that only looks if a server is there"


def test_hundreds_of_failed_handshakes(broker: Broker, echo: Callable[[], None]) -> None:
    with ExitStack() as stack:
        for number in range(20):
            stranger = stack.enter_context(zmq.Context.instance().socket(zmq.DEALER))
            stranger.linger, stranger.reconnect_ivl = 0, 1
            keyed(stranger, STRANGER if number % 2 else ALICE, SERVER.public if number % 2 else STRANGER.public)
            stranger.connect(where(broker))
        asked = 0
        while asked < 10 or sum(refused(broker).get(("", action), 0) for action in ("connect", "handshake")) < 300:
            echo()
            asked += 1
    assert set(refused(broker)) == {("", "connect"), ("", "handshake")}


# -- the log -----------------------------------------------------------------------------------------------


def test_refusals_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "broker.access"),
        secured_broker(access(USERS)) as broker,
        raw_socket(where(broker), CAROL) as client,
    ):
        for _ in range(10):
            client.send_multipart([b"MDPC02", b"\1", b"echo", b"a body"])
            assert told(client)[-1].startswith(b"403")
        client.send_multipart([b"MDPC02", b"\1", b"mmi.stats", b""])
        assert told(client)[-1].startswith(b"403")
        until(lambda: "metrics" in [record.__dict__["action"] for record in caplog.records])
        # Nothing follows; the broker tells by itself what it left out.
        until(lambda: "; 10 so far" in caplog.text)
    calls = [record for record in caplog.records if record.__dict__["action"] == "call"]
    (metrics,) = [record for record in caplog.records if record not in calls]
    first = calls[0]
    fields = {name: first.__dict__[name] for name in ("user", "action", "service")}
    assert fields == {"user": "other", "action": "call", "service": "echo"}
    assert first.__dict__["peer"].startswith("127.0.0.1:")
    assert (metrics.__dict__["action"], metrics.__dict__["service"]) == ("metrics", "mmi.stats")
    assert "a body" not in caplog.text
    assert "; user 'other' may not call 'echo'; it needs call = [\"echo\"]; " in first.getMessage()


def test_the_log_says_which_key_nobody_has(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """It shows which key is missing in the access file."""
    stranger = new_pair()
    with caplog.at_level(logging.WARNING, "broker.access"), raw_socket(where(broker), stranger):
        (said, *_) = until(lambda: [record.getMessage() for record in caplog.records])
    assert said.startswith("refused: user '', connect, from 127.0.0.1:")
    assert f"; no user has the public key {stranger.public.decode()}" in said


def test_whom_an_endpoint_stands_for_changes_for_connections_that_are_open(tmp_path: Path) -> None:
    here, there, chief = f"ipc://{tmp_path}/here", f"ipc://{tmp_path}/there", user("chief", metrics=True)
    nobody_here = os.getuid() + 1
    with secured_broker(access({}, {here: chief, there: chief}), [here, there]) as broker, raw_socket(here) as client:

        def asked() -> bytes:
            client.send_multipart([b"MDPC02", b"\1", b"mmi.stats", b""])
            return told(client)[3]

        assert asked().startswith(b"{")
        broker.reload(access({}, {here: CALLER, there: chief}))
        until(lambda: asked() == b"MDPE01")
        broker.reload(access({}, {here: chief, there: CALLER}))
        until(lambda: asked() != b"MDPE01")
        guard = broker.core.guard
        assert guard is not None
        broker.reload(access({}, {here: chief, there: chief}, uids={here: [nobody_here]}))
        until(lambda: ("", "connect") in guard.refusals)
        assert not client.poll(0)
