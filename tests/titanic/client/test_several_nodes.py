"""A client of several nodes that share a database: it goes on where it was when its node is killed or stands still."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.cli_titanic import here as titanic
from support.ports import free_port
from support.postgres import needs_postgres, shared_server
from support.processes import SUPPORT, Process
from support.relay import relay
from support.serving import QUICK, config
from support.waiting import until

from broker import Worker, WorkerConfig, unreachable
from titanic import Client, InvalidRequest, Refused, Server
from titanic.store import LeaseConfig
from titanic.store.postgres.database_session import PATIENCE

pytestmark = needs_postgres


@pytest.fixture
def url() -> Iterator[str]:
    server = shared_server()
    name = server.new_store()
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
def here(url: str, tmp_path: Path) -> Iterator[str]:
    """A node in this process."""
    with Server(config(tmp_path, store=url)) as server:
        yield server.endpoints[0]


@contextmanager
def there(url: str, tmp_path: Path) -> Iterator[tuple[Process, str]]:
    """A node in a process of its own."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with Process(SUPPORT / "server_process.py", "serve", endpoint, url, output=tmp_path / "node.log") as node:
        until(lambda: not unreachable([endpoint]))
        yield node, endpoint


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints are tried in the order in which they are given, and a program that stands still is noticed soon."""
    monkeypatch.setattr("broker.io.dealer.shuffled", list)
    monkeypatch.setattr("broker.io.dealer.BEAT", 0.2)
    monkeypatch.setattr("broker.io.dealer.SILENCE", 2.0)
    monkeypatch.setattr("broker.client.LONGEST_POLL", 50)


@contextmanager
def waiting(client: Client, uuid: str, node: str) -> Iterator[list[list[bytes]]]:
    """The reply that the client gets, which is waiting for it at this node when the block begins."""
    replies: list[list[bytes]] = []
    thread = threading.Thread(target=lambda: replies.append(client.wait(uuid, 60)))
    thread.start()
    with Client(node, timeout=20) as other:
        until(lambda: other.stats()["waiting_clients"] == 1)
    yield replies
    thread.join(60)


def echo(frames: list[bytes]) -> list[bytes]:
    return frames


def test_its_node_is_killed(url: str, here: str, tmp_path: Path) -> None:
    """Between two requests, and while it waits; the worker was there, too."""
    with (
        there(url, tmp_path) as (node, first),
        Client(f"{first},{here}", timeout=20) as client,
        Worker("echo", echo, [first, here], config=QUICK) as worker,
    ):
        until(lambda: worker.registered)
        uuids = client.submit_many("echo", [b"0", b"1"])
        uuids += [client.submit("echo", "2"), client.submit("late", "3")]
        assert [client.wait(uuid, 20) for uuid in uuids[:3]] == [[b"0"], [b"1"], [b"2"]]
        with waiting(client, uuids[3], first) as replies:
            node.kill()
            late = Worker("late", echo, here, config=QUICK).start()
        late.stop()
        assert replies == [[b"3"]]
        uuids += client.submit_many("echo", [b"4", b"5"])
        for number, (uuid, reply) in enumerate(sorted(client.replies(uuids, timeout=30))):
            assert reply == [b"%d" % number], uuid
        client.close_many(uuids)
        assert client.stats()["store"]["requests"] == 0, "nothing is stored twice"


def test_its_node_stands_still(url: str, here: str, tmp_path: Path) -> None:
    with there(url, tmp_path) as (node, first), Client([first, here], timeout=20) as client:
        uuid = client.submit("late", "x")
        with waiting(client, uuid, first) as replies:
            os.kill(node.pid, signal.SIGSTOP)
            late = Worker("late", echo, here, config=QUICK).start()
        late.stop()
        assert replies == [[b"x"]]


def test_its_node_ends(url: str, here: str, tmp_path: Path) -> None:
    with there(url, tmp_path) as (node, first), Client([first, here], timeout=20) as client:
        uuids = [client.submit("late", "x")]
        ending = threading.Thread(target=node.terminate)
        ending.start()
        while ending.is_alive():
            uuids.append(client.submit("late", "x"))
        uuids.append(client.submit("late", "x"))
        assert len(set(uuids)) == len(uuids) == client.stats()["store"]["requests"]


def test_its_node_is_drained(url: str, here: str, tmp_path: Path) -> None:
    never = WorkerConfig(reconnect_first=1000, reconnect_most=1000)
    with (
        Server(config(tmp_path, store=url)) as node,
        Client([node.endpoints[0], here], timeout=20) as client,
        Worker("echo", echo, [node.endpoints[0], here], config=never) as worker,
    ):
        until(lambda: worker.registered)
        uuid = client.submit("late", "x")
        with waiting(client, uuid, node.endpoints[0]) as replies:
            node.drain()
            late = Worker("late", echo, [node.endpoints[0], here], config=never).start()
        late.stop()
        assert replies == [[b"x"]]
        assert client.wait(client.submit("echo", "y"), 20) == [b"y"]
        until(lambda: node.drained)


def test_it_does_not_drain_whichever_it_meets() -> None:
    """Nor another one, when it asks again."""
    with (
        Client("tcp://127.0.0.1:9,tcp://127.0.0.1:10") as client,
        pytest.raises(InvalidRequest, match="no node is named"),
    ):
        client.drain()
    done = titanic("drain", "--endpoint", "tcp://127.0.0.1:9,tcp://127.0.0.1:10")
    assert (done.code, "name the NODE to drain" in done.err) == (2, True)


def accepted(client: Client, body: str) -> str | None:
    """The UUID of a request; None: its node has not tried its database again since that is back, which it does once a
    second, or its services have not heard of that yet."""
    try:
        return client.submit("echo", body)
    except Refused as refused:
        if not re.search("can't be reached|use another node", str(refused)):
            raise
    return None


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_its_node_has_no_database_for_three_leases(url: str, tmp_path: Path, how: str) -> None:
    """Everybody who knows another node goes there, and is refused nothing. The node comes back by itself."""
    lease = 4.0
    settings = {"store": url, "lease": LeaseConfig.of(lease)}
    with ExitStack() as stack:
        line = stack.enter_context(relay(f"tcp://127.0.0.1:{shared_server().port}"))
        port = line.endpoint.rpartition(":")[2]
        through = (
            shared_server()
            .url(url.partition("?")[0].rpartition("/")[2], tcp=True)
            .replace(f":{shared_server().port}/", f":{port}/")
        )
        node = stack.enter_context(Server(config(tmp_path, **(settings | {"store": through}))))
        other = stack.enter_context(Server(config(tmp_path, **settings)))
        for server in (node, other):
            until(lambda server=server: not server.store.notifications.alone)
        until(lambda: node.store.membership.lapses_at < math.inf)  # its lease knows of the other one, too
        endpoints = [node.endpoints[0], other.endpoints[0]]
        workers = [stack.enter_context(Worker("echo", echo, endpoints, config=QUICK)) for _ in range(3)]
        until(lambda: node.workers == {b"echo": 3})
        client, waiter, plain = (stack.enter_context(Client(endpoints, timeout=90)) for _ in range(3))
        late = waiter.submit("late", "x")
        stack.callback(line.go_on)
        with waiting(waiter, late, node.endpoints[0]) as replies:
            began, took, pause = time.monotonic(), list[float](), threading.Event()
            line.down() if how == "refused" else line.stall()
            while time.monotonic() < began + 3 * lease or not node.elsewhere:
                asked, body = time.monotonic(), b"%d" % len(took)
                assert client.wait(client.submit("echo", body), 90) == [body]
                took.append(time.monotonic() - asked)
                pause.wait(0.05)  # it takes time, and no more of the processor than it must
                if node.elsewhere:
                    assert plain.call("echo", "plain") == [b"plain"]
            print(f"{how}: {len(took)} requests one after another, the slowest in {max(took):.2f} s")
            assert max(took) < PATIENCE, "none waits until a connection that is silent is given up by itself"
            until(lambda: other.workers == {b"echo": 3})
            stack.enter_context(Worker("late", echo, other.endpoints[0], config=QUICK))
        assert replies == [[b"x"]]
        line.up() if how == "refused" else line.go_on()
        until(lambda: not node.elsewhere)
        with Client(node.endpoints[0], timeout=90) as at_node:
            uuid = until(lambda: accepted(at_node, "again"))
            assert at_node.wait(uuid, 90) == [b"again"]
        assert all(worker.registered for worker in workers)
