"""`@app.failed`: called once for each request of a task that has failed for good, whatever ended it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.cli_titanic import running
from support.waiting import until

from titanic import Client, Failed, InvalidRequest, Server
from titanic.errors import CallerError
from titanic.tasks import FailedRequest, TaskFailed, Tasks
from titanic.tasks.memory_queue import MemoryQueue

app = Tasks(name="shop")
reports: list[tuple[FailedRequest, TaskFailed]] = []
refusals: list[str] = []


@app.task(max_attempts=2)
def typo(name: str) -> str:
    return name.uper()  # type: ignore[attr-defined, no-any-return]


@app.task
def give_up(name: str) -> str:
    raise Failed(f"{name} is gone")


@app.task
def fine(name: str) -> str:
    return name


@app.failed
def report(request: FailedRequest, error: TaskFailed) -> None:
    if refusals:
        raise OSError(refusals.pop())
    reports.append((request, error))


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    reports.clear()
    with app.testing() as queue:
        yield queue


def test_the_last_attempt(queue: MemoryQueue) -> None:
    ticket = typo.options(key="k").submit("it")
    queue.run()
    assert reports == []
    queue.advance(60)
    ((request, error),) = reports
    row = queue.show(ticket.uuid)
    names = ("uuid", "service", "state", "key", "submitted_at", "finished_at", "attempts", "reason")
    assert [getattr(request, name) for name in names] == [row[name] for name in names]  # type: ignore[literal-required]
    assert (request.state, request.attempts, request.key) == ("failed", 2, "shop.typo:k")
    assert (error.type, error.state) == ("builtins.AttributeError", "failed")
    assert "return name.uper()" in error.traceback
    assert str(error) == request.reason


def test_other_ends(queue: MemoryQueue) -> None:
    give_up.submit("it")
    fine.options(delay=60, ttl=1).submit("late")
    fine.submit("in time").reply()
    fine.options(delay=60).submit("closed").close()
    queue.advance(120)
    assert [(request.service, request.state, str(error)) for request, error in reports] == [
        ("shop.give_up", "failed", "it is gone"),
        ("shop.fine", "expired", reports[1][0].reason),
    ]
    assert reports[1][1].traceback == ""


def test_steps_of_flows_schedules_and_many(queue: MemoryQueue) -> None:
    fine.step("it").then(give_up).submit()
    give_up.map(["a", "b"])
    give_up.options(on_failed="elsewhere").submit("c")
    queue.advance(120)
    assert sorted(str(error) for _, error in reports) == ["a is gone", "b is gone", "it is gone"]
    every = Tasks(name="every")
    seen: list[str] = []
    every.failed(lambda request, error: seen.append(request.key))
    task = every.every(3600)(every.task(service="every.task")(give_up_always))
    with every.testing() as ticking:
        ticking.advance(timedelta(hours=1))
    assert task.service == "every.task"
    assert len(seen) == 1
    assert seen[0].startswith("cron:every.task:")


def give_up_always() -> None:
    raise Failed("as ever")


def test_a_function_that_raises_is_called_again(queue: MemoryQueue) -> None:
    refusals.append("no network")
    give_up.submit("it")
    queue.advance(60)
    assert [str(error) for _, error in reports] == ["it is gone"]
    assert [row["attempts"] for row in queue.requests("done")] == [2]


def test_there_is_one_function() -> None:
    with pytest.raises(CallerError, match="declared twice"):
        app.failed(report)

    async def later(request: FailedRequest, error: TaskFailed) -> None: ...

    with pytest.raises(CallerError, match="make it a plain function"):
        Tasks().failed(later)


def test_a_request_that_is_none(queue: MemoryQueue) -> None:
    uuid = queue.submit("shop.failed", b'{"args": []}')
    queue.run()
    assert "this is not a failed request" in queue.show(uuid)["reason"]


APP = """
import os
import time
from pathlib import Path

from titanic.tasks import FailedRequest, TaskFailed, Tasks

app = Tasks(name="shop")


@app.task(max_attempts=2, retry_first=0.05)
def typo() -> None:
    nothing


@app.task(max_attempts=1)
def die() -> None:
    os.kill(os.getpid(), 9)


@app.task(max_attempts=1, limit=0.2)
def hang() -> None:
    time.sleep(600)


@app.task(ttl=0.2, delay=1000)
def late() -> None: ...


@app.failed
def report(request: FailedRequest, error: TaskFailed) -> None:
    with Path("reports").open("a") as reports:
        reports.write(f"{request.uuid} {request.state} {request.service} {len(error.traceback)}\\n")
"""


def test_whatever_ended_it(server: Server, client: Client, tmp_path: Path) -> None:
    (tmp_path / "failed_shop.py").write_text(APP.replace('"reports"', f'"{tmp_path}/reports"'))
    options = {"on_failed": "shop.failed"}
    with running(
        *(tmp_path / "log", "worker", "failed_shop:app", "--endpoint", server.endpoints[0], "--watchdog", "0.2"),
        PYTHONPATH=str(tmp_path),
    ):
        asked = {
            "shop.typo": client.submit("shop.typo", "{}", max_attempts=2, retry_first=0.05, **options),
            "shop.die": client.submit("shop.die", "{}", max_attempts=1, **options),
            "shop.hang": client.submit("shop.hang", "{}", max_attempts=1, limit=0.2, **options),
            "shop.late": client.submit("shop.late", "{}", ttl=0.2, delay=1000, **options),
        }
        reports = tmp_path / "reports"
        until(lambda: reports.exists() and len(reports.read_text().splitlines()) == len(asked))
        assert client.retry(asked["shop.typo"]) == 1
        until(lambda: [row["state"] for row in client.list(service="shop.failed")[0]] == ["done"] * (len(asked) + 1))
    lines = [line.split() for line in reports.read_text().splitlines()]
    assert Counter((line[2], line[0]) for line in lines) == Counter([*asked.items(), ("shop.typo", asked["shop.typo"])])
    assert {line[2]: line[1] for line in lines} == dict.fromkeys(asked, "failed") | {"shop.late": "expired"}
    assert {line[2] for line in lines if int(line[3])} == {"shop.typo"}


@pytest.mark.parametrize(
    ("target", "fault"), [("mmi.x", "on_failed: requests for mmi."), ("", "on_failed must be the name of a service")]
)
def test_a_service_that_there_cannot_be(client: Client, target: str, fault: str) -> None:
    with pytest.raises(InvalidRequest, match=fault):
        client.submit("upper", "x", on_failed=target)


def test_it_is_shown(client: Client) -> None:
    shown = client.show(client.submit("upper", "x", on_failed="told", delay=1000))
    assert (shown["on_failed"], shown["options"]) == ("told", {})
