"""The workers of a server: by process, with their slots and the requests that they have; who may see them."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import zmq
from support.access_files import AccessFiles
from support.cli_titanic import here
from support.each import each
from support.nodes import cluster
from support.postgres import needs_postgres
from support.processes import SUPPORT, Process
from support.raw_mdp import raw_client, raw_worker
from support.serving import QUICK, brokering, serving
from support.waiting import until

from broker import Worker, new_keys
from titanic import Client, Server
from titanic.protocol.documents import WorkersInfo
from titanic.services.server_stats import SEPARATE

NAME = f"{socket.gethostname()[:24]}:{os.getpid()}"
"""This process, as its workers call it."""


@contextmanager
def slots_worker(endpoint: str, *words: bytes) -> Iterator[zmq.Socket[bytes]]:
    """A worker of quick and slow, by PROTOCOL.md alone, that answers nothing."""
    with closing(zmq.Context.instance().socket(zmq.DEALER)) as dealer:
        dealer.linger = 0
        dealer.connect(endpoint)
        words = (b"titanic:1", b"titanic:slots=3", b"titanic:service=1:slow", *words)
        dealer.send_multipart([b"MDPW02", b"\1", b"quick", *words])
        assert dealer.poll(30_000)
        yield dealer


def in_hand(found: WorkersInfo) -> int:
    return sum(len(row["requests"]) for row in found["workers"] or ())


def test_workers_of_all_kinds(server: Server, client: Client) -> None:
    """An old socket without a name, a worker of this project, and one of several services with slots."""
    endpoint = server.endpoints[0]
    before = server.store.now_us()
    with (
        raw_worker(endpoint, b"echo") as old,
        slots_worker(endpoint, b"titanic:process=node7:4711/x"),
        Worker("upper", lambda frames: frames, endpoint, jobs=4, config=replace(QUICK, deploy="v2")),
        raw_client(endpoint) as caller,
    ):
        uuid, slow = client.submit("echo", b"secret"), client.submit("slow", b"secret")
        old.take()
        caller.send(b"quick", b"secret")
        found = until(
            lambda: said if in_hand(said := client.workers()) == 3 and len(said["workers"] or ()) == 3 else None
        )
        assert found["workers"] is not None
        rows = {row["name"]: row for row in found["workers"]}
        after = server.store.now_us()
    assert (found["omitted"], found["node"], found["reason"]) == (0, None, "")
    assert found["services"] == {"echo": 1, "quick": 3, "slow": 1, "upper": 4}
    assert rows.keys() == {"", "node7:4711", NAME}
    unnamed, named, ours = rows[""], rows["node7:4711"], rows[NAME]
    assert (unnamed["host"], unnamed["pid"], unnamed["services"], unnamed["slots"]) == ("", None, ["echo"], 1)
    assert (named["host"], named["pid"], named["services"], named["slots"]) == ("node7", 4711, ["quick", "slow"], 3)
    assert (ours["pid"], ours["services"], ours["slots"]) == (os.getpid(), ["upper"], 4)
    assert (unnamed["version"], named["version"], ours["version"]) == ("", "", "v2")
    assert [(one["uuid"], one["service"]) for one in unnamed["requests"]] == [(uuid, "echo")]
    assert {(one["uuid"], one["service"]) for one in named["requests"]} == {(slow, "slow"), ("", "quick")}
    for row in rows.values():
        assert before <= row["registered_at"] <= row["heard_at"] <= after
        assert "user" not in row
        assert all(row["registered_at"] <= one["started_at"] <= after for one in row["requests"])
    assert "secret" not in json.dumps(found)


@each("name", [b"titanic:process=\xff\n:1/x", b"titanic:process=a:b:" + b"9" * 40, b"titanic:process="])
def test_odd_names_are_shown_as_they_are(server: Server, client: Client, name: bytes) -> None:
    with slots_worker(server.endpoints[0], name):
        (row,) = until(client.workers)["workers"] or ()
    until(lambda: not client.workers()["workers"])
    assert (row["host"], row["pid"]) == (("\ufffd\n", 1) if b"\xff" in name else ("", None))
    assert row["name"] == name.removeprefix(b"titanic:process=").partition(b"/")[0].decode("ascii", "replace")


def test_workers_come_and_go_while_they_are_listed(server: Server, client: Client) -> None:
    """The list is read in another thread than the broker's."""
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            with slots_worker(server.endpoints[0]):
                pass

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            assert server.broker is not None
            server.broker.worker_reports(100)
            client.submit("quick", b"x")
        assert client.workers()["workers"] is not None
    finally:
        done.set()
        for thread in threads:
            thread.join()


