"""Generaldomo: CZMQ's packing, raw packed messages, both kinds of peers at once, many threads on one socket."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from support.each import each
from support.ports import free_port
from support.shortages import no_draft_sockets
from support.strict_domo import StrictDomo
from support.waiting import again, until
from support.zmtp import message, zmtp

from broker import BrokerConfig, Client, ClientConfig, Pipeline, RemoteError, TimedOut, UsageError, Worker, WorkerConfig
from broker.core.mdp import Frames
from broker.core.requests import Request
from broker.io.draft_sockets import DraftSocket, MissingDrafts, Unreachable, choose
from broker.patterns import Generaldomo, GeneraldomoBroker, GeneraldomoWorker, pack, unpack
from broker.patterns.generaldomo.core import DomoSession, pack_mdp, unpack_mdp

ANY = "tcp://127.0.0.1:*"
NOBODY = "tcp://127.0.0.1:9"
QUICK = WorkerConfig(heartbeat_interval=0.1, liveness=20, reconnect_first=0.02, reconnect_most=0.1)

# -- packing -------------------------------------------------------------------------------------------------


def test_the_bytes_of_a_packed_message() -> None:
    """As CZMQ's zmsg_encode makes them."""
    assert pack([b"", b"a", b"x" * 254]) == b"\0" + b"\1a" + b"\xfe" + b"x" * 254
    assert pack([b"x" * 255]) == b"\xff\0\0\0\xff" + b"x" * 255
    assert pack([b"x" * 70_000]) == b"\xff\0\1\x11\x70" + b"x" * 70_000
    assert pack_mdp([b"", b"MDPC01", b"echo", b"hi"]) == b"\6MDPC01\4echo\2hi"
    assert unpack_mdp(b"\6MDPW01\1\1\4echo") == [b"", b"MDPW01", b"\1", b"echo"]
    assert unpack_mdp(b"\4mark\0\6MDPC01\4echo\2hi") == [b"mark", b"", b"MDPC01", b"echo", b"hi"]
    assert unpack_mdp(b"\6MDPC02\1\1\4echo") == [b"MDPC02", b"\1", b"echo"]


@given(some.lists(some.binary(max_size=600), min_size=1))
def test_what_was_packed_can_be_unpacked(frames: list[bytes]) -> None:
    assert unpack(pack(frames)) == frames


@each("data", [b"", b"\1", b"\2a", b"\xff", b"\xff\0\0\0", b"\xff\0\0\0\5abcd", b"\xff\xff\xff\xff\xff"])
def test_what_is_no_packed_message(data: bytes) -> None:
    assert unpack(data) is None


@given(some.binary(max_size=100))
def test_any_bytes(data: bytes) -> None:
    frames = unpack(data)
    if frames is not None:
        assert unpack(pack(frames)) == frames


def test_a_message_of_endless_frames() -> None:
    assert unpack(bytes(1_000_000)) is None


# -- running -------------------------------------------------------------------------------------------------


class Domo:
    """A broker with both kinds of sockets."""

    def __init__(self) -> None:
        self.broker = GeneraldomoBroker()
        # One that nobody else gets while it is down.
        self.router, self.server = self.broker.bind(ANY), self.broker.bind_server(f"tcp://127.0.0.1:{free_port()}")


@pytest.fixture
def domo() -> Iterator[Domo]:
    one = Domo()
    with one.broker:
        yield one


@pytest.fixture
def client_socket() -> Iterator[Callable[[str], DraftSocket]]:
    made = []

    def connect(endpoint: str) -> DraftSocket:
        one = DraftSocket("CLIENT")
        one.connect(endpoint)
        made.append(one)
        return one

    yield connect
    for one in made:
        one.close(0)


def shout(frames: Frames) -> Frames:
    if frames[0] == b"fail":
        raise RemoteError(418, "asked to fail", [b"really"])
    return [frame.upper() for frame in frames]


Connect = Callable[[str], DraftSocket]


def received(socket: DraftSocket) -> bytes:
    got = socket.receive(30_000)
    assert got is not None
    return got[0]


