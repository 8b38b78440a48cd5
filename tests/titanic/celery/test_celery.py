"""Celery's names: the programs of the page as they stand there, and what each option becomes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import titanic
from titanic import Client, Server, TimedOut
from titanic.celery import Celery, MaxRetriesExceededError, chain, chord, group, shared_task
from titanic.errors import CallerError
from titanic.tasks import TaskFailed
from titanic.tasks.memory_queue import MemoryQueue

PAGE = (Path(titanic.__file__).parent / "celery/README.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))

app = Celery("shop")
CALLS: list[Any] = []


class Busy(Exception):
    pass


@app.task
def add(x, y):  # type: ignore[no-untyped-def]
    return x + y


@app.task(name="shop.total", priority=7, time_limit=30)
def total(numbers: list[int], more: int = 0) -> int:
    return sum(numbers) + more


@app.task(bind=True, max_retries=2, default_retry_delay=10, throws=(Busy,))
def flaky(self: Any, fails: int, how: str = "retry") -> list[Any]:
    CALLS.append(self.request.retries)
    if self.request.retries < fails:
        error = Busy("not yet")
        if how == "raise":
            raise error
        raise self.retry(exc=error if how == "exc" else None, countdown=60 if how == "later" else None)
    return [self.request.id, self.request.retries, self.name]


@app.task(autoretry_for=(Busy,), retry_backoff=5, retry_backoff_max=12, retry_kwargs={"max_retries": 3})
def auto(fails: int, kind: str = "busy") -> str:
    CALLS.append(kind)
    if len(CALLS) <= fails:
        raise Busy(kind) if kind == "busy" else LookupError(kind)
    return "done"


@app.cron("30 2 * * *", 1, 2)
@app.task
def nightly(x: int, y: int) -> int:
    return x + y


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    CALLS.clear()
    with app.testing() as queue:
        yield queue


def load(name: str, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A program of the page as a module, with this server."""
    path = folder / f"{name}.py"
    path.write_text(BLOCKS[name].replace("tcp://127.0.0.1:5555", server.endpoints[0]))
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_first_steps(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    tasks = load("tasks", server, tmp_path, monkeypatch)
    result = tasks.add.delay(4, 4)
    assert (result.ready(), result.state, result.result) == (False, "PENDING", None)
    with pytest.raises(TimedOut):
        result.get(timeout=0.01)
    with tasks.app.worker(jobs=4):
        assert result.get(timeout=30) == 8
        assert (result.ready(), result.successful(), result.failed(), result.result) == (True, True, False, 8)
        assert tasks.app.AsyncResult(result.id).get(timeout=30) == 8
        wrong = tasks.add.delay(4, "four")
        with pytest.raises(TaskFailed, match="TypeError: unsupported operand"):
            wrong.get(timeout=30)
        assert isinstance(wrong.get(propagate=False), TaskFailed)
        assert "in add" in wrong.traceback
        assert (wrong.state, wrong.failed()) == ("FAILURE", True)
        load("callers", server, tmp_path, monkeypatch)
        (tmp_path / "page").write_text("text")
        assert tasks.read.delay(str(tmp_path / "page")).get(timeout=30) == "text"
        result.forget()
        assert result.state == "PENDING"
    rows, _ = client.list(service="tasks.add")
    assert "celery:tasks:sum 7" in [row["key"] for row in rows]


SIDE_BY_SIDE = """
import json
import both
from celery.contrib.testing.worker import start_worker
from titanic.celery import AsyncResult

both.old.conf.update(result_backend="cache+memory://", broker_url="memory://")
here = {}
with start_worker(both.old, perform_ping_check=False, shutdown_timeout=60), both.new.worker(jobs=2):
    for per_cent in (0, 50, 100):
        both.PER_CENT["both.resize"] = per_cent
        results = [both.resize.delay(str(number)) for number in range(60)]
        assert [one.get(timeout=60) for one in results] == [f"small {number}" for number in range(60)]
        here[per_cent] = sum(isinstance(one, AsyncResult) for one in results)
print(json.dumps(here))
"""


def test_side_by_side(server: Server, tmp_path: Path) -> None:
    """In a process of its own: Celery changes its logging, for good."""
    (tmp_path / "both.py").write_text(BLOCKS["both"].replace("tcp://127.0.0.1:5555", server.endpoints[0]))
    env = {**os.environ, "PYTHONPATH": str(Path(titanic.__file__).parent.parent)}
    command = [sys.executable, "-c", SIDE_BY_SIDE]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    here = json.loads(done.stdout.splitlines()[-1])
    assert (here["0"], here["100"]) == (0, 60)
    assert 0 < here["50"] < 60


def test_options_of_a_call(queue: MemoryQueue) -> None:
    at = queue.now + timedelta(hours=1)
    row = queue.show(add.apply_async((1,), {"y": 2}, eta=at, expires=at + timedelta(hours=1), priority=9).id)
    assert (row["state"], row["priority"], row["service"]) == ("delayed", 9, f"{__name__}.add")
    assert row["not_before"] == pytest.approx(at.timestamp() * 1e6, abs=2)
    assert row["expires_at"] == pytest.approx((at.timestamp() + 3600) * 1e6, abs=60e6)
    row = queue.show(total.apply_async(([1],), countdown=60, expires=600).id)
    assert (row["service"], row["priority"], row["options"]["limit"]) == ("shop.total", 7, 30)
    assert row["expires_at"] - row["not_before"] == pytest.approx(540e6, abs=1e6)
    queue.has_worker = False
    past = add.apply_async((1, 2), expires=datetime.now(UTC) - timedelta(1))
    queue.advance(1)
    assert (past.state, past.ready()) == ("REVOKED", True)


def test_a_task_id_is_a_key(queue: MemoryQueue) -> None:
    first, second = (add.apply_async((1, number), task_id="order 7") for number in (1, 2))
    assert (first.id, first.ticket.uuid, first.get()) == ("order 7", second.ticket.uuid, 2)
    assert app.AsyncResult("order 7").get() == 2
    flow = chain(add.s(1, 2), add.s(3)).apply_async(task_id="flow 7")
    assert app.AsyncResult("flow 7").get() == flow.get() == 6
    assert app.AsyncResult("order 8").state == app.AsyncResult("0" * 32).state == "PENDING"


def test_retries(queue: MemoryQueue) -> None:
    result = flaky.delay(2)
    assert result.get() == [result.id, 2, f"{__name__}.flaky"]
    assert CALLS == [0, 1, 2]
    result = flaky.delay(1, how="later")
    queue.run()
    assert (result.state, queue.show(result.id)["due"] / 1e6 - queue.now.timestamp()) == (
        "RETRY",
        pytest.approx(60, abs=1),
    )
    CALLS.clear()
    with pytest.raises(MaxRetriesExceededError, match="was tried 3 times"):
        flaky.delay(9).get()
    with pytest.raises(Busy, match="not yet"):
        flaky.delay(9, how="exc").get()
    assert CALLS == [0, 1, 2] * 2
    CALLS.clear()
    with pytest.raises(Busy):
        flaky.delay(9, how="raise").get()
    assert CALLS == [0], "a task that raises is not tried again"
    with pytest.raises(MaxRetriesExceededError):
        flaky(1)
    assert flaky(0) == [None, 0, f"{__name__}.flaky"]


def test_automatic_retries(queue: MemoryQueue) -> None:
    begun = queue.now
    assert auto.delay(3).get() == "done"
    assert (queue.now - begun).total_seconds() == pytest.approx(5 + 10 + 12, rel=0.11)
    CALLS.clear()
    with pytest.raises(Busy):
        auto.delay(9).get()
    assert len(CALLS) == 4
    with pytest.raises(TaskFailed, match="LookupError"):
        auto.delay(9, kind="other").get()


def test_flows(queue: MemoryQueue) -> None:
    assert add.s(2).delay(4).get() == 6
    assert add.s(2, 3)() == 5
    assert (add.s(1, 2) | add.s(3).set(priority=9) | add.s(4))().get() == 10
    assert group([add.s(i, 1) for i in range(3)]).delay().get() == [1, 2, 3]
    assert chord([add.s(i, i) for i in range(3)])(total.s(more=1)).get() == 7
    assert chord((add.s(i, i) for i in range(3)), total.s())().get() == 6
    assert chain(add.s(4) | add.s(8))(4).get() == 16
    assert (add.s(1, 1) | (add.s(1) | add.s(1)))().get() == 4
    assert group(add.s(i) for i in range(3))(10).get() == [10, 11, 12]
    assert chord(group(add.s(i, i) for i in range(3)), total.s())().get() == 6
    assert (group(add.s(1, 1), chain(add.s(1, 2), add.s(3))) | total.s())().get() == 8


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda: add.apply_async((1, 2), queue="low"), "there is no option queue here; see titanic/celery/README.md"),
        (lambda: add.apply_async((1, 2), eta=datetime(2026, 11, 28)), "at is 2026-11-28T00:00:00; it has no time zone"),
        (lambda: app.task(rate_limit="10/m")(lambda: None), "there is no option rate_limit here"),
        (lambda: chain(add.s(1, 2), group(add.s(1, 2))), "a group cannot follow a task"),
        (group, "a chain or a group has no tasks"),
        (lambda: Celery("x", broker="redis://localhost"), "broker is redis://localhost; that is not a Titanic"),
        (lambda: add.delay(1), "missing a required argument: 'y'"),
        (lambda: total.delay("text"), "argument 'numbers' does not match its type"),
    ],
)  # fmt: skip
def test_what_has_no_equivalent(queue: MemoryQueue, call: Any, fault: str) -> None:
    with pytest.raises(CallerError, match=re.escape(fault)):
        call()


def test_names_that_are_missing() -> None:
    for call, fault in (
        (lambda: app.conf, "Celery.conf"),
        (lambda: add.si, "Task.si"),
        (lambda: add.s().link, "Signature.link"),
    ):
        with pytest.raises(AttributeError, match=f"^there is no {fault} here; see titanic/celery/README.md$"):
            call()
    assert not hasattr(app, "conf")


def test_shared_tasks_and_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(one.service, one.cron) for one in app.schedules] == [(f"{__name__}.nightly", "30 2 * * *")]
    monkeypatch.setattr(Celery, "latest", None)
    with pytest.raises(CallerError, match="shared_task has no app; none was made yet"):
        shared_task(lambda: None)
    other = Celery("other")

    @shared_task(bind=True)
    def named(self: Any) -> str:
        return str(self.name)

    with other.testing():
        assert named.delay().get() == named.name == f"{__name__}.named"
    included = Celery("included", include=["titanic.errors", "none.such"])
    with pytest.raises(ModuleNotFoundError):
        _ = included.handlers


def test_revoking(queue: MemoryQueue) -> None:
    result = add.delay(1, 2)
    result.revoke(terminate=True)
    assert result.state == "PENDING"
