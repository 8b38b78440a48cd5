"""titanic.Client against a Titanic that is there, that is not, and that comes late."""

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.each import each
from support.ports import free_port
from support.processes import SUPPORT, Process, run_fork
from support.raw_mdp import raw_worker
from support.serving import QUICK, config, serving
from support.waiting import until

from broker import Broker, BrokerConfig, Pipeline, RemoteError, Worker, finish
from titanic import Client, InvalidRequest, Refused, Server, TimedOut, UnknownRequest
from titanic.client.calls import BlockingWire
from titanic.errors import CallerError
from titanic.protocol import tsp
from titanic.protocol.answers import check
from titanic.store import MIN_CAPACITY
from titanic.store.lmdb.store import LmdbStore

UNKNOWN = "0123456789abcdef0123456789abcdef"


pytestmark = pytest.mark.settings(max_attempts=1)


def free_endpoint() -> str:
    """Where nobody is."""
    return f"tcp://127.0.0.1:{free_port()}"


def test_submit_wait_reply_close(client: Client, echo: Worker) -> None:
    uuid = client.submit("echo", "text", b"bytes")
    assert client.wait(uuid, 30) == [b"text", b"bytes"]
    assert client.wait(uuid) == client.reply(uuid) == client.reply(uuid.upper()) == [b"text", b"bytes"]
    client.close(uuid)
    client.close(uuid, UNKNOWN)
    with pytest.raises(
        UnknownRequest, match=f"unknown UUID {uuid}; it was closed, deleted after its retention time, or never accepted"
    ):
        client.reply(uuid)


FORK = """
import os
import sys
from titanic import Client

client = Client(sys.argv[1], timeout=30)
client.submit_many("absent", ["before"])
if not os.fork():
    client.submit_many("absent", ["in the child"])
    client.submit("absent", "in the child")
    client.disconnect()
    os._exit(0)
assert os.wait()[1] == 0
client.submit("absent", "behind")
"""


def test_a_fork_has_connections_of_its_own(server: Server, client: Client) -> None:
    code, _, err = run_fork(FORK, server.endpoints[0])
    assert (code, err) == (0, "")
    assert client.stats()["store"]["requests"] == 4


def test_no_body_is_one_empty_frame(client: Client, echo: Worker) -> None:
    assert client.wait(client.submit("echo"), 30) == [b""]


def test_a_body_of_all_that_the_broker_takes(tmp_path: Path) -> None:
    """Each way to send it: what stands around it does not count. With a byte more it is refused at once."""
    most = 70_000
    long = "s" * 255
    options: Any = {"key": "k" * 255, "ttl": 1e6 + 1 / 3, "delay": 0.5, "limit": 1e6, "retry_first": 1.5, "priority": 9}
    with serving(tmp_path, wire=BrokerConfig(max_body=most)) as server, Client(server.endpoints[0]) as client:
        ways: list[Callable[[bytes], Any]] = [
            lambda body: client.submit("echo", body),
            lambda body: client.submit(long, body[:10], body[10:], **options),
            lambda body: client.submit_batch("echo", [body]),
            lambda body: client.submit_many("echo", [b"x", body, b"y"]),
            lambda body: client.submit_many("echo", [[body[:10], body[10:]]]),
            lambda body: check(finish(client._own.calls.ask(tsp.REQUEST, "echo", body))),
        ]
        for send in ways:
            assert send(bytes(most))
            with pytest.raises(InvalidRequest, match="70001 bytes"):
                send(bytes(most + 1))
        with pytest.raises(InvalidRequest, match="99903 frames; at most 99900 can be sent"):
            client.submit("echo", *[b""] * 99_901)
        with Worker("echo", lambda frames: frames, server.endpoints[0], config=QUICK):
            uuids = [row["uuid"] for row in client.list(service="echo")[0]]
            assert all(not isinstance(reply, Exception) for _, reply in client.replies(uuids, 30))


