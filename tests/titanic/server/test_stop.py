"""Starting, stopping, and starting again with what was left."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port
from support.raw_mdp import raw_client, raw_worker
from support.serving import PATIENT, QUICK, config, serving
from support.store_break import break_meta_page
from support.waiting import until

from broker import Broker, EndpointError, RemoteError, Worker
from titanic import Client, Refused, RequestFailed, Server, ServerConfig, TimedOut, current
from titanic.dispatch import dispatcher as dispatcher_module
from titanic.errors import CallerError, StoreLocked
from titanic.protocol import tsp
from titanic.services import reader
from titanic.store import ReadTransaction, open_read_only, open_store


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    def answer(frames: list[bytes]) -> bytes:
        if frames[0] == b"fail":
            raise RemoteError(500, "no")
        return b"done:" + frames[0]

    with serving(tmp_path, max_attempts=1) as server, Client(server.endpoints[0]) as client:
        with Worker("echo", answer, server.endpoints[0], config=QUICK):
            done, failed = client.submit("echo", "x"), client.submit("echo", "fail")
            assert client.wait(done, 30) == [b"done:x"]
            with pytest.raises(RequestFailed):
                client.wait(failed, 30)
        waiting = client.submit("later", "y")
    with (
        serving(tmp_path, max_attempts=9, retry_first=1000, retry_most=1000) as server,
        Client(server.endpoints[0]) as client,
    ):
        assert client.reply(done) == [b"done:x"]
        with pytest.raises(RequestFailed, match="failed: no"):
            client.reply(failed)
        assert client.reply(waiting) is None
        with Worker("echo", answer, server.endpoints[0], config=QUICK):
            delayed = client.submit("echo", "fail")
            until(lambda: client.show(delayed)["state"] == "delayed")
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        row = client.show(delayed)
        assert (row["state"], row["attempts"]) == ("delayed", 1)
        with Worker("later", answer, server.endpoints[0], config=QUICK):
            assert client.wait(waiting, 30) == [b"done:y"]


def test_a_delayed_request_is_tried_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path, retry_first=0.5, retry_most=0.5) as server, Client(server.endpoints[0]) as client:
        uuid = client.submit("echo", "x")
        with raw_worker(server.endpoints[0], b"echo") as worker:
            token, _ = worker.take()
            worker.final(token, b"MDPE01", b"500 no")
            until(lambda: client.show(uuid)["attempts"] == 1)
    with (
        serving(tmp_path) as server,
        Client(server.endpoints[0]) as client,
        Worker("echo", lambda frames: b"now", server.endpoints[0], config=QUICK),
    ):
        assert client.wait(uuid, 30) == [b"now"]


def test_a_request_that_was_running_is_executed_again_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        uuid = client.submit("echo", "x")
        with raw_worker(server.endpoints[0], b"echo") as worker:
            worker.take()
            assert client.show(uuid)["state"] == "running"
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        until(lambda: client.show(uuid)["state"] == "waiting")
        with Worker("echo", lambda frames: b"now", server.endpoints[0], config=QUICK):
            assert client.wait(uuid, 30) == [b"now"]


def test_what_a_worker_still_has_at_the_stop_is_named_and_its_second_delivery_knows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There was no word about it, neither in the log nor in `show`, and `attempt` said 1 to both workers."""
    with ExitStack() as stack, serving(tmp_path, grace=0.1) as server, Client(server.endpoints[0]) as client:
        uuid = client.submit("echo", "x")
        worker = stack.enter_context(raw_worker(server.endpoints[0], b"echo"))
        worker.take()
        row = client.show(uuid)
        assert row["submitted_at"] <= row["running_since"]
    stopped = time.time() * 1e6
    assert "1 requests are still running: they are dispatched again" in caplog.text
    seen: list[tuple[int, int]] = []
    begun, go_on = threading.Event(), threading.Event()

    def note(frames: list[bytes]) -> bytes:
        seen.append((current().attempt, current().delivery))
        begun.set()
        assert go_on.wait(90)
        return b"now"

    with (
        serving(tmp_path) as server,
        Client(server.endpoints[0]) as client,
        Worker("echo", note, server.endpoints[0], config=QUICK),
    ):
        assert begun.wait(50)
        row = client.show(uuid)
        assert (row["state"], row["attempts"], row["deliveries"]) == ("running", 0, 1)
        assert "while a worker had the request; that worker may continue" in row["reason"]
        assert row["dispatched_at"] < stopped < row["running_since"]
        until(lambda: "1 requests dispatched again: workers that had them" in caplog.text)
        go_on.set()
        assert client.wait(uuid, 30) == [b"now"]
    assert seen == [(1, 2)]