# -- separate brokers -----------------------------------------------------------------------------------------


def test_a_separate_broker_reports_only_numbers(tmp_path: Path) -> None:
    with (
        brokering() as endpoint,
        serving(tmp_path, broker=endpoint),
        slots_worker(endpoint),
        Client(endpoint, timeout=30) as client,
    ):
        found = until(lambda: said if (said := client.workers())["services"] else None)
        assert found["workers"] is None
        assert found["reason"] == SEPARATE
        assert found["services"] == {"quick": 3, "slow": 1}
        said = here("workers", "--endpoint", endpoint)
        assert (said.code, said.err) == (0, f"titanic: {SEPARATE}\n")
        assert [line.split() for line in said.out.decode().splitlines()] == [
            ["SERVICE", "WORKERS"],
            ["quick", "3"],
            ["slow", "1"],
        ]


def test_another_projects_broker_knows_no_numbers(tmp_path: Path) -> None:
    endpoint, ends = f"ipc://{tmp_path}/broker.ipc", threading.Event()
    with (
        Process(SUPPORT / "rfc7_broker.py", endpoint, "2", output=tmp_path / "broker.out"),
        serving(tmp_path, broker=endpoint),
        Client(endpoint, timeout=30, version="0.1") as client,
        Worker("echo", lambda frames: frames if ends.wait(60) else [], endpoint, config=QUICK),
    ):
        client.submit("echo", b"x")
        until(lambda: client.workers()["services"].get("echo", 0) is None)
        assert client.workers()["reason"] == SEPARATE
        said = here("workers", "--endpoint", endpoint, "--mdp", "0.1")
        assert (said.code, said.err) == (0, f"titanic: {SEPARATE}\n")
        assert said.out.split() == [b"SERVICE", b"WORKERS", b"echo", b"some"]
        ends.set()


# -- access control -------------------------------------------------------------------------------------------

USERS = """
[users.hand]
keys = ["hand.key"]
work = ["mail.*", "shop"]
[users.metrics]
keys = ["metrics.key"]
metrics = true
[users.auditor]
keys = ["auditor.key"]
read = "all"
[users.sender]
keys = ["sender.key"]
submit = ["mail.*"]
read = "own"
"""


