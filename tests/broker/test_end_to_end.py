"""Broker, workers and clients on real sockets."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.ports import free_port
from support.processes import line, script
from support.raw_mdp import raw_client
from support.waiting import until

from broker import (
    Broker,
    BrokerConfig,
    Client,
    EndpointError,
    Pipeline,
    RemoteError,
    TimedOut,
    UsageError,
    Worker,
    WorkerConfig,
)
from broker.core.mdp import Frames
from broker.core.requests import Request
from broker.handlers import Reply

QUICK = WorkerConfig(heartbeat_interval=0.05, liveness=40, reconnect_first=0.01, reconnect_most=0.1)


@pytest.fixture(params=["tcp", "ipc", "inproc"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "tcp": "tcp://127.0.0.1:*",
        "ipc": f"ipc://{tmp_path}/socket",
        "inproc": f"inproc://{tmp_path.name}",
    }[request.param]


# -- the ordinary ways ---------------------------------------------------------------------------------------


def test_every_transport_and_version(endpoint: str) -> None:
    broker = Broker()
    endpoint = broker.bind(endpoint)
    with broker, Worker("upper", lambda frames: [frame.upper() for frame in frames], endpoint):
        for version in ("0.2", "0.1", "majortomo"):
            with Client(endpoint, version=version) as client:
                assert client.call("upper", b"hello", "world") == [b"HELLO", b"WORLD"]


def test_several_endpoints_at_once(tmp_path: Path) -> None:
    broker = Broker()
    endpoints = [broker.bind("tcp://127.0.0.1:*"), broker.bind("tcp://127.0.0.1:*"), broker.bind(f"ipc://{tmp_path}/s")]
    with broker, Worker("echo", lambda frames: frames, endpoints[2]):
        for endpoint in endpoints:
            with Client(endpoint) as client:
                assert client.call("echo", b"x") == [b"x"]


@pytest.mark.parametrize("version", ["0.2", "0.1"])
def test_a_handler_that_yields_streams(address: str, version: str) -> None:
    def count(frames: Frames) -> Iterator[bytes | str]:
        for number in range(int(frames[0])):
            yield str(number)
        return b"end"

    with (
        Worker("count", count, address, config=WorkerConfig(versions=(version,))),
        Client(address, timeout=60) as client,
    ):
        assert client.call("count", b"3") == [b"0", b"1", b"2", b"end"]
        parts = list(client.stream("count", b"3"))
        assert parts == ([[b"0"], [b"1"], [b"2"], [b"end"]] if version == "0.2" else [[b"0", b"1", b"2", b"end"]])


def test_parts_arrive_while_the_handler_works(address: str) -> None:
    go_on = threading.Event()

    def slow(frames: Frames) -> Iterator[bytes]:
        yield b"first"
        go_on.wait()
        yield b"second"

    with Worker("slow", slow, address), Client(address, timeout=60) as client:
        stream = client.stream("slow", b"x")
        assert next(stream) == [b"first"]
        go_on.set()
        assert list(stream) == [[b"second"]]


def nothing(frames: Frames) -> None:
    return None


def no_frames(frames: Frames) -> Frames:
    return []


def no_parts(frames: Frames) -> Iterator[bytes]:
    yield from ()


def parts(frames: Frames) -> Iterator[bytes]:
    yield b"1"
    yield b"2"


@pytest.mark.parametrize("version", ["0.2", "0.1"])
@pytest.mark.parametrize(
    ("handler", "whole"), [(nothing, [b""]), (no_frames, [b""]), (no_parts, [b""]), (parts, [b"1", b"2"])]
)
def test_an_empty_reply_is_an_empty_frame(
    address: str, version: str, handler: Callable[[Frames], Reply], whole: Frames
) -> None:
    """On the wire a FINAL has a frame in any case; behind parts an empty one is no part of the reply."""
    with Worker("serve", handler, address, config=WorkerConfig(versions=(version,))):
        for mdp in ("0.2", "0.1", "majortomo"):
            with Client(address, version=mdp) as client, Pipeline(address, version=mdp) as pipeline:
                assert client.call("serve", b"x") == whole
                assert [frame for part in client.stream("serve", b"x") for frame in part] == whole
                assert list(pipeline.map("serve", [b"x"])) == [whole]
        with raw_client(address) as raw:
            raw.send(b"serve", b"x")
            replies = [raw.socket.recv_multipart()]
            while replies[-1][1] != b"\3":
                replies.append(raw.socket.recv_multipart())
        assert all(len(reply) >= 4 for reply in replies)
        assert replies[-1][3:] == ([b""] if version == "0.2" else whole)


def test_a_stream_left_early_harms_nothing(address: str) -> None:
    def endless(frames: Frames) -> Iterator[bytes]:
        for number in range(50):
            yield b"%d" % number

    with Worker("count", endless, address), Client(address, timeout=60) as client:
        for _ in client.stream("count", b"x"):
            break
        assert len(client.call("count", b"x")) == 50


def test_presence(address: str) -> None:
    with Client(address) as client:
        assert not client.present("echo")
        with Worker("echo", lambda frames: frames, address):
            until(lambda: client.present("echo"))
        until(lambda: not client.present("echo"))


def test_several_jobs_in_one_process(address: str) -> None:
    together = threading.Barrier(3)

    def meet(frames: Frames) -> bytes:
        together.wait(60)  # returns when three handlers are in it
        return b"met"

    def ask() -> None:
        with Client(address, timeout=None) as client:
            answers.append(client.call("meet", b"x"))

    answers: list[Frames] = []
    with Worker("meet", meet, address, jobs=3) as worker:
        until(lambda: worker.registered == 3)
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [[b"met"]] * 3


# -- handlers that fail --------------------------------------------------------------------------------------


def boom(frames: Frames) -> bytes:
    raise ValueError("no such thing")


def leave(frames: Frames) -> bytes:
    raise SystemExit(3)


def numbers(frames: Frames) -> object:
    return [1, 2]


def number(frames: Frames) -> object:
    return 7


def mapping(frames: Frames) -> object:
    return {"total": "7"}  # its keys would make a reply that looks right


def unordered(frames: Frames) -> object:
    return {b"a", b"b"}


def late(frames: Frames) -> Iterator[bytes]:
    yield b"part"
    raise ValueError("after a part")


def odd_status(frames: Frames) -> bytes:
    raise RemoteError("many", "status", [b"x"])  # type: ignore[arg-type]


def odd_detail(frames: Frames) -> bytes:
    raise RemoteError(400, "bad", [object()])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (boom, "ValueError: no such thing"),
        (leave, "SystemExit: 3"),
        (numbers, "TypeError: a frame of a reply must be bytes or str, not int"),
        (number, "TypeError: a reply must be bytes, str, a list of these or None, not int"),
        (mapping, "TypeError: a reply must be bytes, str, a list of these or None, not dict"),
        (unordered, "TypeError: a reply must be bytes, str, a list of these or None, not set"),
        (late, "ValueError: after a part"),
        (odd_status, "TypeError"),
        (odd_detail, "TypeError: a frame of a reply must be bytes or str, not object"),
    ],
)
def test_a_failing_handler_is_an_error_reply_and_a_log_line(
    address: str, caplog: pytest.LogCaptureFixture, handler: Callable[[Frames], object], text: str
) -> None:
    with Worker("fails", handler, address) as worker, Client(address, timeout=60) as client:  # type: ignore[arg-type]
        for _ in range(2):  # the worker goes on
            with pytest.raises(RemoteError) as caught:
                client.call("fails", b"x")
            assert caught.value.status == 500
            assert caught.value.text.startswith(text)
        assert worker.registered == 1
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    for number, said in enumerate(lines, 1):
        known = rf"request {number} of this worker, delivery 0+{number}, body of 1 B"
        assert re.fullmatch(rf"handler of fails failed \({known}\)", said)
    assert len(lines) == 2


def test_an_error_text_that_is_no_utf8(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def surrogate(frames: Frames) -> bytes:
        raise ValueError("\udcff")

    monkeypatch.setattr(logging.getLogger("broker.worker"), "disabled", True)
    with (
        Worker("fails", surrogate, address),
        Client(address) as client,
        pytest.raises(RemoteError, match=r"500 ValueError: \?"),
    ):
        client.call("fails", b"x")


def test_a_handler_may_choose_its_error(address: str, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(frames: Frames) -> bytes:
        raise RemoteError(404, "no such file", [b"a", b"b"])

    with Worker("fails", refuse, address), Client(address) as client, pytest.raises(RemoteError) as caught:
        client.call("fails", b"x")
    assert (caught.value.status, caught.value.text, caught.value.detail) == (404, "no such file", [b"a", b"b"])
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_more_frames_than_a_message_takes_are_refused_at_once() -> None:
    with Client("tcp://127.0.0.1:9") as client, Pipeline("tcp://127.0.0.1:9") as pipeline:
        for send in (client.call, pipeline.send):
            with pytest.raises(UsageError, match="the request has 99901 frames; at most 99900 can be sent"):
                send("echo", *[b""] * 99_901)


# -- time ----------------------------------------------------------------------------------------------------


def test_a_handler_slower_than_liveness_stays_alive() -> None:
    """Four seconds of work where three of silence are the end."""
    broker = Broker(BrokerConfig(heartbeat_interval=0.05, liveness=60))
    address = broker.bind("tcp://127.0.0.1:*")
    beats = threading.Event()
    calls = []

    def slow(frames: Frames) -> bytes:
        calls.append(frames)
        beats.wait(4)
        return b"done"

    with broker, Worker("slow", slow, address, config=QUICK), Client(address, timeout=None) as client:
        assert client.call("slow", b"x") == [b"done"]
    assert len(calls) == 1


def test_a_client_gives_up() -> None:
    with Client("tcp://127.0.0.1:9", timeout=0.01, retries=2) as client:
        for _ in range(2):
            with pytest.raises(TimedOut, match=r"127\.0\.0\.1:9"):
                client.call("echo", b"x")


def test_a_worker_finds_a_broker_that_was_started_again() -> None:
    first = Broker()
    address = first.bind(f"tcp://127.0.0.1:{free_port()}")
    first.start()
    with Worker("echo", lambda frames: frames, address, config=QUICK) as worker, Client(address) as client:
        assert client.call("echo", b"1") == [b"1"]
        first.stop()
        until(lambda: not worker.registered)
        second = Broker()

        def bound() -> bool:
            try:
                second.bind(address)
            except EndpointError:
                return False
            return True

        until(bound)
        with second:
            assert client.call("echo", b"2", retries=20) == [b"2"]


# -- going away ----------------------------------------------------------------------------------------------


def test_stopping_lets_the_job_in_hand_finish(address: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(frames: Frames) -> bytes:
        begun.set()
        go_on.wait()
        return b"finished"

    answers: list[Frames] = []

    def ask() -> None:
        with Client(address, timeout=None) as client:
            answers.append(client.call("slow", b"x"))

    worker = Worker("slow", slow, address).start()
    asking = threading.Thread(target=ask)
    asking.start()
    begun.wait()
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    assert stopping.is_alive()
    go_on.set()
    stopping.join()
    asking.join()
    assert answers == [[b"finished"]]
    with Client(address) as client:
        until(lambda: not client.present("slow"))


def test_a_handler_may_stop_its_own_worker(address: str) -> None:
    def quit_(frames: Frames) -> bytes:
        worker.stop()
        return b"bye"

    worker = Worker("quit", quit_, address).start()
    with Client(address) as client:
        assert client.call("quit", b"x") == [b"bye"]
    worker.stop()


def test_the_request_of_a_killed_worker_goes_to_another() -> None:
    broker = Broker(BrokerConfig(heartbeat_interval=0.1, liveness=100))
    address = broker.bind("tcp://127.0.0.1:*")
    answers: list[Frames] = []

    def ask() -> None:
        with Client(address, timeout=None) as client:
            answers.append(client.call("job", b"work"))

    with broker, script("worker_process.py", address, "job", "/dev/stdout", "hang") as stuck:
        asking = threading.Thread(target=ask)
        asking.start()
        assert line(stuck) == "work"
        with Worker("job", lambda frames: [b"done", *frames], address, config=QUICK) as worker:
            until(lambda: worker.registered)
            assert not answers
            os.kill(stuck.pid, signal.SIGKILL)
            asking.join()
    assert answers == [[b"done", b"work"]]


def test_stop_in_every_order() -> None:
    Broker().stop()
    Worker("echo", lambda frames: frames).stop()
    broker = Broker()
    broker.stop()
    broker.run()
    broker.stop()
    worker = Worker("echo", lambda frames: frames)
    worker.stop()
    worker.run()
    worker.stop()


def test_a_signal_handler_may_stop(tmp_path: Path) -> None:
    broker = Broker()
    broker.bind(f"ipc://{tmp_path}/socket")
    before = signal.signal(signal.SIGUSR1, lambda *_: broker.stop())
    try:
        broker.loop.call(lambda: os.kill(os.getpid(), signal.SIGUSR1))
        broker.run()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_may_stop_in_the_middle_of_a_call() -> None:
    """The handler runs in the thread that holds the loop's lock: it must not wait for itself."""
    broker = Broker()
    with broker.loop._guard:
        broker.stop()


