"""`titanic status --watch` and `titanic health`."""

from __future__ import annotations

import json
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from support.cli_titanic import Running, here, running, serving
from support.each import each
from support.serving import serving as server_here
from support.waiting import until

from broker import RemoteError, Worker
from titanic.cli.status import Observation, judge
from titanic.client.client import Client
from titanic.errors import Refused
from titanic.services.named_services import MOST_SERVICES, NamedServices


def output(one: Running) -> str:
    """All that a command has printed, once it has ended."""
    assert one.process.stdout is not None
    return one.process.stdout.read().decode()


def fill(client: Client, uuids: list[str]) -> None:
    """Submit ever smaller requests until none is taken."""
    for size in (1 << 20, 50_000, 1000):
        with suppress(Refused):
            while True:
                uuids.append(client.submit("s", bytes(size)))


def test_a_store_that_refuses_or_fills_up_is_not_healthy() -> None:
    """`healthy: 0 waiting`, while requests of some size were refused."""
    told = {"disk_full": False, "accepting": True, "store": {"capacity": 1, "path": "x"}, "running": 0}
    assert judge(Observation(told), 2.0, None, None) == (0, [])
    refuses = Observation({**told, "refuses_for_room": True, "full_in": 0.0})
    assert judge(refuses, 2.0, None, None) == (2, ["the store refuses requests for lack of space"])
    fills = Observation({**told, "full_in": 5 * 3600.0 + 10})
    assert judge(fills, 2.0, None, None) == (1, ["at the current rate the store will be full in about 5 h"])
    assert judge(Observation({**told, "full_in": 90_000.0}), 2.0, None, None) == (0, [])
    code, (problem,) = judge(Observation({**told, "disk_full": True}), 2.0, None, None)  # an older server's document
    assert (code, problem.partition(";")[0]) == (2, "the disk of the store in x is full")


