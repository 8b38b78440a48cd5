"""Generaldomo: CZMQ's packing, raw packed messages, both kinds of peers at once, many threads on one socket."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as some
from support.running import again, until

from broker import Client, Pipeline, RemoteError, TimedOut, UsageError, Worker, WorkerConfig
from broker.core.mdp import Frames
from broker.drafts import DraftSocket, MissingDrafts, Unreachable
from broker.patterns import Generaldomo, GeneraldomoBroker, GeneraldomoWorker, pack, unpack
from broker.patterns.core.generaldomo import pack_mdp, unpack_mdp

ANY = "tcp://127.0.0.1:*"
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


@pytest.mark.parametrize(
    "data", [b"", b"\1", b"\2a", b"\xff", b"\xff\0\0\0", b"\xff\0\0\0\5abcd", b"\xff\xff\xff\xff\xff"]
)
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
        self.router, self.server = self.broker.bind(ANY), self.broker.bind_server(ANY)


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


def test_clients_that_vanish_are_forgotten(domo: Domo, client_socket: Connect) -> None:
    go_on = threading.Event()
    with Worker("slow", lambda frames: (go_on.wait(60), frames)[1], domo.router, jobs=3):
        for _ in range(3):
            gone = DraftSocket("CLIENT")
            gone.connect(domo.server)
            gone.send(b"\6MDPC01\4slow\1x")
            gone.send(b"\6MDPC01\x0bmmi.service\4slow")
            assert b"200" in received(gone)
            gone.close(0)
        before = domo.broker.core.stats["unroutable"]
        go_on.set()
        until(lambda: domo.broker.core.stats["unroutable"] >= before + 3)
        with Generaldomo(domo.server, timeout=30) as client:
            assert client.call("slow", "x") == [b"x"]


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


@pytest.mark.parametrize("requests", [4000, pytest.param(100_000, marks=pytest.mark.torture)])
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


def test_more_than_may_be_in_flight_waits(domo: Domo) -> None:
    with Worker("echo", lambda frames: frames, domo.router), Generaldomo(domo.server, timeout=60, window=3) as client:
        futures = [client.send("echo", b"%d" % number) for number in range(100)]
        assert [future.result(60).body for future in futures] == [[b"%d" % number] for number in range(100)]


def test_nobody_answers(domo: Domo) -> None:
    with Generaldomo("tcp://127.0.0.1:9", timeout=0.05, retries=1) as client:
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


def test_without_draft_sockets_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.drafts.find_spec", lambda name: None)
    monkeypatch.setattr("zmq.DRAFT_API", False)
    broker = GeneraldomoBroker()
    with pytest.raises(MissingDrafts, match=r"pip install 'titanic-queue\[drafts\]'"):
        broker.bind_server(ANY)
    broker.stop()


def test_who_is_not_there_cannot_be_reached() -> None:
    server = DraftSocket("SERVER")
    server.bind(ANY)
    with pytest.raises(Unreachable):
        server.send(b"x", 99)
    server.close(0)