# -- mistakes of the caller ----------------------------------------------------------------------------------


def test_endpoints_that_cannot_be() -> None:
    broker = Broker()
    with pytest.raises(EndpointError, match="cannot bind"):
        broker.bind("nonsense")
    with pytest.raises(EndpointError, match="cannot bind"):
        broker.bind(broker.bind("tcp://127.0.0.1:*"))
    broker.stop()
    with pytest.raises(EndpointError, match="cannot connect"), Worker("echo", lambda frames: frames, "nonsense"):
        pass
    with Client("nonsense") as client:
        for _ in range(2):
            with pytest.raises(EndpointError, match="cannot connect"):
                client.call("echo", b"x")


def test_calls_that_cannot_be(address: str) -> None:
    with Client(address) as client:
        for service, body in (("", [b"x"]), ("a\nb", [b"x"]), ("echo", []), ("echo", [5]), ("x" * 256, [b"x"])):
            with pytest.raises(UsageError):
                client.call(service, *body)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="closed"):
        client.call("echo", b"x")
    with pytest.raises(UsageError, match="version"):
        Client(address, version="0.3")
    with pytest.raises(UsageError, match="jobs"):
        Worker("echo", boom, jobs=0)
    with pytest.raises(UsageError, match="empty"):
        Worker("", boom)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("heartbeat_interval", 0),
        ("heartbeat_interval", math.inf),
        ("liveness", 1),
        ("max_body", -1),
        ("max_waiting", -1),
        ("max_workers", -1),
        ("request_expiry", -1),
        ("request_expiry", math.nan),
        ("send_queue", 0),
        ("send_queue_bytes", -5),
        ("worker_return", -1),
    ],
)
def test_settings_that_cannot_be(setting: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{setting} is {value}; it must be"):
        BrokerConfig(**{setting: value})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="known"):
        WorkerConfig(versions=("0.3",))