def test_a_raw_client_and_a_raw_worker(domo: Domo, client_socket: Connect) -> None:
    worker, client = client_socket(domo.server), client_socket(domo.server)
    worker.send(b"\6MDPW01\1\1\4echo")
    until(lambda: ask_presence(domo))
    client.send(b"\6MDPC01\4echo\2hi\0")
    while (request := received(worker)) == b"\6MDPW01\1\4":
        pass
    assert request.startswith(b"\6MDPW01\1\2")
    frames = unpack(request)
    assert frames is not None
    assert frames[3:] == [b"", b"hi", b""]
    worker.send(pack([b"MDPW01", b"\3", frames[2], b"", b"ho"]))
    assert received(client) == b"\6MDPC01\4echo\2ho"
    worker.send(b"\6MDPW01\1\5")
    until(lambda: not ask_presence(domo))


def ask_presence(domo: Domo) -> bool:
    with Client(domo.router) as client:
        return client.present("echo")


@pytest.mark.timeout(600)
def test_a_worker_that_hangs_loses_its_request_and_its_late_reply_is_dropped(client_socket: Connect) -> None:
    broker = GeneraldomoBroker(BrokerConfig(heartbeat_interval=0.4))
    router, server = broker.bind(ANY), broker.bind_server(ANY)
    with broker, Generaldomo(server, timeout=60, retries=0) as client:
        hung = client_socket(server)
        hung.send(b"\6MDPW01\1\1\4echo")
        until(broker.workers)
        future = client.send("echo", "hi")
        until(lambda: broker.counters()["workers_busy"])
        with Worker("echo", shout, router, config=QUICK):
            assert future.result(60).body == [b"HI"]
            while (request := received(hung)).startswith(b"\6MDPW01\1\4"):
                pass
            frames = unpack(request)
            assert frames is not None
            hung.send(pack([b"MDPW01", b"\3", frames[2], b"", b"late"]))
            while received(hung) != b"\6MDPW01\1\5":  # go, and come back with READY
                pass
            assert client.call("echo", "again") == [b"AGAIN"]


def test_messages_that_make_no_sense_harm_nobody(domo: Domo, client_socket: Connect) -> None:
    stranger = client_socket(domo.server)
    for data in (b"", b"\2a", b"x", b"\6MDPC01", b"\6MDPC01\4echo", b"\6MDPW01\1\2", os.urandom(1000), bytes(300_000)):
        stranger.send(data)
    stranger.send(b"\6MDPC01\x0bmmi.service\4echo")
    assert b"400 a request needs at least one body frame" in received(stranger)
    assert received(stranger) == b"\6MDPW01\1\5", "it asked for it"
    assert received(stranger).endswith(b"\x03404")
    with Worker("echo", shout, domo.router), Generaldomo(domo.server, timeout=30) as client:
        assert client.call("echo", "x") == [b"X"]


def test_messages_of_several_frames_are_discarded_whole(domo: Domo) -> None:
    ask = b"\6MDPC01\x0bmmi.service\4echo"
    with zmtp(domo.server, b"CLIENT") as stream:
        stream.sendall(message(ask, ask) + message(b"", ask) + message(ask))
        answer = message(ask[:19] + b"\x03404")
        assert stream.recv(100) == answer, "one, to the last"
        stream.sendall(message(b"\6MDPC01\7mmi.any\1x"))
        assert stream.recv(100) == message(b"\6MDPC01\7mmi.any\x03501")


def test_clients_that_vanish_are_forgotten(domo: Domo) -> None:
    """The socket takes what is sent before it notices that a client has vanished, so several may have to."""
    go_on = threading.Event()
    unroutable = domo.broker.core.stats["unroutable"]
    with (
        Worker("slow", lambda frames: (go_on.wait(60), frames)[1], domo.router),
        Generaldomo(domo.server, timeout=30) as client,
    ):
        until(domo.broker.workers)

        def one_vanishes() -> bool:
            go_on.clear()
            gone = DraftSocket("CLIENT")
            gone.connect(domo.server)
            gone.send(b"\6MDPC01\4slow\1x")
            gone.send(b"\6MDPC01\x0bmmi.service\4slow")
            assert b"200" in received(gone)
            gone.close(0)
            go_on.set()
            assert client.call("slow", "x") == [b"x"]
            return domo.broker.core.stats["unroutable"] > unroutable

        until(one_vanishes)


# -- who does not read, or says too much ---------------------------------------------------------------------

PART = bytes(1 << 20)
ROOM = 32 << 20