def test_what_fills_the_store(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as (_, endpoint),
        Client(endpoint) as client,
        Worker("small", lambda frames: frames, endpoint),
        Worker("large", lambda frames: [bytes(100_000)], endpoint),
    ):
        done = [client.submit(service, b"x") for service in ("small", "large", "small")]
        for uuid in done:
            client.wait(uuid, timeout=60)
        client.close(done[2])
        client.submit("absent", bytes(50_000))
        for where in (("--endpoint", endpoint), ("--store", tmp_path / "store")):
            found = here("status", "--json", *where).json["filled_by"]
            assert [tuple(row.values())[:4] for row in found] == [
                ("large", 0, 1, 0),
                ("absent", 1, 0, 0),
                ("small", 0, 1, 1),
            ]
            assert [row["bytes"] // 1000 for row in found] == [100, 50, 0]
        assert re.search(r"large +0 +1 +0 +9[78].* KiB\n", here("status", "--endpoint", endpoint).out.decode())


def test_watch_shows_it_anew_with_rates(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as (_, endpoint),
        running(tmp_path / "watch.log", "status", "--watch", "0.2", "--endpoint", endpoint) as watch,
        Client(endpoint) as client,
    ):
        assert watch.process.stdout is not None
        lines = iter(watch.process.stdout.readline, b"")
        assert re.fullmatch(rb"[-\d]{10} [:\d]{8}, every 0.2 s; Ctrl-C to stop\n", next(lines))
        client.submit("mail", b"x")
        until(lambda: b"since start: 1 accepted" in next(lines))
        rates = until(lambda: line if (line := next(lines)).startswith(b"per second: ") else None)
        words = re.fullmatch(
            rb"per second: [\d.]+ accepted, 0.0 dispatched, 0.0 succeeded, 0.0 failed, 0.0 closed\n", rates
        )
        assert words
        until(lambda: re.fullmatch(rb"mail +1 +0\n", next(lines)))
        watch.send(signal.SIGINT)
        assert watch.ends() == 0


def test_watch_as_json_has_a_line_each_time(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as (_, endpoint),
        running(tmp_path / "log", "status", "--watch", "0.1", "--json", "--endpoint", endpoint) as watch,
    ):
        assert watch.process.stdout is not None
        for _ in range(3):
            assert json.loads(watch.process.stdout.readline())["accepting"] is True


def test_watch_goes_on_without_a_server(tmp_path: Path) -> None:
    arguments = ("status", "--watch", "--timeout", "0.05", "--endpoint", "tcp://127.0.0.1:1")
    with running(tmp_path / "log", *arguments) as watch:
        watch.says("connection refused at tcp://127.0.0.1:1; tried for 50 ms")
        watch.send(signal.SIGINT)
        assert watch.ends() == 0
        assert output(watch) == "\n"


def at_leisure(endpoint: str) -> tuple[str, ...]:
    """How to ask on a machine that may be busy: an answer is not called slow."""
    return ("--endpoint", endpoint, "--timeout", "60")


def test_health(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, endpoint):
        at = at_leisure(endpoint)
        assert here("health", *at) == (0, b"healthy: 0 waiting, 0 running\n", "")
        for _ in range(2):
            here("submit", "s", "x", *at)
        assert re.fullmatch(rb"healthy: 2 waiting, the oldest for [\w. ]+, 0 running\n", here("health", *at).out)
        assert here("health", "--max-waiting", "2", "--max-age", "1000", *at).code == 0
        bad = here("health", "--max-waiting", "1", "--max-age", "0", *at)
        assert bad.code == 1
        assert re.fullmatch(
            rb"warning: 2 requests waiting, more than 1; the oldest request has waited [\w. ]+, longer than 0 s\n",
            bad.out,
        ), bad.out
        document = here("health", "--json", "--max-waiting", "1", *at).json
        assert document.pop("oldest") > 0
        problems = ["2 requests waiting, more than 1"]
        assert document == {"status": "warning", "problems": problems, "attention": [], "waiting": 2}


def test_health_of_a_full_store(tmp_path: Path) -> None:
    """It is well again as soon as there is room."""
    with serving(tmp_path, "--capacity", "16MiB") as (server, endpoint), Client(endpoint) as client:
        uuids: list[str] = []
        fill(client, uuids)
        bad = here("health", *at_leisure(endpoint))
        assert (bad.code, bad.out) == (2, b"critical: the store is full\n")
        assert b"closed kept; it is full\n" in here("status", "--endpoint", endpoint).out
        server.says(
            "ERROR titanic: cannot accept new requests: the store is full; close requests, or raise its capacity"
        )
        client.close(*uuids[:2])
        assert here("health", *at_leisure(endpoint)).code == 0
        server.says("INFO titanic: can accept new requests again")


def test_health_of_a_store_that_was_deleted(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, endpoint):
        assert here("health", *at_leisure(endpoint)).code == 0
        shutil.rmtree(tmp_path / "store")
        bad = here("health", *at_leisure(endpoint))
        fact = "the server still has the deleted file open, and anything stored now would be lost"
        text = f"the store in {tmp_path / 'store'} was deleted; {fact}; stop the server and restore a backup"
        assert (bad.code, bad.out) == (2, f"critical: {text}\n".encode())
        assert f"; {text}\n".encode() in here("status", "--endpoint", endpoint).out
        assert f"problem  server: {text}\n".encode() in here("doctor", *at_leisure(endpoint)).out
        with Client(endpoint) as client, pytest.raises(Refused, match=f"^not stored: {text}$"):
            client.submit("echo", "x")


def test_health_of_one_who_is_slow() -> None:
    slow = Observation({"disk_full": False, "accepting": True}, took=1.2, waiting=0)
    assert judge(slow, 2.0, None, None) == (1, ["slow: it took 1.2 s to answer"])
    assert judge(slow, 3.0, None, None) == (0, [])


def test_health_while_a_process_keeps_much_of_the_store() -> None:
    reader = {"pid": 7, "command": "", "age": 90.0, "pinned": 200 << 20}
    store = {"capacity": 1 << 30, "path": "titanic-data"}
    document = {"disk_full": False, "accepting": True, "readers": [reader], "store": store}
    told = "process 7 (unknown) has been reading the store for 90 s; 200.0 MiB cannot be reused until it ends"
    assert judge(Observation(document, waiting=0), 2.0, None, None) == (1, [told])
    reader["pinned"] = 20 << 20
    assert judge(Observation(document, waiting=0), 2.0, None, None) == (0, [])
    store["path"] = "postgresql://db/titanic"
    assert judge(Observation(document, waiting=0), 2.0, None, None)[0] == 1, "an old transaction in a database"


def test_health_of_nobody() -> None:
    done = here("health", "--timeout", "0.05", "--endpoint", "tcp://127.0.0.1:1")
    assert (done.code, done.err) == (2, "")
    assert done.out.startswith(b"critical: connection refused at tcp://127.0.0.1:1; ")
    document = here("health", "--json", "--timeout", "0.05", "--endpoint", "tcp://127.0.0.1:1").json
    assert (document["status"], document["waiting"], document["oldest"]) == ("critical", None, None)


def test_health_of_a_server_that_stands_still(tmp_path: Path) -> None:
    """It is asked once, and not for long."""
    with serving(tmp_path) as (server, endpoint):
        server.send(signal.SIGSTOP)
        done = here("health", "--timeout", "1", "--endpoint", endpoint)
        server.send(signal.SIGCONT)
        assert (done.code, done.err) == (2, "")
        assert done.out.startswith(b"critical: no answer from tcp://127.0.0.1:")
        assert re.search(rb"; waited [1-9](\.\d+)? s;", done.out)


@each("wrong", [("--max-waiting", "x"), ("--endpoint", "nonsense"), ("--nonsense",), ("more",)])
def test_health_that_is_asked_wrongly_is_unknown(wrong: tuple[str, ...]) -> None:
    assert here("health", *wrong).code == 3
    assert here("status", "--watch", "x").code == 2


def test_services_show_what_they_did_before_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, endpoint), Client(endpoint) as client:
        with Worker("echo", lambda frames: frames, endpoint):
            client.wait(client.submit("echo", b"x"), timeout=60)
        client.submit("absent", b"x")
        until(lambda: client.facts()["services"]["echo"]["succeeded"] == 1)
        server.send(signal.SIGTERM)
        assert server.ends() == 0
    with serving(tmp_path) as (_, endpoint):
        found = here("services", "--json", "--endpoint", endpoint).json
        assert (found["services"]["echo"]["succeeded"], found["services"]["absent"]["waiting"]) == (1, 1)
        assert (found["total"]["accepted"], found["incomplete"]) == (2, [])
        lines = here("services", "--endpoint", endpoint).out.decode().splitlines()
        assert [line.split()[0] for line in lines] == ["SERVICE", "absent", "echo"]
        assert here("check", "--store", tmp_path / "store", "--json").json["problems"] == []


