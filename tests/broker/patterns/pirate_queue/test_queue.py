"""Lazy, Simple and Paranoid Pirate on real sockets, with peers written straight from the RFC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from socket import create_connection

import pytest
import zmq
from support.handshakes import address as host_and_port
from support.ports import free_port
from support.waiting import PATIENCE, again, until
from support.zmtp_peer import message, null

from broker import EndpointError, RemoteError, TimedOut, UsageError, Worker, WorkerConfig
from broker.core.mdp import Frames
from broker.patterns import (
    LazyPirate,
    ParanoidQueue,
    ParanoidWorker,
    PirateQueue,
    QueueConfig,
    Server,
    SimpleQueue,
    SimpleWorker,
)
from broker.patterns.pirate_queue.core import PirateState

QUICK = WorkerConfig(heartbeat_interval=0.05, liveness=20, reconnect_first=0.02, reconnect_most=0.1)


def shout(frames: Frames) -> Frames:
    if frames[0] == b"fail":
        raise RemoteError(418, "asked to fail", [b"really"])
    if frames[0] == b"boom":
        raise ValueError("no such thing")
    return [frame.upper() for frame in frames]


@pytest.fixture
def socket() -> Iterator[Callable[[int, str], zmq.Socket[bytes]]]:
    """Raw sockets that connect."""
    made = []

    def make(kind: int, endpoint: str) -> zmq.Socket[bytes]:
        one = zmq.Context.instance().socket(kind)
        one.linger = 0
        one.rcvtimeo = 30_000
        one.connect(endpoint)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


Socket = Callable[[int, str], "zmq.Socket[bytes]"]


@pytest.fixture
def server() -> Iterator[str]:
    server = Server(shout, jobs=2)
    endpoint = server.bind("tcp://127.0.0.1:*")
    with server:
        yield endpoint


# -- Lazy Pirate ---------------------------------------------------------------------------------------------


def test_a_request_and_its_reply(server: str) -> None:
    with LazyPirate(server) as client:
        assert client.call("hello", b"world") == [b"HELLO", b"WORLD"]
        assert client.call(b"") == [b""]


def test_errors_come_back(server: str) -> None:
    with LazyPirate(server) as client:
        with pytest.raises(RemoteError, match="418 asked to fail"):
            client.call("fail")
        with pytest.raises(RemoteError, match="500 ValueError: no such thing"):
            client.call("boom")
        assert client.call("x") == [b"X"], "the server goes on"


def test_a_rep_socket_answers_it(socket: Socket) -> None:
    rep = zmq.Context.instance().socket(zmq.REP)
    port = rep.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        for _ in range(2):
            rep.send_multipart([b"re", *rep.recv_multipart()])
        rep.close(0)

    thread = threading.Thread(target=serve)
    thread.start()
    with LazyPirate(f"tcp://127.0.0.1:{port}") as client:
        assert client.call("a", "b") == [b"re", b"a", b"b"]
        assert client.call("c") == [b"re", b"c"]
    thread.join()


def test_a_req_socket_is_answered(server: str, socket: Socket) -> None:
    req = socket(zmq.REQ, server)
    for body in ([b"a"], [b"b", b"c"]):
        req.send_multipart(body)
        assert req.recv_multipart() == [frame.upper() for frame in body]


def test_wrong_frames_and_vanished_clients_harm_nobody(server: str, socket: Socket) -> None:
    dealer = socket(zmq.DEALER, server)
    for frames in ([b"x"], [b""], [b"a"] * 20, [b"", b"left"]):
        dealer.send_multipart(frames)
    assert dealer.recv_multipart() == [b"", b"LEFT"]
    dealer.send_multipart([b"", b"nobody will hear this"])
    dealer.close()
    with LazyPirate(server) as client:
        assert client.call("x") == [b"X"]


def test_giving_up() -> None:
    with LazyPirate("tcp://127.0.0.1:9", timeout=0.02, retries=2) as client:
        with pytest.raises(TimedOut, match=r"no answer from tcp://127.0.0.1:9 in 3 tries; is a server there\?"):
            client.call("x")
        with pytest.raises(TimedOut, match="in 1 tries"):
            client.call("x", retries=0)
        with pytest.raises(UsageError):
            client.call()
    with pytest.raises(UsageError, match="closed"):
        client.call("x")


def test_a_late_reply_is_not_taken_for_the_next(socket: Socket) -> None:
    go_on = threading.Event()

    def slow(frames: Frames) -> Frames:
        if frames == [b"slow"]:
            go_on.wait(30)
        return frames

    server = Server(slow, jobs=2)
    with LazyPirate(server.bind("tcp://127.0.0.1:*"), timeout=0.05, retries=0) as client, server:
        with pytest.raises(TimedOut):
            client.call("slow")
        go_on.set()
        assert client.call("quick", timeout=60) == [b"quick"]


def test_of_several_servers_the_next_is_asked(server: str) -> None:
    with LazyPirate(["tcp://127.0.0.1:9", server], timeout=0.1) as client:
        assert client.call("x", timeout=1, retries=60) == [b"X"]
        assert client.call("y", retries=0, timeout=60) == [b"Y"], "it stays with the one that answers"


def test_a_server_with_too_much_in_hand_leaves_it_in_the_socket(
    socket: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.patterns.request_reply.lazy_pirate.MOST_IN_HAND", 3)
    go_on = threading.Event()
    server = Server(lambda frames: (go_on.wait(30), frames)[1])
    dealer = socket(zmq.DEALER, server.bind("tcp://127.0.0.1:*"))
    bodies = [b"%0100000d" % number for number in range(60)]
    for body in bodies:
        dealer.send_multipart([b"", body])
    with server:
        until(lambda: server.in_hand >= 3)
        until(lambda: server._connections._paused)
        assert server.in_hand < 30, "of large messages it reads 1 MiB at once"
        go_on.set()
        assert [dealer.recv_multipart()[1] for _ in range(60)] == bodies


def test_a_server_goes_on_with_what_it_has_read() -> None:
    """No poll reports it: it is not in the system any more."""
    go_on = threading.Event()
    server = Server(lambda frames: (go_on.wait(30), frames)[1])
    endpoint = server.bind("tcp://127.0.0.1:*")
    with server, create_connection(host_and_port(endpoint), timeout=PATIENCE) as client:
        client.sendall(null() + message(b"", b"x") * 1500)
        until(lambda: server._connections._paused)
        assert server.in_hand < 1500
        go_on.set()
        left = 1500 * len(message(b"", b"x")) + len(null(Identity=b""))
        while left:
            left -= len(client.recv(left))


def test_a_server_finishes_what_it_has_in_hand(socket: Socket) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(frames: Frames) -> Frames:
        begun.set()
        go_on.wait(30)
        return frames

    server = Server(slow)
    dealer = socket(zmq.DEALER, server.bind("tcp://127.0.0.1:*"))
    dealer.send_multipart([b"", b"last"])
    server.start()
    assert begun.wait(30)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    go_on.set()
    assert dealer.recv_multipart() == [b"", b"last"]
    stopping.join()


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="jobs"):
        Server(shout, jobs=0)
    server = Server(shout)
    with pytest.raises(EndpointError):
        server.bind("tcp://127.0.0.1:99999")
    server.stop()


# -- queues --------------------------------------------------------------------------------------------------


KINDS: dict[str, tuple[type[PirateQueue], type[Worker]]] = {
    "simple": (SimpleQueue, SimpleWorker),
    "paranoid": (ParanoidQueue, ParanoidWorker),
}


@pytest.mark.parametrize("kind", KINDS)
def test_many_clients_and_workers(kind: str, tmp_path: Path) -> None:
    queue_type, worker_type = KINDS[kind]
    queue = queue_type()
    front, back = queue.bind_clients("tcp://127.0.0.1:*"), queue.bind_workers("tcp://127.0.0.1:*")
    answers: list[Frames] = []

    def ask(name: str) -> None:
        with LazyPirate(front, timeout=30) as client:
            answers.extend(client.call(f"{name} {number}") for number in range(50))

    with queue, worker_type(shout, back, jobs=3):  # type: ignore[call-arg, arg-type]
        threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answers) == sorted([f"{name} {number}".upper().encode()] for name in "abcd" for number in range(50))


def test_a_raw_req_worker(socket: Socket) -> None:
    """The Guide's simple worker."""
    queue = SimpleQueue()
    front, back = queue.bind_clients("tcp://127.0.0.1:*"), queue.bind_workers("tcp://127.0.0.1:*")
    with queue:
        worker, client = socket(zmq.REQ, back), socket(zmq.REQ, front)
        worker.send(b"\1")
        for number in range(3):
            client.send(b"q%d" % number)
            address, empty, body = worker.recv_multipart()
            assert (empty, body) == (b"", b"q%d" % number)
            worker.send_multipart([address, b"", b"a%d" % number])
            assert client.recv() == b"a%d" % number