def test_a_second_call_while_a_stream_is_read(address: str) -> None:
    go_on = threading.Event()

    def parts(frames: Frames) -> Iterator[bytes]:
        yield b"1"
        go_on.wait()
        yield b"2"

    with Worker("parts", parts, address), Client(address, timeout=None) as client:
        stream = client.stream("parts", b"x")
        next(stream)
        with pytest.raises(UsageError, match="in flight"):
            client.call("parts", b"x")
        go_on.set()
        assert list(stream) == [[b"2"]]


def test_a_stream_of_a_client_that_was_closed(address: str) -> None:
    go_on = threading.Event()

    def parts(frames: Frames) -> Iterator[bytes]:
        yield b"1"
        go_on.wait()

    with Worker("parts", parts, address), Client(address, timeout=None) as client:
        stream = client.stream("parts", b"x")
        next(stream)
        client.close()
        with pytest.raises(UsageError, match="closed"):
            next(stream)
        go_on.set()


# -- in the broker's process ---------------------------------------------------------------------------------


def test_an_integrated_service() -> None:
    broker = Broker()
    address = broker.bind("tcp://127.0.0.1:*")
    broker.integrate(b"in", lambda batch: broker.reply([(request, [b"re", *request.body]) for request in batch]))
    with broker, Client(address) as client:
        assert client.call("in", b"x") == [b"re", b"x"]