def test_stop_lets_what_is_running_finish_and_refuses_what_is_new(tmp_path: Path) -> None:
    server = Server(config(tmp_path, grace=60)).start()
    with raw_client(server.endpoints[0]) as raw, raw_worker(server.endpoints[0], b"echo") as worker:
        uuid = raw.submit(b"echo", b"x")
        behind = raw.submit(b"echo", b"y")
        token, _ = worker.take()
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        until(lambda: raw.ask(b"titanic.request", b"echo", b"z")[0].startswith(b"500 shutting down"))
        assert raw.ask(b"titanic.reply", uuid) == [b"300"]
        assert stopping.is_alive()
        worker.final(token, b"X")
        stopping.join(30)
        assert not stopping.is_alive()
        assert not worker.has_request()
    with serving(tmp_path) as server, raw_client(server.endpoints[0]) as raw:
        assert raw.ask(b"titanic.reply", uuid) == [b"200", b"X"]
        assert raw.ask(b"titanic.reply", behind) == [b"300"]


def test_stop_waits_for_a_worker_for_whose_return_no_request_waits(tmp_path: Path) -> None:
    """The server noted its request all the same, did not wait, and the next one gave it to a second worker."""
    seen: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def note(frames: list[bytes]) -> bytes:
        seen.append(current().delivery)
        begun.set()
        go_on.wait(60)
        return b"once"

    wire = replace(PATIENT, worker_return=0.0)
    server = Server(config(tmp_path, grace=60, wire=wire)).start()
    with Client(server.endpoints[0]) as client, Worker("echo", note, server.endpoints[0], config=QUICK):
        uuid = client.submit("echo", "x")
        assert begun.wait(50)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        stopping.join(1)
        assert stopping.is_alive()
        go_on.set()
        stopping.join(30)
        assert not stopping.is_alive()
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        assert client.wait(uuid, 30) == [b"once"]
    assert seen == [1]


def test_stop_gives_up_after_the_grace_time(tmp_path: Path) -> None:
    server = Server(config(tmp_path, grace=0.2)).start()
    with raw_client(server.endpoints[0]) as raw, raw_worker(server.endpoints[0], b"echo") as worker:
        raw.submit(b"echo", b"x")
        worker.take()
        began = time.monotonic()
        server.stop()
        assert 0.2 <= time.monotonic() - began < 20
    server.stop()
    assert not server.alive


@pytest.mark.parametrize("when", ["before it is stopped", "while it waits"])
def test_nobody_is_waited_for_when_nothing_can_be_stored_any_more(tmp_path: Path, when: str) -> None:
    server = Server(config(tmp_path, grace=60)).start()
    stopping = threading.Thread(target=server.stop)
    with raw_client(server.endpoints[0]) as raw, raw_worker(server.endpoints[0], b"echo") as worker:
        uuids = [raw.submit(b"echo", b"x"), raw.submit(b"echo", b"y")]
        token, _ = worker.take()
        if when == "while it waits":
            stopping.start()
            until(lambda: raw.ask(b"titanic.request", b"echo", b"z")[0].startswith(b"500 shutting down"))
            break_meta_page(server.store)
            worker.final(token, b"lost")
        else:
            break_meta_page(server.store)
            assert raw.ask(b"titanic.request", b"echo", b"z")[0].startswith(b"500 not stored")
            until(lambda: not server.alive)
            stopping.start()
        stopping.join(60)
        assert not stopping.is_alive()
    with serving(tmp_path) as server, raw_client(server.endpoints[0]) as raw:
        assert [raw.ask(b"titanic.reply", uuid) for uuid in uuids] == [[b"300"]] * 2


def test_what_was_acknowledged_in_the_middle_of_the_traffic_is_there(tmp_path: Path) -> None:
    server = Server(config(tmp_path, grace=5)).start()
    endpoint = server.endpoints[0]
    acknowledged: list[str] = []
    over = threading.Event()

    def submit(number: int) -> None:
        with Client(endpoint, timeout=0.5, retries=0) as client:
            for turn in range(100_000):
                try:
                    acknowledged.append(client.submit("echo", f"{number}.{turn}"))
                except TimedOut:
                    if over.is_set():
                        return
                except Exception:
                    return

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    with Worker("echo", lambda frames: frames, endpoint, jobs=2, config=QUICK):
        for thread in threads:
            thread.start()
        until(lambda: len(acknowledged) > 300)
        server.stop()
        over.set()
        for thread in threads:
            thread.join()
    with (
        serving(tmp_path) as server,
        Client(server.endpoints[0]) as client,
        Worker("echo", lambda frames: frames, server.endpoints[0], jobs=2, config=QUICK),
    ):
        assert len(dict(client.replies(acknowledged, 60))) == len(acknowledged)


def test_one_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    Server(config(tmp_path)).stop()
    Server(config(tmp_path, broker="tcp://127.0.0.1:1")).stop()
    open_store(tmp_path / "store").close()


def test_an_endpoint_that_is_taken_leaves_nothing_open(tmp_path: Path) -> None:
    broker = Broker()
    taken = broker.bind("tcp://127.0.0.1:*")
    try:
        with pytest.raises(EndpointError):
            Server(config(tmp_path, bind=(taken,)))
        assert list(tmp_path.iterdir()) == [], "nor a store that nobody has used"
        open_store(tmp_path / "store").close()
        with pytest.raises(EndpointError):
            Server(config(tmp_path, bind=(taken,)))
        open_read_only(tmp_path / "store").close()
    finally:
        broker.stop()
    with serving(tmp_path), pytest.raises(StoreLocked):
        Server(config(tmp_path))
    open_read_only(tmp_path / "store").close()