@pytest.fixture
def small() -> Iterator[GeneraldomoBroker]:
    """A broker with little room."""
    broker = GeneraldomoBroker(BrokerConfig(send_queue_bytes=ROOM, max_body=4 << 20))
    broker.bind(ANY)
    broker.bind_server(ANY)
    yield broker
    broker.stop()


@pytest.fixture
def deaf(small: GeneraldomoBroker) -> Iterator[DraftSocket]:
    """A client that takes in very little until it reads."""
    one = DraftSocket("CLIENT", receive_queue=1)
    one.connect(small.core.about.endpoints[1])
    yield one
    one.close(0)


def test_replies_to_who_does_not_read_are_dropped_and_others_get_theirs(
    small: GeneraldomoBroker, deaf: DraftSocket
) -> None:
    router, server = small.core.about.endpoints
    with small, Worker("big", lambda frames: PART, router), Generaldomo(server, timeout=60) as client:
        assert client.call("big", "x") == [PART]
        for _ in range(100):
            deaf.send(b"\6MDPC01\3big\1x")
        until(lambda: small.core.stats["unroutable"] > 20)
        assert small._servers[0].outbox.total <= ROOM
        assert client.call("big", "x") == [PART]
        until(lambda: not small.core.waiting.count)
        while deaf.receive(1000) is not None:
            pass

        def served_again() -> bool:
            deaf.send(b"\6MDPC01\3big\1x")
            return deaf.receive(1000) is not None

        until(served_again)


def test_an_integrated_service_is_told_which_client_socket_is_not_read(
    small: GeneraldomoBroker, deaf: DraftSocket
) -> None:
    asked: list[Request] = []
    small.integrate(b"big", asked.extend)
    with small:
        deaf.send(b"\6MDPC01\3big\1x")
        until(lambda: asked)
        (request,) = asked
        assert not small.congested(request)
        small.reply([(request, [PART] * 20)])
        until(lambda: small.congested(request))
        assert received(deaf).endswith(PART)
        until(lambda: not small.congested(request))


def test_a_message_that_is_too_large_ends_its_connection(small: GeneraldomoBroker, client_socket: Connect) -> None:
    server = small.core.about.endpoints[1]
    hostile = client_socket(server)
    with small, Worker("size", lambda frames: b"%d" % len(frames[0]), small.core.about.endpoints[0]):
        hostile.send(bytes(9 << 20))
        with Generaldomo(server, timeout=60, retries=0) as client:
            assert client.call("size", bytes(4 << 20)) == [b"%d" % (4 << 20)]
            with pytest.raises(RemoteError, match="413"):
                client.call("size", bytes(5 << 20))
    assert small.core.stats["malformed"] == 0, "it did not get so far"


