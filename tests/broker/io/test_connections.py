"""The broker's own connections: what a peer may occupy, and what becomes of its name, its messages and its end."""

from __future__ import annotations

import gc
import os
import queue
import resource
import select
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
import zmq
from support.each import each
from support.handshakes import address as host_and_port
from support.secured import access, curve_of, keyed, new_pair, secured_broker, user
from support.waiting import PATIENCE, until
from support.zmtp_peer import command, frame, greeting, message, null

from broker import Broker, BrokerConfig, BrokerError, Client, Keys, Worker
from broker.core.requests import Request, footprint
from broker.io import connections
from broker.io.connections import PeerConnection
from broker.io.listeners import ListeningSocket
from broker.io.peer_connection import of_largest_share
from broker.io.sockets import local_name
from broker.patterns import LazyPirate, Server
from broker.zmtp import Connection
from broker.zmtp.frames import FRAMES


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker(BrokerConfig(max_body=100_000))
    broker.bind("tcp://127.0.0.1:*")
    with broker:
        yield broker


def connect(broker: Broker) -> socket.socket:
    (endpoint,) = broker.core.about.endpoints
    return socket.create_connection(host_and_port(endpoint), timeout=PATIENCE)


def held(broker: Broker) -> list[PeerConnection]:
    return [*broker._connections._connections.values()]


def read(peer: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size and (data := peer.recv(1 << 16)):
        got += data
    return got


def ended(peer: socket.socket) -> bool:
    """Whether it was told the end, by a socket that does not block."""
    try:
        while peer.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


@each("endpoint", ["tcp://lo:*", "tcp://localhost:*", "tcp://[::1]:*", "ipc://@{}"])
def test_where_it_listens(endpoint: str) -> None:
    broker = Broker()
    bound = broker.bind(endpoint.format(f"titanic-test-{time.monotonic_ns()}"))
    if "[::1]" in bound:
        peer = socket.create_connection(host_and_port(bound), timeout=PATIENCE)
        with broker, closing(peer):
            peer.sendall(null() + message(b"MDPC02", b"\1", b"mmi.service", b"x"))
            assert read(peer, 64 + 39 + 28).endswith(b"\x03404")
        return
    with broker, Worker("echo", lambda frames: frames, bound), Client(bound) as client:
        assert client.call("echo", b"x") == [b"x"]


def test_who_listens_in_the_place_of_another_keeps_its_file(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    old, new = (ListeningSocket(f"ipc://{path}") for _ in range(2))
    old.close()
    assert path.exists()
    new.close()
    assert not path.exists()


def test_other_processes_do_not_come_in_by_inproc() -> None:
    name = f"titanic-test-{time.monotonic_ns()}"
    listening = ListeningSocket(f"inproc://{name}")
    path = local_name(name).replace("@", "\0", 1)
    other = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r}); print(s.recv(1))"
    with subprocess.Popen([sys.executable, "-c", other], stdout=subprocess.PIPE) as process:
        assert select.select([listening.stream], [], [], PATIENCE)[0]
        assert listening.accept() is None
        assert process.communicate()[0] == b"b''\n"
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(path)
        accepted = listening.accept()
        assert accepted is not None
        accepted[0].close()
    listening.close()


