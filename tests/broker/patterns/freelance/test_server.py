"""Freelance on real sockets, with peers written straight from RFC 10 and the Guide."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from support.waiting import until

from broker import EndpointError, RemoteError, TimedOut, UsageError
from broker.core.client import EventKind
from broker.core.mdp import Frames
from broker.patterns import Freelance, FreelanceConfig, LazyPirate, NotPublic, Server, Shotgun, freelance_server

QUICK = FreelanceConfig(ping_interval=0.1, liveness=5, timeout=60, retries=0)
NOBODY = "tcp://127.0.0.1:9"

Asking = Freelance | Shotgun | LazyPirate


def named(name: bytes) -> Callable[[Frames], Frames]:
    def answer(frames: Frames) -> Frames:
        if frames == [b"fail"]:
            raise RemoteError(418, "asked to fail")
        return [name, *frames]

    return answer


@pytest.fixture
def endpoints(tmp_path: Path) -> list[str]:
    return [f"ipc://{tmp_path}/{name}" for name in "abc"]


def client(model: int, endpoints: list[str], timeout: float = 60) -> Asking:
    if model == 1:
        return LazyPirate(endpoints, timeout=timeout)
    config = FreelanceConfig(ping_interval=0.1, liveness=5, timeout=timeout)
    return Shotgun(endpoints, config) if model == 2 else Freelance(endpoints, config)


@pytest.mark.parametrize("model", [1, 2, 3])
def test_one_of_three_is_there(model: int, endpoints: list[str]) -> None:
    server = freelance_server(named(b"b"), endpoints[1], model=model)
    with server, client(model, endpoints) as asking:
        assert asking.call("x", b"y") == [b"b", b"x", b"y"]
        with pytest.raises(RemoteError, match="418 asked to fail"):
            asking.call("fail")
        assert asking.call("z") == [b"b", b"z"]


@pytest.mark.parametrize("model", [1, 2, 3])
def test_nobody_is_there(model: int, endpoints: list[str]) -> None:
    with client(model, endpoints, timeout=0.05) as asking:
        with pytest.raises(TimedOut, match=f"no answer from {' or '.join(endpoints)}"):
            asking.call("x", retries=1)
        with pytest.raises(UsageError, match="at least one body frame"):
            asking.call()
    with pytest.raises(UsageError):
        asking.call("x")
    with pytest.raises(EndpointError):
        client(model, ["nonsense", NOBODY]).call("x")


@pytest.mark.parametrize("model", [1, 2, 3])
def test_servers_end_one_after_another(model: int, endpoints: list[str]) -> None:
    servers = [freelance_server(named(one[-1].encode()), one, model=model) for one in endpoints]
    with ExitStack() as stack, client(model, endpoints, timeout=2) as asking:
        for server in servers:
            stack.enter_context(server)
        seen = set()
        while len(seen) < 3:
            (name, body) = asking.call("x")
            assert body == b"x"
            assert name not in seen
            seen.add(name)
            servers[b"abc".index(name)].stop()


def test_a_raw_client_of_model_3(tmp_path: Path) -> None:
    """RFC 10: ROUTER to ROUTER; the server's identity is its endpoint; the control frame comes back as it was."""
    endpoint = f"ipc://{tmp_path}/s"
    with freelance_server(named(b"s"), endpoint):
        router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        router.linger, router.rcvtimeo, router.router_mandatory = 0, 30_000, True
        router.connect(endpoint)
        address = endpoint.encode()

        def reached() -> bool:
            try:
                router.send_multipart([address, b"PING"])
            except zmq.ZMQError:
                return False
            return True

        until(reached)
        assert router.recv_multipart() == [address, b"PONG"]
        for frames in ([b"x"], [b""], [b"PING", b"x"], [b"any control", b"q", b"r"]):
            router.send_multipart([address, *frames])
        assert router.recv_multipart() == [address, b"PING", b"s", b"x"], "behind a control frame all is body"
        assert router.recv_multipart() == [address, b"any control", b"s", b"q", b"r"]
        router.close()