def test_an_integrated_service_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    address = broker.bind("tcp://127.0.0.1:*")

    def fail(batch: list[Request]) -> None:
        raise ValueError("broken")

    broker.integrate(b"in", fail)
    with broker, Client(address) as client:
        for _ in range(2):
            with pytest.raises(RemoteError, match="500 ValueError: broken"):
                client.call("in", b"x")
    assert "integrated service in failed" in caplog.text


def test_local_peers_and_replies_from_many_threads() -> None:
    broker = Broker()
    handlers = []

    def elsewhere(batch: list[Request]) -> None:
        thread = threading.Thread(target=broker.reply, args=([(request, request.body) for request in batch],))
        handlers.append(thread)
        thread.start()

    broker.integrate(b"echo", elsewhere)
    got: dict[int, list[bytes]] = {number: [] for number in range(6)}

    def take(number: int) -> Callable[[list[Frames]], None]:
        return lambda messages: got[number].extend(message[3] for message in messages)

    peers = [broker.connect_local(take(number)) for number in got]

    def send(number: int) -> None:
        for message in range(300):
            peers[number].send([[b"MDPC02", b"\1", b"echo", b"%d.%d" % (number, message)]])

    with broker:
        threads = [threading.Thread(target=send, args=(number,)) for number in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: all(len(messages) == 300 for messages in got.values()))
    for thread in handlers:
        thread.join()
    for number, messages in got.items():
        assert sorted(messages) == sorted(b"%d.%d" % (number, message) for message in range(300))


