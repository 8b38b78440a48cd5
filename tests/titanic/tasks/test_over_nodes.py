"""Tasks and schedules over servers that share a database, whichever node is asked; flows: test_flows_served.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.nodes import Nodes, cluster
from support.postgres import needs_postgres
from support.waiting import until

from titanic import Client, UnknownRequest, current
from titanic.errors import RequestFailed
from titanic.schedules import Schedule, Scheduler
from titanic.schedules.scheduler import pause_schedule, paused_schedules
from titanic.tasks import Tasks

pytestmark = needs_postgres

SOON = 60


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with cluster(tmp_path, 2) as nodes:
        yield nodes


def test_a_task_is_submitted_here_and_executed_there(nodes: Nodes) -> None:
    here, there = (server.endpoints[0] for server in nodes.servers)
    app = Tasks(there, name="shop", timeout=30)

    @app.task
    def resize(path: str, width: int = 80) -> str:
        return f"{width}-{path}"

    with app.worker(jobs=4), Client(here, timeout=30) as client:
        uuids = [client.submit("shop.resize", b'{"args": ["%d.png"]}' % number) for number in range(10)]
        assert [client.wait(uuid, SOON) for uuid in uuids] == [[b'"80-%d.png"' % number] for number in range(10)]


def test_each_tick_is_one_request_whichever_nodes_its_schedulers_ask(nodes: Nodes) -> None:
    schedule = Schedule("beat", "beats", every=1)
    schedulers = [Scheduler(client, [schedule]) for client in nodes.clients]
    threads = [threading.Thread(target=one.run) for one in schedulers]
    with ExitStack() as stack:
        look = stack.enter_context(Client(nodes[0].endpoints[0], timeout=30))
        for thread in threads:
            thread.start()
        try:
            until(lambda: len(look.list(service="beats")[0]) >= 3, SOON)
            pause_schedule(look, "beat")
            assert "beat" in paused_schedules(nodes.clients[1], ["beat"])
        finally:
            for one in schedulers:
                one.stop()
            for thread in threads:
                thread.join()
        keys = [row["key"] for row in look.list(service="beats")[0]]
    assert len(keys) == len(set(keys)) >= 3
    assert all(key.startswith("cron:beat:") for key in keys)


def test_a_task_is_cancelled_and_tells_its_progress_from_another_node(nodes: Nodes) -> None:
    here, there = (server.endpoints[0] for server in nodes.servers)
    begun, ended = threading.Event(), threading.Event()
    app = Tasks(there, name="films", timeout=30)

    @app.task
    def encode(path: str) -> None:
        request = current()
        request.progress(3, 10, path)
        begun.set()
        until(lambda: request.cancelled, SOON)
        ended.set()

    with ExitStack() as stack:
        stack.callback(app.client.disconnect)
        stack.enter_context(app.worker())
        ticket = encode.submit("a.mov")
        with Client(here, timeout=30) as elsewhere:
            assert begun.wait(SOON)
            until(lambda: elsewhere.show(ticket.uuid).get("progress", {}).get("done") == 3, SOON)
            elsewhere.close(ticket.uuid)
            assert ended.wait(SOON)
            with pytest.raises((UnknownRequest, RequestFailed)):
                elsewhere.wait(ticket.uuid, SOON)