def test_wait_in_vain(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.client.calls.LEAST_LOOK", 30.0)  # a busy server is not taken for one that is away
    uuid = client.submit("absent", "x")
    with pytest.raises(TimedOut, match=rf"no reply to {uuid} yet; waited 50 ms, it is waiting; ask again later"):
        client.wait(uuid, timeout=0.05)
    with pytest.raises(TimedOut):
        client.wait(uuid, timeout=0)
    assert client.reply(uuid) is None


def test_a_wait_in_vain_tells_of_the_last_error(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.client.calls.LEAST_LOOK", 30.0)

    def fail(_: list[bytes]) -> bytes:
        raise ValueError("no such\npicture")

    with Worker("fails", fail, server.endpoints[0], config=QUICK):
        uuid = client.submit("fails", "x", retry_first=600, max_attempts=2)
        until(lambda: client.show(uuid)["state"] == "delayed")
        fact = "it is delayed, 1 attempt failed, the last one with: ValueError: no such picture"
        with pytest.raises(TimedOut, match=fact):
            client.wait(uuid, timeout=0.05)


def test_the_time_out_is_for_all_tries_unless_they_are_counted(tmp_path: Path) -> None:
    with Client(f"ipc://{tmp_path}/nobody", timeout=6) as client:
        assert client._own.calls.patience == 6
    with Client(f"ipc://{tmp_path}/nobody", timeout=6, retries=1) as client:
        assert client._own.calls.patience == 12
    with Client(f"ipc://{tmp_path}/nobody", timeout=0.5) as client:
        assert client._own.calls.timeout == client._own.calls.patience == 0.5


def test_connections_that_are_dropped_are_closed(server: Server, echo: Worker) -> None:
    """Also when they are collected together with what is to close them, and before it."""
    older: Any = Pipeline(server.endpoints[0], timeout=30)
    assert list(older.map("echo", [b"x"])) == [[b"x"]]
    wire: Any = BlockingWire(server.endpoints[0], 30, 0, "0.2", None)
    wire._many = older
    wire._connections.append(older)
    wire.itself = wire
    known = weakref.ref(wire)
    del wire, older
    gc.collect()  # a socket that is not closed complains, and that is an error
    assert known() is None


def test_pages_of_a_list(client: Client) -> None:
    uuids = client.submit_many("a", [b"x"] * 7)
    uuids += client.submit_many("b", [b"x"])
    first, after = client.list(limit=5)
    second, end = client.list(limit=5, after=after)
    assert [row["uuid"] for row in first + second] == uuids
    assert end is None
    assert [row["uuid"] for row in client.list(service="b")[0]] == uuids[-1:]
    assert client.list(state="done") == ([], None)
    newest, after = client.list(limit=5, newest=True)
    assert [row["uuid"] for row in newest + client.list(limit=5, newest=True, after=after)[0]] == uuids[::-1]
    assert client.list(text="nowhere") == ([], None)


def test_show(client: Client, echo: Worker) -> None:
    uuid = client.submit("echo", "12345", "")
    client.wait(uuid, 30)
    row = client.show(uuid)
    assert (row["state"], row["service"], row["attempts"]) == ("done", "echo", 1)
    assert (row["body_frames"], row["body_bytes"], row["reply_frames"], row["reply_bytes"]) == (2, 5, 2, 5)
    assert row["submitted_at"] <= row["dispatched_at"] <= row["finished_at"]
    look = client.look(uuid, 3)
    assert (look.info, look.body, look.reply) == (row, [b"123"], [b"123"])
    assert client.look(uuid).body == [b"12345", b""]
    assert client.look(uuid, None)[1:] == ([b"12345", b""], [])
    many = client.submit("parked", *[b"x"] * 1500, bytes(3 << 20))
    assert client.look(many, None).body == [*[b"x"] * 1500, bytes(3 << 20)]
    for ask in (client.show, client.look):
        with pytest.raises(UnknownRequest):
            ask(UNKNOWN)


def test_the_servers_clock(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time()
    assert before - 1e-6 <= client.clock() <= time.time()
    monkeypatch.setattr(LmdbStore, "now_us", lambda store: 1_000_000)
    assert client.clock() == 1.0
    assert b"now must be true or false" in client.call("titanic.list", '{"now": 1}')[0]


def test_what_the_caller_did_wrong(client: Client) -> None:
    for wrong in (
        lambda: client.submit("", "x"),
        lambda: client.submit("mmi.service", "x"),
        lambda: client.submit("a\nb", "x"),
        lambda: client.reply("../../etc/passwd"),
        lambda: client.reply(""),
        lambda: client.close("x"),
        lambda: client.show("x"),
        lambda: client.list(limit=0),
        lambda: client.list(state="gone"),
        lambda: client.submit("echo", 7),  # type: ignore[arg-type]
        lambda: client.call("", "x"),
        lambda: client.close_many(["x"]),
    ):
        with pytest.raises(InvalidRequest):
            wrong()
    with pytest.raises(CallerError, match="nonsense"), Client("nonsense") as other:
        other.stats()


@each(
    ("call", "fault"),
    [
        (lambda client: client.submit("s", "x", key=b"x"), "key is b'x'; it must be a string"),
        (lambda client: client.submit_batch("s", ["x"], keys=[b"x"]), "keys is b'x'; it must be a string"),
        (lambda client: client.submit("s", "x", delay="1h"), "delay must be a number of seconds from 0 to ten years"),
        (
            lambda client: client.submit("s", "x", delay=b"1"),
            "delay is b'1'; it must be a number or, if it is a ",
        ),
        (
            lambda client: client.submit("s", "x", delay=datetime.now(UTC)),  # type: ignore[arg-type]
            "delay is .*; it must be a number or, if it is a time, a timedelta; for a point in time use at=",
        ),
        (
            lambda client: client.submit("s", "x", at=datetime(2026, 11, 28)),
            r"at is 2026-11-28T00:00:00; it has no time zone; give it one: datetime.now\(UTC\) \+ ",
        ),
        (
            lambda client: client.submit("s", "x", at=timedelta(1)),  # type: ignore[arg-type]
            "at is .*; it must be a datetime with a time zone",
        ),
        (
            lambda client: client.submit("s", "x", at=datetime.max.replace(tzinfo=UTC)),
            "at must be a time in seconds since 1970, at most ten years from now",
        ),
        (lambda client: client.list(service=b"s"), "service is b's'; it must be a string"),
        (lambda client: client.purge("done", older_than=1e11), "older_than must be a number of seconds from 0 to 10 0"),
        (lambda client: client.wait(UNKNOWN, "1"), "timeout is '1'; it must be a number of seconds, or a timedelta"),
        (lambda client: client.wait(UNKNOWN, math.nan), "timeout is nan; it must be a number of seconds"),
        (lambda client: list(client.replies([UNKNOWN], "1")), "timeout is '1'; it must be a number of seconds"),
        (lambda client: Client(timeout=None), "timeout is None; it must be a number of seconds"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_value_is_told_with_what_is_right(client: Client, call: Callable[[Client], object], fault: str) -> None:
    with pytest.raises(CallerError, match=f"^{fault}"):
        call(client)


@each("option", ["key_for", "ttl", "delay", "limit", "retry_first", "retry_most"])
def test_a_span_is_ten_years_at_most(client: Client, option: Any) -> None:
    too_long, not_finite = f"{option} must be a number of seconds.* ten years", f"{option} is (inf|nan); "
    for value, fault in ((timedelta(days=4000), too_long), (math.inf, not_finite), (math.nan, not_finite)):
        with pytest.raises(InvalidRequest, match=f"^{fault}"):
            client.submit("absent", "x", key="k", **{option: value})


def test_spans_may_be_timedeltas(client: Client, echo: Worker) -> None:
    hour = timedelta(hours=1)
    uuid = client.submit("echo", "x", delay=hour, ttl=2 * hour, limit=hour)
    row = client.show(uuid)
    assert (row["state"], row["options"]) == ("delayed", {"limit": 3600})
    assert row["expires_at"] - row["not_before"] == pytest.approx(3600e6, abs=1e6)
    assert client.purge("delayed", older_than=hour) == 0
    done = client.submit_batch("echo", ["x"], delay=timedelta())[0]
    assert client.wait(done, hour) == [b"x"]
    with Client(client.endpoint, timeout=hour) as other:
        assert dict(other.replies([done], hour)) == {done: [b"x"]}


def test_a_time_to_start_at(client: Client, echo: Worker) -> None:
    zone = timezone(timedelta(hours=-9))
    start = datetime.now(zone) + timedelta(hours=1)
    row = client.show(client.submit("echo", "x", at=start))
    assert (row["state"], row["not_before"]) == ("delayed", pytest.approx(start.timestamp() * 1e6, abs=2))
    assert client.wait(client.submit("echo", "x", at=datetime(1970, 1, 1, tzinfo=UTC)), 30) == [b"x"]
    (many,) = client.submit_many("echo", ["x"], at=start)
    assert client.show(many)["not_before"] == row["not_before"]


def test_to_wait_without_limit(client: Client, echo: Worker) -> None:
    uuid = client.submit("echo", "x")
    assert client.wait(uuid, math.inf) == [b"x"]
    assert dict(client.replies([uuid], math.inf)) == {uuid: [b"x"]}
    with Client(client.endpoint, timeout=math.inf) as patient:
        assert patient.wait(patient.submit("echo", "y")) == [b"y"]
        assert len(patient.submit_many("echo", ["y"])) == 1


def test_threads_share_a_client(server: Server, client: Client, echo: Worker) -> None:
    """One waits for a long time, others come, ask and go: nobody disturbs anybody, and no connection stays."""
    uuid, ended = client.submit("absent", "x"), threading.Event()

    def wait() -> None:
        with pytest.raises(UnknownRequest):
            client.wait(uuid, 60)
        ended.set()

    def live(number: int) -> None:
        own = client.submit("echo", str(number))
        assert client.wait(own, 30) == [b"%d" % number]
        many = client.submit_many("echo", [b"%d" % number] * 3)
        assert [reply for _, reply in client.replies(many, 30)] == [[b"%d" % number]] * 3
        client.close_many([own, *many])
        lived.append(number)

    lived: list[int] = []
    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: client.stats()["waiting_clients"] == 1)
    threads = [threading.Thread(target=live, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert sorted(lived) == list(range(8))
    assert not ended.is_set(), "who waits is not disturbed"
    assert len(client._threads._wires) == 2, "connections of threads that have ended are closed"
    client.close(uuid)
    thread.join(30)
    assert ended.is_set()
    assert client.stats()["store"]["requests"] == 0


def test_a_client_is_closed_while_others_wait(server: Server, client: Client) -> None:
    """They hear of it, and so does who comes later."""
    shared, heard = Client(server.endpoints[0], timeout=30), []
    uuid = client.submit("absent", "x")

    def wait() -> None:
        for use in (lambda: shared.wait(uuid, 60), lambda: shared.submit("absent", "x"), lambda: shared.call("s", "x")):
            with pytest.raises(InvalidRequest, match="the client is closed"):
                use()
        with pytest.raises(InvalidRequest, match="the client is closed"):
            shared.submit_many("absent", ["x"])
        heard.append(threading.get_ident())

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: client.stats()["waiting_clients"] == 1)
    shared.disconnect()
    thread.join(30)
    wait()
    assert len(heard) == 2


def test_call_stores_nothing(client: Client, echo: Worker) -> None:
    assert client.call("echo", "x") == [b"x"]
    with pytest.raises(RemoteError, match="as you wish"):
        client.call("echo", "fail")
    assert client.stats()["store"]["requests"] == 0


def test_a_full_store_is_a_refusal(tmp_path: Path) -> None:
    with serving(tmp_path, capacity=MIN_CAPACITY) as server, Client(server.endpoints[0]) as client:
        with pytest.raises(Refused, match="store full"):
            client.submit("echo", bytes(MIN_CAPACITY))
        with pytest.raises(Refused, match="store full"):
            client.submit_many("echo", [bytes(MIN_CAPACITY // 16)] * 20)


def test_a_service_that_is_not_titanic() -> None:
    broker = Broker()
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with (
        broker,
        Worker("titanic.submit", lambda frames: b"hello?", endpoint, config=QUICK),
        Client(endpoint) as client,
        pytest.raises(Refused, match="the answer is not from Titanic"),
    ):
        client.submit("echo", "x")


@pytest.mark.parametrize("many", [False, True])
def test_a_submission_that_goes_on_at_a_server_of_an_earlier_version(many: bool) -> None:
    """It does not know an option that the one that ended knew."""
    broker = Broker()
    endpoint = broker.bind("tcp://127.0.0.1:*")
    uuid, seen = b"0" * 32, list[bytes]()

    def submit(frames: list[bytes]) -> list[bytes]:
        seen.append(frames[0])
        if len(seen) == 1:
            return [b"500 shutting down: try again in a moment"]
        return [b"400 unknown option 'tracestate'"] if b"tracestate" in frames[0] else [b"200", uuid]

    options = {"trace": f"00-{7:032x}-{9:016x}-01", "tracestate": "a=1"}
    with broker, Worker("titanic.submit", submit, endpoint, config=QUICK), Client(endpoint, timeout=60) as client:
        found = client.submit_many("x", ["y"], **options) if many else [client.submit("x", "y", **options)]
    assert found == [uuid.decode()]
    assert b"trace" in seen[2]


def test_nobody_answers() -> None:
    endpoint = free_endpoint()
    fact = rf"^no answer from {endpoint}; waited \d\S* m?s, connection refused at {endpoint}; "
    with Client(endpoint, timeout=0.05, retries=1) as client:
        for ask in (
            lambda: client.submit("echo", "x"),
            lambda: client.wait(UNKNOWN),
            lambda: client.wait(UNKNOWN, 0.1),
            lambda: client.submit_many("echo", [b"x"]),
            lambda: list(client.replies([UNKNOWN], 0.1)),
            client.stats,
            lambda: client.call("echo", "x"),
        ):
            with pytest.raises(TimedOut, match=fact + "is it running, and is this its endpoint\\?"):
                ask()
        with pytest.raises(TimedOut, match="the request did not arrive"):
            client.submit("echo", "x")
        with pytest.raises(TimedOut, match="the request did not arrive"):
            client.submit_many("echo", ["x"])
        with pytest.raises(TimedOut, match=r"is this its endpoint\?$"):
            client.stats()


def test_what_was_sent_may_have_arrived() -> None:
    """The broker is there, and the queue says nothing."""
    broker = Broker(BrokerConfig())
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with (
        broker,
        raw_worker(endpoint, b"titanic.submit"),
        Client(endpoint, timeout=1, retries=0) as client,
        pytest.raises(TimedOut, match="the request may have arrived nevertheless"),
    ):
        client.submit("echo", "x")


def test_a_broker_without_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, so the client can say what is missing; once the queue is there, so is the answer."""
    broker = Broker()
    endpoint = broker.bind("tcp://127.0.0.1:*")
    monkeypatch.setattr("titanic.client.calls.LEAST_LOOK", 30.0)
    with broker, Client(endpoint, timeout=2, retries=0) as client:
        for ask, service in (
            (lambda: client.submit("echo", "x"), "titanic.submit"),
            (lambda: client.submit_many("echo", [b"x"]), "titanic.submit"),
            (client.stats, "titanic.stats"),
        ):
            fact = rf"the broker there has no queue \(no worker of {service}\); is it running, "
            with pytest.raises(TimedOut, match=rf"^no answer from {endpoint}; waited \d\S* m?s, {fact}"):
                ask()
        with serving(tmp_path, broker=endpoint), Client(endpoint, timeout=30) as patient:
            assert patient.stats()


def test_wait_does_not_take_much_longer_than_it_was_told() -> None:
    with Client(free_endpoint(), timeout=30, retries=30) as client:
        for wait in (
            lambda: client.wait(UNKNOWN, 0.2),
            lambda: client.wait(UNKNOWN, 1.2),
            lambda: list(client.replies([UNKNOWN], 0.2)),
        ):
            began = time.monotonic()
            with pytest.raises(TimedOut, match="no answer from"):
                wait()
            assert time.monotonic() - began < 20


def test_a_server_that_comes_late(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/titanic.ipc"
    uuids: list[str] = []

    def submit() -> None:
        with Client(endpoint, timeout=0.2, retries=200) as client:
            uuids.append(client.submit("echo", "x"))
            uuids.extend(client.submit_many("echo", [b"y"]))

    thread = threading.Thread(target=submit)
    thread.start()
    with serving(tmp_path, bind=(endpoint,)):
        thread.join(60)
        assert len(uuids) == 2


def test_waiting_outlasts_a_server_that_is_away(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/titanic.ipc"
    settings = config(tmp_path, bind=(endpoint,))
    server = Server(settings).start()
    with Client(endpoint, timeout=1, retries=4) as hasty, Client(endpoint, timeout=60) as client:
        uuid = client.submit("echo", "x")
        replies: list[object] = []
        server.stop()

        def wait() -> None:
            with Client(endpoint, timeout=3, retries=0) as other:  # a busy machine answers within that, once
                replies.append(other.wait(uuid, 60))
                replies.append(dict(other.replies([uuid], 60)))

        thread = threading.Thread(target=wait)
        thread.start()
        with pytest.raises(TimedOut):
            hasty.reply(uuid)  # longer than the other one has for a question
        with serving(tmp_path, bind=(endpoint,)):
            assert client.reply(uuid) is None
            with raw_worker(endpoint, b"echo") as worker:
                worker.final(worker.take()[0], b"late")
                thread.join()
    assert replies == [[b"late"], {uuid: [b"late"]}]


def test_a_uuid_may_have_dashes(client: Client, echo: Worker) -> None:
    uuid, other = client.submit("echo", "x"), client.submit("absent", "x")
    dashed, pending = str(UUID(uuid)), str(UUID(other))
    assert client.wait(dashed, 30) == client.reply(dashed) == [b"x"]
    assert dict(client.replies([dashed], 30)) == {dashed: [b"x"]}
    assert client.show(dashed)["uuid"] == uuid
    assert client.retry(dashed, pending) == 0
    assert [row["uuid"] for row in client.list(after=dashed)[0]] == [other]
    with pytest.raises(TimedOut):
        client.wait(pending, 0.01)
    client.close(dashed)
    client.close_many([pending])
    for gone in (dashed, pending):
        with pytest.raises(UnknownRequest):
            client.reply(gone)


def test_a_large_body_is_compared_with_what_the_broker_takes(tmp_path: Path) -> None:
    """Each way to send one: the broker would end the connection without a word."""
    endpoint = f"ipc://{tmp_path}/b"
    large = b"x" * (3 << 20)
    with Client(endpoint, timeout=30) as client:
        with serving(tmp_path, bind=(endpoint,), wire=BrokerConfig(max_body=1 << 20)):
            for send in (
                lambda: client.submit("s", large),
                lambda: client.submit("s", large[: 1 << 20], "and a little more"),
                lambda: client.submit_batch("s", [large]),
                lambda: client.submit_many("s", ["x", large]),
                lambda: client.call("s", large),
            ):
                with pytest.raises(InvalidRequest, match=r"body has \d+ bytes; the broker at .* at most 1048576; send"):
                    send()
        with serving(tmp_path, bind=(endpoint,), wire=BrokerConfig(max_body=4 << 20)):
            assert client.submit("s", large), "it was started with another limit"


def test_what_another_broker_takes_is_its_own_affair(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/b"
    with (
        Process(SUPPORT / "rfc7_broker.py", endpoint, "0.5", output=tmp_path / "broker.out"),
        Worker("echo", lambda frames: frames, endpoint, config=replace(QUICK, versions=("0.1",))),
        Client(endpoint, timeout=30, version="0.1") as client,
    ):
        assert client.call("echo", b"x" * (3 << 20)) == [b"x" * (3 << 20)]
