"""An app of a Django project: connections between jobs, and submission on commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from support import django_shop as shop
from support.waiting import until

from titanic import Failed, Retry, Server, current
from titanic.django import DjangoTasks, submit_on_commit
from titanic.tasks import FailedRequest, InvalidArguments, TaskFailed
from titanic.tasks.memory_queue import MemoryQueue

app = DjangoTasks(name="dj", timeout=30)


@app.task
def connected(how: str = "") -> bool:
    before = shop.query()
    if how == "fail":
        raise Failed("it fails")
    if how == "open":
        transaction.atomic().__enter__()
        shop.query()
    if how == "retry" and current().attempt == 1:
        raise Retry(after=0)
    return before


@app.task
async def connected_async() -> bool:
    return await sync_to_async(shop.query)()


@app.task
def add(a: int, b: int = 1) -> int:
    return a + b


@app.service("dj.raw")
def raw(frames: list[bytes]) -> str:
    return f"{shop.query()}"


reports: list[bool] = []


@app.failed
def report(request: FailedRequest, error: TaskFailed) -> None:
    reports.append(shop.query())


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with app.testing() as queue:
        yield queue
    connections.close_all()


def test_connections_are_closed_after_each_job(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "endpoint", server.endpoints[0])
    monkeypatch.setattr(app, "_client", None)
    with app.worker(jobs=1):
        tasks: list[Any] = [connected, connected_async]
        for task in tasks:
            assert [task.submit().reply(timeout=30) for _ in range(3)] == [False] * 3
        with pytest.raises(TaskFailed):
            connected.submit("fail").reply(timeout=30)
        assert connected.submit("retry").reply(timeout=30) is False
        connected.submit("open").reply(timeout=30)
        assert connected.submit().reply(timeout=30) is False
        assert [app.client.wait(app.client.submit("dj.raw", "x"), 30) for _ in range(3)] == [[b"False"]] * 3
        with pytest.raises(TaskFailed):
            connected.submit("fail").reply(timeout=30)
        assert until(lambda: reports[1:]) == [False]


def test_a_transaction_of_the_caller_stays_open(queue: MemoryQueue) -> None:
    with transaction.atomic():
        ticket = connected.submit()
        queue.run()
        assert ticket.reply() is True
        connection = connections["default"]
        assert connection.in_atomic_block
        assert connection.connection is not None


def test_a_task_is_submitted_when_the_transaction_is_committed(queue: MemoryQueue) -> None:
    with transaction.atomic():
        submit_on_commit(add, 1, b=2)
        assert queue.requests() == []
    queue.run()
    (row,) = queue.requests()
    assert add.ticket(row["uuid"]).reply() == 3
    submit_on_commit(add.options(priority=9), 5)  # no transaction
    assert [row["priority"] for row in queue.requests()] == [4, 9]


def test_after_a_rollback_there_is_no_task(queue: MemoryQueue) -> None:
    with transaction.atomic():
        submit_on_commit(add, 1)
        transaction.set_rollback(True)
    assert queue.requests() == []


def test_wrong_arguments_are_an_error_at_once(queue: MemoryQueue) -> None:
    with transaction.atomic():
        with pytest.raises(InvalidArguments, match="argument 'a' does not match its type"):
            submit_on_commit(add, "one")  # type: ignore[arg-type]
        with pytest.raises(InvalidArguments, match="missing a required argument: 'a'"):
            submit_on_commit(add)  # type: ignore[call-arg]
    assert queue.requests() == []
