"""What the server says of what it has to do: waiting is what is neither running nor delayed, in all places."""

from __future__ import annotations

import time
from pathlib import Path

from support.nodes import cluster
from support.raw_mdp import raw_worker
from support.waiting import until

from titanic import Client, Server
from titanic.util import ids


def submitted_us(uuid: str) -> int:
    parsed = ids.parse(uuid.encode())
    assert parsed is not None
    return ids.time_of(parsed)


def test_waiting_is_what_is_neither_running_nor_delayed(server: Server, client: Client) -> None:
    """A job of an hour counted as one that waits, and as the oldest."""
    with raw_worker(server.endpoints[0], b"echo") as worker:
        client.submit("echo", "running")
        worker.take()
        oldest, _ = (client.submit("echo", body) for body in ("one", "two"))
        client.submit("echo", "delayed", delay=1000)
        until(lambda: client.stats()["running"] == 1)
        told = client.stats(services=True)
        store = told["store"]
        assert (store["waiting"], told["running"], store["delayed"], store["requests"]) == (2, 1, 1, 4)
        assert told["services"] == {"echo": 2}
        row = told["by_service"]["echo"]
        assert (row["waiting"], row["running"], row["delayed"]) == (2, 1, 1)
        assert row["oldest"] == submitted_us(oldest)
        figures = server.snapshot().services["echo"]
        assert (figures.waiting, figures.running) == (2, 1)
        assert abs(figures.oldest - (time.time() - submitted_us(oldest) / 1e6)) < 60


def test_what_runs_and_is_closed_hides_nothing_that_waits(server: Server, client: Client) -> None:
    with raw_worker(server.endpoints[0], b"echo") as worker:
        closed = client.submit("echo", "running")
        worker.take()
        client.close(closed)
        client.submit("echo", "waits")
        told = client.stats()
        assert (told["store"]["waiting"], told["running"], told["services"]) == (1, 0, {"echo": 1})


def test_a_service_where_all_run_has_none_that_waits(server: Server, client: Client) -> None:
    with raw_worker(server.endpoints[0], b"echo") as worker:
        client.submit("echo", "running")
        worker.take()
        until(lambda: client.stats()["running"] == 1)
        assert client.stats()["services"] == {"echo": 0}
        row = client.stats(services=True)["by_service"]["echo"]
        assert (row["waiting"], row["oldest"]) == (0, None)
        assert server.snapshot().services["echo"].oldest == 0.0


def test_waiting_is_over_all_nodes(tmp_path: Path) -> None:
    """What runs at another node counted as waiting, at each node that was asked."""
    with cluster(tmp_path, 2) as nodes, raw_worker(nodes[1].endpoints[0], b"echo") as worker:
        here, client = nodes[0], nodes.clients[0]
        client.submit("echo", "running")
        worker.take()
        client.submit("echo", "waits")
        until(lambda: here.snapshot().services["echo"].waiting == 1)
        told = client.stats(services=True)
        assert (told["store"]["waiting"], told["running"], told["services"]) == (1, 1, {"echo": 1})
        assert told["by_service"]["echo"]["waiting"] == 1