def test_a_raw_paranoid_worker(socket: Socket) -> None:
    queue = ParanoidQueue(QueueConfig(heartbeat_interval=0.05, liveness=1000))
    front, back = queue.bind_clients("tcp://127.0.0.1:*"), queue.bind_workers("tcp://127.0.0.1:*")
    with queue:
        worker, client = socket(zmq.DEALER, back), socket(zmq.REQ, front)
        worker.send(b"\1")
        assert worker.recv_multipart() == [b"\2"]
        assert worker.recv_multipart() == [b"\2"], "heartbeats come by themselves"
        client.send_multipart([b"q", b"r"])
        while (frames := worker.recv_multipart()) == [b"\2"]:
            pass
        address, empty, *body = frames
        assert (empty, body) == (b"", [b"q", b"r"])
        worker.send_multipart([address, b"", b"a", b"b"])
        assert client.recv_multipart() == [b"a", b"b"]


def test_a_raw_paranoid_queue(socket: Socket) -> None:
    """The Guide's queue says nothing until its first heartbeat."""
    with zmq.Context.instance().socket(zmq.ROUTER) as router:
        router.linger, router.rcvtimeo = 0, 30_000
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with ParanoidWorker(shout, f"tcp://127.0.0.1:{port}", config=replace(QUICK, liveness=2)):
            first, ready = router.recv_multipart()
            assert ready == b"\1"
            router.send_multipart([first, b"client", b"", b"x"])
            said = [router.recv_multipart()[1:]]
            while (message := router.recv_multipart())[0] == first:  # it hears nothing of us any more
                said.append(message[1:])
            assert message[1] == b"\1"
    assert [b"client", b"", b"X"] in said
    assert [b"\2"] in said
    assert all(one in ([b"client", b"", b"X"], [b"\2"]) for one in said)