def test_without_room_for_connections_it_does_not_try_in_every_round(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ACCEPT_INTERVAL", 10 * PATIENCE)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    tries: set[float | None] = set()

    def one_round(done: threading.Event) -> None:
        tries.add(broker._connections._accept_at)
        done.set()

    with ExitStack() as stack:
        # Several: what other tests have left may close a descriptor meanwhile, and then one more is let in.
        peers = [stack.enter_context(socket.socket()) for _ in range(10)]
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            for peer in peers:
                peer.connect(host_and_port(broker.core.about.endpoints[0]))
            until(lambda: broker._connections._accept_at is not None)
            for done in [threading.Event() for _ in range(20)]:
                broker.loop.call(one_round, done)
                assert done.wait(PATIENCE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(tries) == 1


def test_a_handshake_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_TIMEOUT", 0.05)
    broker = Broker()
    broker.bind("tcp://127.0.0.1:*")
    with connect(broker) as peer:
        peer.sendall(greeting()[:20])  # before the broker accepts it: there is little time then
        with broker:
            assert len(read(peer, 1000)) == 64  # and then the end
            until(lambda: not held(broker))


@pytest.mark.parametrize(
    "said",
    [greeting(b"PLAIN"), null(Identity=b"\0"), null() + message(b"x") + b"\x08\0"],
    ids=["mechanism", "identity", "flags"],
)
def test_an_ended_connection_is_closed_when_its_output_is_written(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, said: bytes
) -> None:
    """There is always output: the rest of the greeting."""
    monkeypatch.setattr(connections, "LINGER", 10 * PATIENCE)
    with connect(broker) as peer:
        peer.sendall(said)
        while peer.recv(1000):
            pass
    until(lambda: not held(broker))


def test_no_peer_writes_lines_of_its_own_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    reason = b"gone\nWARNING access.toml reloaded"
    with secured_broker(access({user("alice"): new_pair()}), ["tcp://127.0.0.1:*"]) as broker, connect(broker) as peer:
        peer.sendall(greeting(b"CURVE") + command(b"ERROR", bytes((len(reason),)) + reason))
        read(peer, 1000)
    lines = [line for line in caplog.messages if "reloaded" in line]
    assert len(lines) == 2, "of the connection, and of the refusal"
    assert not any("\n" in line for line in lines)


def test_a_pause_of_the_loop_ends_no_handshake(broker: Broker) -> None:
    """A deadline that is noticed seconds later says nothing about the peer."""
    waiting = broker._connections._handshaking
    with connect(broker) as peer:
        peer.sendall(greeting())
        until(lambda: waiting)
        seen = threading.Event()
        past = time.monotonic() - 2 * connections.LATE
        broker.loop.call(lambda: (waiting.update(dict.fromkeys(waiting, past)), seen.set()))
        assert seen.wait(PATIENCE)
        until(lambda: past not in waiting.values())
        peer.sendall(null()[64:] + message(b"MDPC02", b"\1", b"mmi.service", b"x"))
        assert read(peer, 64 + 39 + 28).endswith(b"\x03404")


def test_who_reads_nothing_is_bounded_and_harms_nobody() -> None:
    broker = Broker(BrokerConfig(max_body=1 << 20, send_queue_bytes=8 << 20))
    endpoint = broker.bind("tcp://127.0.0.1:*")
    asked = null() + message(b"MDPC02", b"\1", b"echo", bytes(1 << 20))
    with (
        broker,
        Worker("echo", lambda frames: frames, endpoint),
        Client(endpoint) as client,
        connect(broker) as slow,
    ):
        slow.sendall(asked)
        for _ in range(60):
            slow.sendall(message(b"MDPC02", b"\1", b"echo", bytes(1 << 20)))
        until(lambda: broker.counters()["unroutable"] > 0)
        assert broker._connections.queued.total <= 9 << 20
        assert client.call("echo", b"x") == [b"x"]
    until(lambda: not held(broker))


def test_an_ended_connection_is_freed_at_once(broker: Broker) -> None:
    """Not by the garbage collector, which stops the loop for a tenth of a second if many connections came and went."""

    def left() -> int:
        return sum(isinstance(each, PeerConnection) for each in gc.get_objects())

    gc.disable()  # now: it could free others that are counted before
    before = left()
    try:
        for say in (b"", greeting(), null()):
            with closing(connect(broker)) as peer:
                peer.sendall(say)
                until(lambda: len(held(broker)) == 1)
            until(lambda: not held(broker))
        until(lambda: left() == before)
    finally:
        gc.enable()


def test_a_connection_that_is_closed_twice_leaves_the_next_one_with_its_descriptor_alone(broker: Broker) -> None:
    with ExitStack() as stack:
        with connect(broker):
            until(lambda: held(broker))
            (old,) = held(broker)
            # Now, so that none of them gets the descriptor itself.
            spare = [stack.enter_context(socket.socket()) for _ in range(50)]
        until(lambda: not held(broker))
        peers: list[socket.socket] = []
        while old.descriptor not in [one.descriptor for one in held(broker)]:
            peers.append(spare.pop())
            peers[-1].settimeout(PATIENCE)
            peers[-1].connect(host_and_port(broker.core.about.endpoints[0]))
            until(lambda: len(held(broker)) == len(peers))
        done = threading.Event()
        broker.loop.call(broker._connections._close, old)
        broker.loop.call(done.set)
        assert done.wait(PATIENCE)
        for peer in peers:
            peer.sendall(null() + message(b"MDPC02", b"\1", b"mmi.service", b"echo"))
            assert read(peer, 64 + 39 + 31).endswith(b"\x03404")


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_what_one_round_sends_is_bounded(broker: Broker, size: int) -> None:
    """The loop does not read between the messages."""
    broker._connections.queued.most = 8 << 20
    broker._connections._send_queue = 100
    with connect(broker) as peer:
        peer.sendall(null())
        (connection,) = until(lambda: [one for one in held(broker) if one.open])
        sent: list[int] = []

        def send() -> None:
            with suppress(connections.PeerGone):
                for number in range(1_000_000):
                    broker._connections.send(connection, [bytes(size)])
                    sent.append(number)

        broker.loop.call(send)
        until(lambda: len(sent) > 7 and not broker.loop._calls)
        done = threading.Event()
        broker.loop.call(done.set)
        assert done.wait(PATIENCE)
        assert len(sent) < 1_000_000
        assert broker._connections.queued.total <= 10 << 20


def test_large_messages_of_all_that_are_half_received_are_bounded() -> None:
    broker = Broker(BrokerConfig(max_body=4 << 20, send_queue_bytes=8 << 20))
    endpoint = broker.bind("tcp://127.0.0.1:*")
    half = null() + message(b"MDPC02", b"\1", b"mmi.service", bytes(3 << 20))[: 2 << 20]
    with broker, Client(endpoint) as client, ExitStack() as stack:
        peers = [stack.enter_context(connect(broker)) for _ in range(6)]
        for peer in peers:
            peer.sendall(half)
            peer.setblocking(False)
        until(lambda: any(ended(peer) for peer in peers))
        until(lambda: broker._connections.receiving <= 8 << 20)
        assert client.call("mmi.service", bytes(3 << 20)), "there is room for one that is whole"


def test_the_frames_of_half_received_messages_count() -> None:
    """Each takes memory, however little is in it."""
    broker = Broker(BrokerConfig(send_queue_bytes=8 << 20))
    broker.bind("tcp://127.0.0.1:*")
    with broker, connect(broker) as first, connect(broker) as second:
        first.sendall(null() + frame(b"", 1) * 90_000)
        until(lambda: broker._connections.receiving == footprint([b""] * 90_000))
        second.sendall(null() + frame(b"", 1) * 90_000)
        until(lambda: len(held(broker)) == 1)
        until(lambda: broker._connections.receiving <= 8 << 20)


def test_handshakes_of_one_address_wait_for_the_next_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_HANDSHAKES", 3)
    pair = new_pair()
    users = access({user("alice", call=["*"]): pair})
    with secured_broker(users, ["tcp://127.0.0.1:*"]) as broker, ExitStack() as stack:
        (endpoint,) = broker.core.about.endpoints
        clients = [stack.enter_context(Client(endpoint, key=curve_of(pair), timeout=60)) for _ in range(8)]
        assert [client.present("echo") for client in clients] == [False] * 8
        assert not broker._connections._delayed


def test_without_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "DefaultSelector", selectors.PollSelector)
    broker = Broker()
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with broker, Worker("echo", lambda frames: frames, endpoint), Client(endpoint) as client:
        assert client.call("echo", b"x") == [b"x"]
        assert isinstance(broker.loop._poller._selector, selectors.PollSelector)


def test_without_epoll_it_notices_an_endpoint_that_is_added_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "DefaultSelector", selectors.PollSelector)
    with Server(lambda frames: frames) as server:
        for _ in range(2):
            with LazyPirate(server.bind("tcp://127.0.0.1:*")) as client:
                assert client.call(b"x") == [b"x"]