def memory() -> int:
    """Bytes that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_tcp_peer_that_says_nothing_or_too_much(small: GeneraldomoBroker) -> None:
    """Written straight from ZMTP 3.1: a frame of a terabyte, and a message of frames without end."""
    server = small.core.about.endpoints[1]
    address = ("127.0.0.1", int(server.rpartition(":")[2]))
    greeting = b"\xff" + bytes(8) + b"\x7f\3\0NULL".ljust(23, b"\0") + bytes(32)
    ready = b"\4\x1c\5READY\x0bSocket-Type\0\0\0\6CLIENT"

    with small, Generaldomo(server, timeout=60) as client:
        with socket.create_connection(address, timeout=60) as peer:
            peer.sendall(greeting + ready + b"\2" + (1 << 40).to_bytes(8))
            while peer.recv(1000):  # until the broker closes the connection
                pass
        before = memory()
        with socket.create_connection(address, timeout=60) as peer, suppress(ConnectionError):
            peer.sendall(greeting + ready)
            for _ in range(300):
                peer.sendall(b"\3" + len(PART).to_bytes(8) + PART)
        assert memory() < before + (100 << 20) or not choose().wakes, "libzmq has no bound for frames without end"
        with socket.create_connection(address, timeout=60):
            assert client.call("mmi.service", "x") == [b"404"]


@pytest.mark.parametrize("front", ["router", "server"])
@pytest.mark.parametrize("back", ["router", "server"])
def test_each_end_serves_the_clients_of_the_other(front: str, back: str, domo: Domo) -> None:
    worker = Worker if back == "router" else GeneraldomoWorker
    client = Client if front == "router" else Generaldomo
    with (
        worker("shout", shout, getattr(domo, back), config=QUICK),
        client(getattr(domo, front), timeout=30) as asking,
    ):
        assert asking.call("shout", "hello", "world") == [b"HELLO", b"WORLD"]
        assert asking.call("shout", "x" * 100_000) == [b"X" * 100_000]
        with pytest.raises(RemoteError, match="418 asked to fail"):
            asking.call("shout", "fail")


@pytest.mark.parametrize("requests", [800, pytest.param(100_000, marks=pytest.mark.torture)])
def test_eight_threads_share_one_socket_beside_other_clients(requests: int, domo: Domo) -> None:
    wrong: list[object] = []

    def ask(client: Generaldomo, name: int) -> None:
        for number in range(requests // 8):
            body = b"%d %d" % (name, number)
            if (reply := client.call("echo", body)) != [body]:
                wrong.append((body, reply))

    with (
        Worker("echo", lambda frames: frames, domo.router, jobs=2),
        GeneraldomoWorker("echo", lambda frames: frames, domo.server, jobs=2),
        Generaldomo(domo.server, timeout=60) as client,
        Pipeline(domo.router, timeout=60) as pipeline,
    ):
        threads = [threading.Thread(target=ask, args=(client, name)) for name in range(8)]
        for thread in threads:
            thread.start()
        bodies = [b"%d" % number for number in range(1000)]
        assert list(pipeline.map("echo", bodies)) == [[body] for body in bodies]
        for thread in threads:
            thread.join()
    assert wrong == []


def test_clients_and_workers_survive_a_restart_of_the_broker() -> None:
    domo = Domo()
    config = WorkerConfig(heartbeat_interval=0.05, liveness=6, reconnect_first=0.02, reconnect_most=0.1)
    with (
        GeneraldomoWorker("shout", shout, domo.server, config=config),
        Generaldomo(domo.server, timeout=0.5, retries=60) as client,
    ):
        for number in range(3):
            with domo.broker:
                assert client.call("shout", f"n{number}") == [b"N%d" % number]
            server, domo = domo.server, Domo.__new__(Domo)
            domo.broker, domo.server = GeneraldomoBroker(), server
            again(partial(reopen, domo), server)
        domo.broker.stop()


def reopen(domo: Domo, endpoint: str) -> str:
    return domo.broker.bind_server(endpoint)


def test_a_worker_takes_each_of_many_messages_that_come_at_once() -> None:
    server = DraftSocket("SERVER")
    with GeneraldomoWorker("echo", shout, server.bind(ANY), config=WorkerConfig(heartbeat_interval=60)):
        ready = server.receive(30_000)
        assert ready is not None
        for message in ([b"MDPW01", b"\4"], [b"MDPW01", b"\4"], [b"MDPW01", b"\2", b"C", b"", b"x"]):
            server.send(pack(message), ready[1])
        while (said := server.receive(30_000)) == (pack([b"MDPW01", b"\4"]), ready[1]):
            pass
        assert said == (pack([b"MDPW01", b"\3", b"C", b"", b"X"]), ready[1])
    server.close(0)


def test_what_is_asked_before_there_is_a_connection_waits_for_it(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/server"
    with Generaldomo(endpoint, timeout=60, retries=0) as client:
        futures = [client.send("mmi.service", b"%d" % number) for number in range(10)]
        broker = GeneraldomoBroker()
        broker.bind_server(endpoint)
        with broker:
            assert [future.result(60).body for future in futures] == [[b"404"]] * 10


def test_more_than_may_be_in_flight_waits(domo: Domo) -> None:
    with Worker("echo", lambda frames: frames, domo.router), Generaldomo(domo.server, timeout=60, window=3) as client:
        futures = [client.send("echo", b"%d" % number) for number in range(100)]
        assert [future.result(60).body for future in futures] == [[b"%d" % number] for number in range(100)]


@pytest.mark.parametrize("mmi", [True, False], ids=["501", "silence"])
def test_with_a_broker_that_reads_the_frames_strictly(mmi: bool) -> None:
    """Generaldomo's own knows no marks: threads share the client all the same, each request on a connection."""
    answers: dict[int, Frames] = {}

    def ask(first: int) -> None:
        for number in range(first, first + 10):
            answers[number] = client.call("echo", b"%d" % number, b"x" * 300)

    with (
        StrictDomo(mmi=mmi) as strict,
        GeneraldomoWorker("echo", shout, strict.endpoint, jobs=4),
        Generaldomo(strict.endpoint, timeout=30) as client,
    ):
        threads = [threading.Thread(target=ask, args=(10 * number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.call("mmi.service", "echo") == [b"200"]
        with pytest.raises(RemoteError, match="418 asked to fail"):
            client.call("echo", "fail")
    assert answers == {number: [b"%d" % number, b"X" * 300] for number in range(240)}
    assert strict.faults == []
    assert strict.most_from_one == 1


def test_with_our_broker_requests_share_a_connection(domo: Domo) -> None:
    with Worker("echo", shout, domo.router, jobs=2), Generaldomo(domo.server, timeout=30) as client:
        assert client.call("echo", "x") == [b"X"]
        until(lambda: client.core.ours)
        futures = [client.send("echo", b"%d" % number) for number in range(100)]
        assert [future.result(60).body for future in futures] == [[b"%d" % number] for number in range(100)]
        until(lambda: [number for number, dealer in client._dealers.items() if dealer.socket is not None] == [0])


def test_nobody_answers_and_nobody_waits_in_line() -> None:
    begun = time.monotonic()
    with Generaldomo(NOBODY, timeout=2, retries=1) as client:
        futures = [client.send("x", "y") for _ in range(200)]
        assert {future.result(60).kind.value for future in futures} == {"gave up"}
    assert time.monotonic() < begun + 30, "or they had to wait for each other: 13 times 4 s"


def test_a_broker_that_becomes_another() -> None:
    session = DomoSession(ClientConfig(1.0, 0, "0.1"))

    def answer(body: bytes, now: float) -> list[bytes]:
        """Answer all that was sent; the requests among it."""
        sent = []
        for peer, frames in session.take_output():
            if frames is not None:
                service = frames[-2]
                stack = frames[: frames.index(b"MDPC01")]
                reply = body if service == b"mmi.broker" else frames[-1]
                session.receive(peer, [*stack, b"MDPC01", service, reply], now)
                sent += [frames[0]] if service != b"mmi.broker" else []
        return sent

    session.request(b"echo", [b"1"], 0.0)
    assert answer(b"{}", 0.1) == [b""]
    session.request(b"echo", [b"2"], 0.2)
    assert answer(b"", 0.3) != [b""], "it has a mark"
    session.request(b"echo", [b"3"], 1.0)
    session.take_output()
    session.tick(2.0)
    assert [(event.ticket, event.kind.value) for event in session.take_events()][-1] == (3, "gave up")
    session.request(b"echo", [b"4"], 2.0)
    assert answer(b"501", 2.1) == [b""]
    session.request(b"echo", [b"5"], 2.2)
    assert answer(b"", 2.3) == [b""]
    assert [event.body for event in session.take_events()] == [[b"4"], [b"5"]]


def test_nobody_answers(domo: Domo) -> None:
    with Generaldomo(NOBODY, timeout=0.05, retries=1) as client:
        with pytest.raises(TimedOut, match="no answer from tcp"):
            client.call("x", "y")
        for service, body in (("", ["x"]), ("x", [])):
            with pytest.raises(UsageError):
                client.call(service, *body)
        waiting = client.send("x", "y", timeout=60)
    assert waiting.result().kind.value == "gave up"
    with pytest.raises(UsageError, match="not running"):
        client.call("x", "y")


# -- what has them -------------------------------------------------------------------------------------------


def test_without_draft_sockets_it_is_said_what_to_install() -> None:
    broker = GeneraldomoBroker()
    with no_draft_sockets(), pytest.raises(MissingDrafts, match=r"pip install pyomq"):
        broker.bind_server(ANY)
    broker.stop()


def test_who_is_not_there_cannot_be_reached() -> None:
    server = DraftSocket("SERVER")
    server.bind(ANY)
    with pytest.raises(Unreachable):
        server.send(b"x", 99)
    server.close(0)


def test_what_nobody_will_take_holds_up_no_end() -> None:
    begun = time.monotonic()
    client = DraftSocket("CLIENT")
    client.connect(NOBODY)
    client.send(b"x")
    client.close(60_000)
    assert time.monotonic() < begun + 30