def test_a_local_peer_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    address = broker.bind("tcp://127.0.0.1:*")

    def fail(messages: list[Frames]) -> None:
        raise ValueError("broken")

    peer = broker.connect_local(fail)
    with broker, Client(address) as client:
        peer.send([[b"MDPC02", b"\1", b"mmi.service", b"echo"], [], [b"garbage"]])
        until(lambda: "a local peer failed" in caplog.text)
        assert not client.present("echo")


def test_a_worker_that_does_not_read_is_lost() -> None:
    """A REQUEST that its queue does not take goes to another worker; it must not be forgotten."""
    broker = Broker(BrokerConfig(send_queue=1, request_expiry=0))
    core, heartbeat = broker.core, b"\5"
    core.receive(b"worker", [b"", b"MDPW02", b"\1", b"echo"], 0.0)
    core.take_output()
    core.receive(b"client", [b"MDPC02", b"\1", b"echo", b"q"], 0.0)
    broker._send(core.take_output(), 0.0)  # as if to one that is gone
    assert (len(core.workers), core.waiting.count) == (0, 1)
    core.receive(b"another", [b"", b"MDPW02", b"\1", b"echo"], 0.0)
    assert [frames[-1] for peer, frames in core.take_output() if peer == b"another" and frames] == [heartbeat, b"q"]
    assert core.stats["unroutable"] == 1
    broker.stop()