def test_a_name_is_taken_over_and_gets_what_was_meant_for_it(broker: Broker) -> None:
    with connect(broker) as first, connect(broker) as second:
        first.sendall(null(Identity=b"me"))
        until(lambda: [one.peer for one in held(broker)].count(b"me") == 1)
        second.sendall(null(Identity=b"me") + message(b"MDPC02", b"\1", b"mmi.service", b"echo"))
        assert read(first, 1000)[64:]  # READY, and then the end
        assert read(second, 64 + 39 + 31).endswith(b"\x03404")


EMPTY = frame(b"", 1) * 5000


@each("said", [message(b"x") * 20_000, EMPTY * 18, (EMPTY + command(b"PING", b"\0\0")) * 18])
def test_who_says_many_things_at_once_lets_the_others_speak(said: bytes) -> None:
    """Everything that it says is malformed, or of one message. Who comes then is heard in the next round, not when all
    that was read has been handled."""
    broker = Broker()
    with closing(broker.loop), ExitStack() as stack:
        broker.bind("tcp://127.0.0.1:*")
        quiet, loud = (stack.enter_context(connect(broker)) for _ in range(2))
        for peer in (quiet, loud):
            peer.sendall(null())
        while sum(connection.open for connection in held(broker)) < 2:
            broker.loop.turn()
        loud.sendall(said)
        while not (broker.core.stats["malformed"] or broker._connections.receiving):
            broker.loop.turn()
        quiet.sendall(message(b"MDPC02", b"\1", b"mmi.service", b"x"))
        while not broker.core.stats["requests"]:
            broker.loop.turn()
        assert broker.core.stats["malformed"] <= 4 * connections.MAX_EVENTS
        assert broker._connections.receiving <= 4 * footprint([b""] * FRAMES * connections.MAX_EVENTS)