def test_a_raw_server_of_model_3(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    router.linger, router.rcvtimeo, router.routing_id = 0, 30_000, endpoint.encode()
    router.bind(endpoint)
    with Freelance(endpoint, QUICK) as asking:
        who, ping = router.recv_multipart()
        assert ping == b"PING"
        future = asking.send("q", "r")
        router.send_multipart([who, b"PONG"])
        while len(frames := router.recv_multipart()) == 2:
            assert frames == [who, b"PING"]
        assert frames[2:] == [b"q", b"r"]
        router.send_multipart([who, b"not yours", b"x"])
        router.send_multipart([who, frames[1], b"answer"])
        assert future.result(30).body == [b"answer"]
    router.close()


def test_raw_servers_of_model_2() -> None:
    """The Guide's are REP sockets; the one that answers late is not taken for the answer to the next request."""
    made: list[tuple[zmq.Socket[bytes], str]] = []
    for _ in range(2):
        rep: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REP)
        rep.linger, rep.rcvtimeo = 0, 30_000
        made.append((rep, f"tcp://127.0.0.1:{rep.bind_to_random_port('tcp://127.0.0.1')}"))
    (quick, first), (slow, second) = made
    answers: list[Frames] = []

    def ask(asking: Shotgun) -> None:
        answers.extend(asking.call(body) for body in ("one", "two"))

    with Shotgun([first, second], QUICK) as asking:
        thread = threading.Thread(target=ask, args=(asking,))
        thread.start()
        assert quick.recv_multipart() == [b"1", b"one"]
        quick.send_multipart([b"1", b"OK"])
        assert quick.recv_multipart() == [b"2", b"two"]
        assert slow.recv_multipart() == [b"1", b"one"]
        slow.send_multipart([b"1", b"late"])
        quick.send_multipart([b"2", b"FINE"])
        thread.join()
    assert answers == [[b"OK"], [b"FINE"]]
    quick.close()
    slow.close()


def test_many_threads_share_an_agent(endpoints: list[str]) -> None:
    """Their server dies under them, and nobody is told anything but the answer to what he asked."""
    servers = {one: freelance_server(lambda frames: frames, one, jobs=2) for one in endpoints[:2]}
    wrong: list[object] = []

    def ask(name: str, asking: Freelance) -> None:
        for number in range(200):
            body = f"{name} {number}"
            if (reply := asking.call(body)) != [body.encode()]:
                wrong.append((body, reply))

    with (
        ExitStack() as stack,
        Freelance(endpoints, FreelanceConfig(ping_interval=0.1, liveness=5, retries=50)) as asking,
    ):
        for server in servers.values():
            stack.enter_context(server)
        threads = [threading.Thread(target=ask, args=(name, asking)) for name in "abcdefgh"]
        for thread in threads:
            thread.start()
        until(lambda: asking.core.servers.live() is not None)
        name = asking.core.servers.live()
        assert name is not None
        servers[name].stop()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_who_waits_when_the_agent_stops_is_told(endpoints: list[str]) -> None:
    asking = Freelance(endpoints, QUICK).start()
    future = asking.send("x")
    asking.stop()
    asking.stop()
    with pytest.raises(UsageError, match="not running"):
        asking.send("y")
    assert future.result(30).kind.value == "gave up"
    Freelance(endpoints).stop()  # never started


def test_a_server_must_know_its_endpoint() -> None:
    for endpoint in ("tcp://*:*", "tcp://[::]:5555", "tcp://0:5555", "ipc://*", "ipc:///" + "x" * 300):
        with pytest.raises(NotPublic, match="needs the endpoint for clients as `public`"):
            freelance_server(named(b"x"), endpoint)
    with pytest.raises(UsageError, match="model is 4"):
        freelance_server(named(b"x"), "tcp://127.0.0.1:*", model=4)
    with pytest.raises(EndpointError):
        freelance_server(named(b"x"), "tcp://127.0.0.1:99999")
    server: Server = freelance_server(named(b"x"), "tcp://127.0.0.1:*", public="tcp://elsewhere:1")
    with pytest.raises(EndpointError, match="Address already in use"):
        freelance_server(named(b"x"), server.endpoints[0])
    server.stop()


def test_a_server_finds_out_its_port() -> None:
    server = freelance_server(named(b"x"), "tcp://localhost:*")
    (endpoint,) = server.endpoints
    endpoint = endpoint.replace("127.0.0.1", "localhost")  # as it was called
    with server, Freelance(endpoint, QUICK) as asking:
        assert asking.call("y") == [b"x", b"y"]


def test_who_waits_no_longer_for_an_answer_harms_no_other(endpoints: list[str]) -> None:
    go_on = threading.Event()
    server = freelance_server(lambda frames: (go_on.wait(30), frames)[1], endpoints[0])
    with server, Freelance(endpoints[0], QUICK) as asking:

        async def wait() -> None:
            await asyncio.wait_for(asyncio.wrap_future(asking.send("slow")), 0)

        with pytest.raises(TimeoutError):
            asyncio.run(wait())
        other = asking.send("other")
        go_on.set()
        assert other.result(60).body == [b"other"]
        assert asking.call("x") == [b"x"]


def test_what_has_no_answer_ends_with_its_client_although_some_wait_no_longer() -> None:
    with Freelance(NOBODY, QUICK) as asking:
        futures = [asking.send("x") for _ in range(3)]
        futures[1].cancel()
    assert [futures[at].result(60).kind for at in (0, 2)] == [EventKind.GAVE_UP] * 2


def test_a_client_whose_loop_has_ended_refuses_requests() -> None:
    with Freelance(NOBODY, QUICK) as asking:
        asking.loop.stop()
        until(lambda: asking.loop.ended)
        with pytest.raises(UsageError, match="not running"):
            asking.send("x")