def test_a_simple_worker_finds_out_that_its_queue_is_gone() -> None:
    queue = SimpleQueue()
    front, back = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    queue.bind_clients(front)
    queue.bind_workers(back)
    with SimpleWorker(shout, back, config=QUICK), LazyPirate(front, timeout=0.5, retries=50) as client:
        for _ in range(3):
            with queue:
                assert client.call("x") == [b"X"]
            queue = SimpleQueue()
            again(queue.bind_clients, front)
            again(queue.bind_workers, back)
        queue.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_leaves_makes_room_for_another(kind: str, socket: Socket) -> None:
    """The transport knows; no heartbeat is waited for."""
    queue_type, worker_type = KINDS[kind]
    queue = queue_type(QueueConfig(heartbeat_interval=1000, max_workers=1))
    front, back = queue.bind_clients("tcp://127.0.0.1:*"), queue.bind_workers("tcp://127.0.0.1:*")
    with queue, LazyPirate(front, timeout=30) as client:
        for _ in range(3):
            gone = socket(zmq.REQ if kind == "simple" else zmq.DEALER, back)
            gone.send(b"\1")
            until(lambda: queue.core.count(PirateState.READY) == 1)
            gone.close()
            until(lambda: queue.core.count(PirateState.READY) == 0)
        with worker_type(shout, back):  # type: ignore[call-arg, arg-type]
            assert client.call("x") == [b"X"]