def test_an_endpoint_of_a_broker_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="nonsense"):
        Server(config(tmp_path, broker="nonsense")).start()
    open_store(tmp_path / "store").close()


@pytest.mark.parametrize(
    ("name", "value"), [("lanes", 0), ("lanes", 201), ("max_attempts", 0), ("presence_first", 0), ("capacity", 1)]
)
def test_settings_that_cannot_work(name: str, value: int) -> None:
    with pytest.raises(CallerError, match=f"{name} is {value}; it must be at "):
        ServerConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("many", [1, 250])
def test_a_client_goes_on_at_the_next_server(tmp_path: Path, many: int) -> None:
    """What a server refuses because it ends is stored by the one that begins there, once."""
    endpoint, stored = f"tcp://127.0.0.1:{free_port()}", list[str]()
    server = Server(config(tmp_path, bind=(endpoint,), grace=120)).start()
    with raw_client(endpoint) as raw, raw_worker(endpoint, b"echo") as worker:
        raw.submit(b"echo", b"x")
        token, _ = worker.take()
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        until(lambda: raw.ask(b"titanic.request", b"echo", b"z")[0].startswith(tsp.ENDING))
        refused = server._context.refused["stopping"]

        def submit() -> None:
            with Client(endpoint, timeout=90) as client:
                if many == 1:
                    stored.append(client.submit("other", "y"))
                else:
                    stored.extend(client.submit_many("other", [b"%d" % number for number in range(many)]))

        submitting = threading.Thread(target=submit)
        submitting.start()
        until(lambda: server._context.refused["stopping"] > refused)
        worker.final(token)
        stopping.join()
    with serving(tmp_path, bind=(endpoint,)) as server:
        submitting.join()
        with Client(endpoint) as client:
            assert len({*stored}) == many
            assert client.stats()["services"] == {"other": many}


def test_what_a_handler_submits_goes_on_at_the_next_server(tmp_path: Path) -> None:
    """Its worker keeps the request over the restart: the attempt succeeds."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    server = Server(config(tmp_path, bind=(endpoint,), grace=120)).start()
    went, end = threading.Event(), threading.Event()

    def handle(frames: list[bytes]) -> bytes:
        went.set()
        assert end.wait(60)
        with Client(endpoint, timeout=90) as client:
            return client.submit("other", "y").encode()

    with raw_client(endpoint) as raw, raw_worker(endpoint, b"held") as held, Worker("echo", handle, endpoint):
        raw.submit(b"held", b"x")
        token, _ = held.take()  # what the server waits for
        uuid = raw.submit(b"echo", b"x").decode()
        assert went.wait(60)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        until(lambda: raw.ask(b"titanic.request", b"echo", b"z")[0].startswith(tsp.ENDING))
        refused = server._context.refused["stopping"]
        end.set()
        until(lambda: server._context.refused["stopping"] > refused)
        held.final(token)
        stopping.join()
        with serving(tmp_path, bind=(endpoint,)), Client(endpoint) as client:
            (other,) = client.wait(uuid, timeout=60)
            assert client.show(other.decode())["state"] == "waiting"
            assert client.show(uuid)["attempts"] == 1


def refused(client: Client) -> str:
    """Why a request is not accepted; nothing when it is, or on a slow machine."""
    try:
        client.submit("other", "y")
    except Refused as error:
        return str(error)
    except TimedOut:
        pass
    return ""


def test_a_client_is_told_that_it_is_shutting_down(tmp_path: Path) -> None:
    server = Server(config(tmp_path, grace=60)).start()
    endpoint = server.endpoints[0]
    with (
        Client(endpoint, timeout=2) as client,  # it waits this long for the next server
        raw_client(endpoint) as raw,
        raw_worker(endpoint, b"echo") as worker,
    ):
        raw.submit(b"echo", b"x")
        token, _ = worker.take()
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        refusal = until(lambda: refused(client))
        assert "shutting down" in refusal
        worker.final(token)
        stopping.join()


def test_whoever_waits_at_the_end_is_told_what_the_store_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not just that it is pending: the reader had not come to it yet."""
    asked, go = threading.Event(), threading.Event()
    answer = reader.read_replies

    def slowly(transaction: ReadTransaction, body: list[bytes], hides: Any, given: Any) -> tuple[list[bytes], int]:
        asked.set()
        assert go.wait(30)
        return answer(transaction, body, hides, given)

    monkeypatch.setattr(reader, "read_replies", slowly)
    monkeypatch.setattr(dispatcher_module, "DISMISS_MOST", 30)
    server = Server(config(tmp_path)).start()
    with raw_client(server.endpoints[0]) as raw:
        raw.send(b"titanic.wait", b"60", b"0" * 32)
        assert asked.wait(30)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        until(lambda: server.dispatcher.waiters.dismissing)
        go.set()
        assert raw.receive()[0].startswith(b"400 unknown")
        stopping.join()


def test_a_fault_in_what_is_told_to_the_broker_does_not_end_it(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        server.front.send_answers(42)  # type: ignore[arg-type]
        assert client.submit("echo", "x")