def test_what_a_worker_could_not_be_sent_another_gets_at_once() -> None:
    """Its connection breaks when it was read from, and before it is written to."""
    broker = Broker()
    with closing(broker.loop), ExitStack() as stack:
        broker.bind("tcp://127.0.0.1:*")
        peers = [stack.enter_context(connect(broker)) for _ in range(3)]
        broker.integrate(b"cut", lambda _: peers[0].close())
        peers[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for number, peer in enumerate(peers, 1):
            peer.sendall(null() + (message(b"MDPW02", b"\1", b"echo") if number < 3 else b""))
            while not held(broker)[number - 1 :] or broker.workers().get(b"echo", 0) < min(number, 2):
                broker.loop.turn()
        peers[2].sendall(message(b"MDPC02", b"\1", b"echo", b"x") + message(b"MDPC02", b"\1", b"cut", b"x"))
        waits: float | None = None
        while not broker.core.stats["redelivered"]:
            waits = broker.loop.turn()
        assert waits == 0.0 or not broker.core.take_output()


def test_what_was_read_and_waits_for_its_turn_is_not_forgotten(broker: Broker) -> None:
    asked = message(b"MDPC02", b"\1", b"mmi.service", b"x")
    with connect(broker) as peer:
        peer.sendall(null() + asked * 5000)
        answers = read(peer, 64 + 38 + 5000 * 29)
        assert answers.endswith(b"\x03404")
        assert answers.endswith(answers[-29:] * 5000)


def test_a_connection_without_nonces_ends() -> None:
    pair = new_pair()
    users = access({user("alice", call=["*"]): pair})
    with (
        secured_broker(users, ["tcp://127.0.0.1:*"]) as broker,
        Client(broker.core.about.endpoints[0], key=curve_of(pair), timeout=PATIENCE) as client,
    ):
        assert not client.present("echo")
        (connection,) = held(broker)
        connection.protocol._curve._nonce = (1 << 64) - 1
        with suppress(BrokerError):
            client.call("mmi.service", "echo", timeout=0.5, retries=0)
        until(lambda: connection not in held(broker))
        assert not client.present("echo"), "it is served on its next connection"


def test_users_by_key_and_by_uid_until_they_are_removed(tmp_path: Path) -> None:
    alice, bob, pair = user("alice", call=["echo"]), user("bob", work=["echo"]), new_pair()
    ipc = f"ipc://{tmp_path}/socket"
    uids = {ipc: frozenset({os.getuid()})}
    with secured_broker(access({alice: pair}, {ipc: bob}, uids=uids), ["tcp://127.0.0.1:*", ipc]) as broker:
        tcp = broker.core.about.endpoints[0]
        with Worker("echo", lambda frames: frames, ipc), Client(tcp, key=curve_of(pair), timeout=5) as client:
            until(lambda: broker.workers() == {b"echo": 1})
            assert client.call("echo", b"x") == [b"x"]
            assert sorted(str(one.user and one.user.name) for one in held(broker)) == ["alice", "bob"]
            broker.reload(access({user("carol"): pair}, {ipc: bob}, uids={ipc: frozenset({os.getuid() + 1})}))
            until(lambda: not broker.workers())
            with pytest.raises(BrokerError):
                client.call("echo", b"x", timeout=1, retries=0)


def large_reader(stack: ExitStack, endpoint: str, pair: Keys) -> zmq.Socket[bytes]:
    """A socket that has nine answers of 1 MiB sent to it, and reads none: its own queue has room for one message."""
    socket = stack.enter_context(zmq.Context.instance().socket(zmq.DEALER))
    socket.linger, socket.rcvhwm, socket.rcvbuf = 0, 1, 1 << 12
    keyed(socket, pair).connect(endpoint)
    for _ in range(9):
        socket.send_multipart([b"MDPC02", b"\1", b"echo", bytes(1 << 20)])
    return socket


def test_one_user_s_queues_get_half_of_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED", PATIENCE)
    alice, bob = new_pair(), new_pair()
    users = access({user("alice", call=["*"], work=["*"]): alice, user("bob", call=["*"]): bob})
    with (
        secured_broker(users, max_body=1 << 20, send_queue_bytes=16 << 20, liveness=100) as broker,
        ExitStack() as stack,
    ):
        (endpoint,) = broker.core.about.endpoints
        stack.enter_context(Worker("echo", lambda frames: frames, endpoint, key=curve_of(alice)))
        queued = broker._connections.queued
        for _ in range(4):
            large_reader(stack, endpoint, bob)
        until(lambda: broker.counters()["unroutable"] > 0)
        assert 6 << 20 <= queued.total <= 9 << 20
        for _ in range(4):
            large_reader(stack, endpoint, alice)
        until(lambda: queued.total > 12 << 20)
        assert queued.total <= 17 << 20
    assert (queued.total, queued._of_user) == (0, {})


@pytest.mark.parametrize(("unread", "users"), [("answers", 1), ("answers", 3), ("pongs", 1)])
def test_who_reads_nothing_on_many_connections_takes_no_room_from_others(
    tmp_path: Path, unread: str, users: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALLED", 0.0)
    room, large = 8 << 20, 1 << 20
    ask = message(b"MDPC02", b"\1", b"large", b"x")
    said = ask if unread == "answers" else command(b"PING", bytes(18)) * 50_000
    modest = user("modest", call=["*"], work=["*"])
    paths = {f"{tmp_path}/{number}": user(f"greedy-{number}", call=["*"]) for number in range(users)}
    ipc = {f"ipc://{path}": who for path, who in {f"{tmp_path}/modest": modest, **paths}.items()}
    with secured_broker(access({}, ipc), [*ipc], send_queue_bytes=room, liveness=1000) as broker, ExitStack() as stack:

        def open_at(path: str) -> socket.socket:
            peer = stack.enter_context(socket.socket(socket.AF_UNIX))
            peer.settimeout(PATIENCE)
            peer.connect(path)
            peer.sendall(null())
            return peer

        stack.enter_context(Worker("large", lambda frames: bytes(large), f"ipc://{tmp_path}/modest"))
        until(broker.workers)
        for peer in [open_at(path) for path in paths for _ in range(8)]:
            with suppress(ConnectionError):
                peer.sendall(said)
        answers = 8 * users if unread == "answers" else 0
        until(lambda: broker.core.stats["replies"] == answers)
        queued = broker._connections.queued
        assert 2 << 20 <= queued.total <= room + large
        reader = open_at(f"{tmp_path}/modest")
        reader.sendall(ask * 2)
        until(lambda: broker.core.stats["replies"] == answers + 2)
        assert max(queued._of_user.values()) <= room // 2 + large
        assert len(read(reader, 2 * large)) >= 2 * large
        assert not broker.core.stats["unroutable"]
    assert (queued.total, queued._of_user) == (0, {})


def test_many_who_read_get_their_large_answers_at_once(tmp_path: Path) -> None:
    """Together they are larger than the limit."""
    size, asked = 1 << 20, queue.Queue[Request]()

    def take(requests: Iterable[Request]) -> None:
        for request in requests:
            asked.put(request)

    broker = Broker(BrokerConfig(send_queue_bytes=4 * size))
    broker.integrate(b"large", take)
    broker.bind(f"ipc://{tmp_path}/socket")
    ask = null() + message(b"MDPC02", b"\1", b"large", b"x")
    with broker, ExitStack() as stack:
        peers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(12)]
        for peer in peers:
            peer.settimeout(PATIENCE)
            peer.connect(f"{tmp_path}/socket")
            peer.sendall(ask)
        broker.reply([(asked.get(timeout=PATIENCE), [bytes(size)]) for _ in peers])
        assert all(len(read(peer, size)) >= size for peer in peers)


def test_a_single_one_that_reads_nothing_takes_no_room_from_others(tmp_path: Path) -> None:
    size, asked = 1 << 20, queue.Queue[Request]()
    broker = Broker(BrokerConfig(send_queue_bytes=4 * size))
    broker.integrate(b"large", lambda requests: [*map(asked.put, requests)])
    broker.bind(f"ipc://{tmp_path}/socket")
    with broker, ExitStack() as stack:
        idle, reader = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        for peer, count in ((idle, 6), (reader, 4)):
            peer.settimeout(PATIENCE)
            peer.connect(f"{tmp_path}/socket")
            peer.sendall(null() + message(b"MDPC02", b"\1", b"large", b"x") * count)
            broker.reply([(asked.get(timeout=PATIENCE), [bytes(size)]) for _ in range(count)])
            if peer is idle:
                until(lambda: broker.core.stats["unroutable"])
                held(broker)[0].sent_at -= connections.STALLED
                broker._connections._look_at = 0.0
        assert len(read(reader, 4 * size)) >= 4 * size


def test_who_reads_a_little_of_what_the_system_has_for_it_keeps_its_connection(tmp_path: Path) -> None:
    """So do those that read while the broker stood still and wrote nothing more."""
    size, asked = 1 << 20, queue.Queue[Request]()
    broker = Broker(BrokerConfig(send_queue_bytes=size))
    broker.integrate(b"large", lambda requests: [*map(asked.put, requests)])
    broker.bind(f"ipc://{tmp_path}/socket")
    with broker, ExitStack() as stack:
        peers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(4)]
        for peer in peers:
            peer.connect(f"{tmp_path}/socket")
            peer.sendall(null() + message(b"MDPC02", b"\1", b"large", b"x"))
        broker.reply([(asked.get(timeout=PATIENCE), [bytes(size)]) for _ in peers])
        until(lambda: all(one.waits_to_write for one in held(broker)))
        before, done = held(broker), threading.Event()
        for peer in peers[:2]:
            read(peer, 1 << 16)
        for one in before:
            one.sent_at -= connections.STALLED
        broker._connections._look_at = 0.0
        broker.loop.call(broker._connections._make_room, before[0])
        broker.loop.call(done.set)
        assert done.wait(PATIENCE)
        assert held(broker) == before[:2]