def test_of_many_services_the_others_are_one_sum(tmp_path: Path) -> None:
    with server_here(tmp_path) as server, Client(server.endpoints[0]) as client:
        server._context.named = NamedServices(most=2)
        for number in range(5):
            client.submit(f"s{number}", b"x")
        where = "--endpoint", server.endpoints[0]
        assert here("status", "--json", *where).json["other"] == {"services": 3, "waiting": 3, "delayed": 0}
        assert "(others: 3)        3" in here("status", *where).out.decode()

        def waiting() -> list[str]:
            return [line.split()[1] for line in here("services", *where).out.decode().splitlines()[1:]]

        until(lambda: sorted(waiting()) == ["1", "1", "3", "?", "?", "?"])
        assert ", and 3 more" in here("doctor", "--store", tmp_path / "none", *where).out.decode()


def test_without_a_server_the_others_are_one_sum_too(tmp_path: Path) -> None:
    with server_here(tmp_path) as server, Client(server.endpoints[0]) as client:
        for number in range(MOST_SERVICES + 3):
            client.submit(f"s{number:04}", b"x")
        client.submit_batch("s1002", [b"x"] * 2)
        client.submit("s1001", b"x", delay=3600)
        client.set_service("s1000", paused=True)
    found = here("status", "--json", "--store", tmp_path / "store").json
    assert len(found["services"]) == MOST_SERVICES
    assert (found["services"]["s1002"], found["services"]["s1000"]) == (3, 1)
    assert found["other"] == {"services": 3, "waiting": 3, "delayed": 1}
    assert "(others: 3)        3" in here("status", "--store", tmp_path / "store").out.decode()


def test_errors_are_grouped_as_the_server_counted_them(tmp_path: Path) -> None:
    def fail(frames: list[bytes]) -> list[bytes]:
        raise RemoteError(500, f"OutOfStock: {frames[0].decode()} left")

    with serving(tmp_path) as (_, endpoint), Client(endpoint) as client, Worker("shop", fail, endpoint):
        uuids = [client.submit("shop", b"%d" % n, max_attempts=1) for n in range(3)]
        until(lambda: client.facts()["services"].get("shop", {}).get("failed") == 3)
        client.close(*uuids)
        (group,) = here("ls", "--group-errors", "--service", "shop", "--json", "--endpoint", endpoint).json
        assert (group["text"], group["failed"], group["retried"]) == ("OutOfStock: … left", 3, 0)
        assert group["sample"] in uuids
        lines = here("ls", "--group-errors", "--endpoint", endpoint).out.decode().splitlines()
        assert lines[1].split()[:3] == ["shop", "3", "0"]
        assert (
            here("ls", "--group-errors", "--text", "Stock", "--state", "expired", "--json", "--endpoint", endpoint).json
            == []
        )
        assert here("ls", "--group-errors", "--store", tmp_path / "store").code == 2
