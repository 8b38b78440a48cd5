"""What an attempt may take, through real sockets, with the broker inside and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support.raw_mdp import raw_client, raw_worker
from support.serving import QUICK, brokering, serving
from support.waiting import until

from broker import BrokerConfig, MultiWorker
from titanic import Client, RequestFailed, Server

WIRE = {"heartbeat_interval": 0.5, "liveness": 60}
"""The workers here send no heartbeats: they must not be taken for dead."""


@pytest.fixture(params=["integrated", "stand-alone"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    settings: dict[str, Any] = {"max_attempts": 2, "presence_most": 0.1, "limit_grace": 0.1}
    if request.param == "integrated":
        with serving(tmp_path, wire=BrokerConfig(**WIRE), **settings) as server:
            yield server
        return
    endpoint = f"ipc://{tmp_path}/broker.ipc"
    with brokering(endpoint, **WIRE), serving(tmp_path, broker=endpoint, **settings) as server:
        yield server


def test_an_attempt_past_its_limit_is_tried_with_another_worker_beside_it(server: Server, client: Client) -> None:
    uuid = client.submit("echo", "x", limit=1, max_attempts=30, retry_first=0.01)
    with raw_worker(server.endpoints[0], b"echo") as slow:
        token, _ = slow.take()
        with raw_worker(server.endpoints[0], b"echo") as quick:
            attempts = 1

            def replied() -> list[bytes] | None:
                nonlocal attempts
                if quick.look():  # again if a slow machine was not in time
                    attempts += 1
                    quick.final(quick.token, b"in time")
                return client.reply(uuid)

            assert until(replied) == [b"in time"]
            assert client.show(uuid)["attempts"] == attempts >= 2
        slow.final(token, b"late")
        client.submit("echo", "y")
        assert slow.take()[1] == [b"y"]
        assert client.reply(uuid) == [b"in time"]


def test_an_attempt_that_is_left_at_its_limit(server: Server, client: Client) -> None:
    """Its late reply counts, and no other worker gets it before it has ended."""
    uuid = client.submit("echo", "x", limit=0.01, on_limit="leave", max_attempts=3, retry_first=0.01)
    with raw_worker(server.endpoints[0], b"echo") as slow:
        token, _ = slow.take()
        with raw_worker(server.endpoints[0], b"echo") as other:
            overdue = client.submit("echo", "y", limit=0.1, max_attempts=1)
            other.take()
            with pytest.raises(RequestFailed, match="no reply within its limit"):
                client.wait(overdue, 30)
            assert client.show(uuid)["state"] == "running"
            slow.final(token, b"late")
            assert client.wait(uuid, 30) == [b"late"]
            assert client.show(uuid)["attempts"] == 1
            assert client.show(uuid)["on_limit"] == "leave"


def test_behind_a_worker_that_hangs_nothing_fails_and_nothing_queues(server: Server, client: Client) -> None:
    with raw_worker(server.endpoints[0], b"echo") as worker, raw_client(server.endpoints[0]) as broker:
        hung = client.submit("echo", "hangs", limit=0.05, max_attempts=1)
        token, _ = worker.take()
        with pytest.raises(RequestFailed, match=r"no reply within its limit of 0\.05 s"):
            client.wait(hung, 30)
        behind = client.submit_batch("echo", ["a", "b"], limit=0.05, max_attempts=1)
        late = client.submit("echo", "late", ttl=0.2)
        with pytest.raises(RequestFailed, match="expired"):
            client.wait(late, 30)
        assert b'"waiting": 0' in broker.ask(b"mmi.stats", b"")[0]
        assert [client.show(uuid)["attempts"] for uuid in behind] == [0, 0]
        worker.final(token, b"late")
        bodies = []
        for _ in behind:
            token, body = worker.take()
            worker.final(token, b"done")
            bodies += body
        assert bodies == [b"a", b"b"]
        until(lambda: client.stats()["running"] == 0)


def test_a_limit_that_passes_in_the_brokers_queue_is_no_attempt(server: Server, client: Client) -> None:
    """The worker is busy with what somebody else asked the broker for."""
    with raw_client(server.endpoints[0]) as other, raw_worker(server.endpoints[0], b"echo") as worker:
        other.send(b"echo", b"not stored")
        worker.take()
        uuid = client.submit("echo", "x", limit=0.1, max_attempts=1)
        until(lambda: client.stats()["dispatch"]["returned"] >= 2)
        assert client.show(uuid)["attempts"] == 0


def test_what_is_closed_while_it_runs_goes_to_no_second_worker(server: Server, client: Client) -> None:
    uuid = client.submit("echo", "closed")
    with raw_worker(server.endpoints[0], b"echo") as first:
        first.take()
        client.close(uuid)
        with raw_worker(server.endpoints[0], b"echo") as second:
            client.submit("echo", "next")
            token, body = second.take()
            assert body == [b"next"]  # the dispatcher has told the broker of the closed one before
            first.leave()
            until(lambda: client.stats()["running"] == 1)
            second.final(token)
            client.submit("echo", "last")
            assert second.take()[1] == [b"last"]


@pytest.mark.parametrize("limit", [None, 0.05], ids=["closed", "overdue"])
def test_what_is_not_wanted_any_more_is_not_sent_to_the_next_broker(tmp_path: Path, limit: float | None) -> None:
    endpoint = f"ipc://{tmp_path}/broker.ipc"
    with (
        serving(tmp_path, broker=endpoint, presence_most=0.1, limit_grace=0.1),
        Client(endpoint, timeout=1, retries=60) as client,
    ):
        with brokering(endpoint, **WIRE):
            uuid = client.submit("echo", "x", **({} if limit is None else {"limit": limit, "max_attempts": 1}))
            with raw_worker(endpoint, b"echo") as worker:
                worker.take()
                if limit is None:
                    client.close(uuid)
                else:
                    with pytest.raises(RequestFailed, match="no reply within its limit"):
                        client.wait(uuid, 30)
        with brokering(endpoint, **WIRE), raw_worker(endpoint, b"echo") as worker:
            client.submit("echo", "next")
            assert worker.take()[1] == [b"next"]
            assert client.stats()["running"] == 1


def test_what_waits_for_a_slot_of_a_busy_worker_has_not_begun(server: Server, client: Client) -> None:
    """Its limit passes while another service has the only slot: that is no attempt."""
    begun, go = Event(), Event()

    def slow(frames: list[bytes]) -> list[bytes]:
        begun.set()
        assert go.wait(60)
        return frames

    services = {"slow": slow, "quick": lambda frames: frames}
    with MultiWorker(services, server.endpoints[0], config=QUICK):
        first = client.submit("slow", "1")
        assert begun.wait(60)
        second = client.submit("quick", "2", limit=0.3, max_attempts=100, retry_first=0.01)
        until(lambda: client.stats()["dispatch"]["returned"] > 1)
        assert client.show(second)["attempts"] == 0
        go.set()
        assert client.wait(first, 30) == [b"1"]
        assert client.wait(second, 30) == [b"2"]