def test_what_is_queued_for_a_connection_that_ends_while_it_is_read_does_not_count(tmp_path: Path) -> None:
    paths = [f"{tmp_path}/greedy", f"{tmp_path}/modest"]
    known = access({}, {f"ipc://{path}": user(path) for path in paths})
    half = message(b"x" * 100_000, b"")[:-2]
    with secured_broker(known, [*known.endpoints], send_queue_bytes=4 << 20) as broker, ExitStack() as stack:
        greedy, modest = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in paths)
        for peer, path in zip((greedy, modest), paths, strict=True):
            peer.settimeout(PATIENCE)
            peer.connect(path)
            peer.sendall(null())
        modest.sendall(half)
        until(lambda: broker._connections.receiving)
        pings = command(b"PING", bytes(18)) * 900
        while not any(one.waits_to_write for one in held(broker)):
            greedy.sendall(pings)
        with suppress(ConnectionError):
            for _ in range(60):
                greedy.sendall(pings + half)
        until(lambda: len(held(broker)) == 1)
        done = threading.Event()
        broker.loop.call(done.set)
        assert done.wait(PATIENCE)
        assert (broker._connections.queued.total, broker._connections.queued._of_user) == (0, {})


def test_the_user_with_most_of_the_half_received_messages_makes_room() -> None:
    """Before users are known they count by their addresses."""
    received: dict[PeerConnection, int] = {}
    with socket.socket() as connected, closing(ListeningSocket("tcp://127.0.0.1:*")) as here:
        for now, (share, size) in enumerate((("a", 5), ("b", 3), ("b", 3), ("a", 1), ("b", 1))):
            received[PeerConnection(connected, (share, 1), Connection(), here, now)] = size
    assert [one.heard_at for one in of_largest_share(received)] == [1, 2, 4]