def test_who_sees_what(tmp_path: Path) -> None:
    files, keys, ends = AccessFiles(tmp_path / "access", USERS), {}, threading.Event()

    def waits(frames: list[bytes]) -> list[bytes]:
        assert ends.wait(60)
        return frames

    for name in ("hand", "metrics", "auditor", "sender"):
        new_keys(files.folder, name)
        keys[name] = {"key": files.secret(name), "server_key": files.server_key}
    with serving(tmp_path, access=files.path, key=files.key) as server:
        endpoint = server.endpoints[0]
        with (
            Worker("mail.send", waits, endpoint, jobs=2, config=QUICK, **keys["hand"]),
            Worker("shop", lambda frames: frames, endpoint, config=QUICK, **keys["hand"]),
            Client(endpoint, timeout=30, **keys["metrics"]) as metrics,
            Client(endpoint, timeout=30, **keys["auditor"]) as auditor,
            Client(endpoint, timeout=30, **keys["sender"]) as sender,
        ):
            until(lambda: metrics.workers()["services"] == {"mail.send": 2, "shop": 1})
            for client in (metrics, auditor):
                (row,) = client.workers()["workers"] or ()
                assert (row["name"], row["user"], row["services"]) == (NAME, "hand", ["mail.send", "shop"])
            uuid = sender.submit("mail.send", b"x")
            until(lambda: in_hand(metrics.workers()) == 1)
            for client, shown in ((metrics, ""), (auditor, uuid)):
                (row,) = client.workers()["workers"] or ()
                assert [(one["uuid"], one["service"]) for one in row["requests"]] == [(shown, "mail.send")]
            ends.set()
            found = sender.workers()
            assert found == {
                "workers": None,
                "services": {"mail.send": 2},
                "omitted": 0,
                "node": None,
                "reason": found["reason"],
            }
            assert found["reason"].endswith("may not see statistics; it needs metrics = true")
            options = ("--endpoint", endpoint, "--server-key", files.server_key, "--key-file")
            said = here("workers", *options, files.secret("sender"))
            assert (said.code, said.out.split()) == (0, [b"SERVICE", b"WORKERS", b"mail.send", b"2"])
            assert "needs metrics = true" in said.err
            said = here("workers", *options, files.secret("metrics"))
            assert [line.split()[:3] for line in said.out.decode().splitlines()] == [
                ["WORKER", "USER", "SLOTS"],
                [NAME, "hand", "3"],
            ]


# -- several nodes --------------------------------------------------------------------------------------------


@needs_postgres
def test_each_node_lists_its_own(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as nodes, slots_worker(nodes[0].endpoints[0]):
        until(lambda: all(client.workers()["node"] for client in nodes.clients))
        here, there = (client.workers() for client in nodes.clients)
        assert [row["services"] for row in here["workers"] or ()] == [["quick", "slow"]]
        assert there["workers"] == []
        assert here["node"] == there["node"] == socket.gethostname()


# -- the command ----------------------------------------------------------------------------------------------


def test_the_command(server: Server, client: Client) -> None:
    at = ("--endpoint", server.endpoints[0])
    assert here("workers", *at).out == b"WORKER  SLOTS  REQUESTS  REGISTERED  HEARD  SERVICES\n"
    with slots_worker(server.endpoints[0], b"titanic:process=node7:4711/x"), raw_client(server.endpoints[0]) as caller:
        uuid = client.submit("slow", b"secret")
        until(lambda: in_hand(client.workers()) == 1)
        caller.send(b"quick", b"secret")
        until(lambda: in_hand(client.workers()) == 2)
        document = here("workers", "--json", *at).json
        assert [one["uuid"] for one in document["workers"][0]["requests"]] == [uuid, ""]
        done = here("workers", *at)
    assert (done.code, done.err) == (0, "")
    assert "secret" not in done.out.decode()
    first, gap, last = done.out.decode().partition("\n\n")
    assert gap
    titles, row = (line.split() for line in first.splitlines())
    assert titles == ["WORKER", "SLOTS", "REQUESTS", "REGISTERED", "HEARD", "SERVICES"]
    assert row[:3] + row[-2:] == ["node7:4711", "3", "2", "quick", "slow"]
    titles, stored, plain = (line.split() for line in last.splitlines())
    assert titles == ["REQUEST", "RUNNING", "WORKER", "SERVICE"]
    assert [stored[0], *stored[-2:]] == [uuid, "node7:4711", "slow"]
    assert [plain[0], *plain[-2:]] == ["–", "node7:4711", "quick"]
    with Worker("echo", lambda frames: frames, server.endpoints[0], config=replace(QUICK, deploy="v2")):
        until(lambda: [one["services"] for one in client.workers()["workers"] or ()] == [["echo"]])
        titles, row = (line.split() for line in here("workers", *at).out.decode().splitlines())
    assert (titles[:3], row[:3]) == (["WORKER", "VERSION", "SLOTS"], [NAME, "v2", "1"])


def test_the_command_without_a_server(tmp_path: Path) -> None:
    done = here("workers", "--endpoint", f"ipc://{tmp_path}/nobody", "--timeout", "0.1")
    assert (done.code, done.out) == (3, b"")
