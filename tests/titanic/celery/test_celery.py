"""Celery's names: the programs of the page as they stand there, and what each option becomes."""

from __future__ import annotations

import inspect
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
from support.processes import IN_ITS_FOLDER

import titanic
from titanic import Client, Server, TimedOut
from titanic.celery import (
    CONF,
    IGNORED,
    AsyncResult,
    Celery,
    MaxRetriesExceededError,
    Task,
    chain,
    chord,
    crontab,
    group,
    options_of,
    shared_task,
)
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


@app.task(autoretry_for=(Exception,), max_retries=0, time_limit=1)
def once() -> None: ...


@app.task
def note(reason: str, text: str) -> None:
    CALLS.append((reason, text))


@app.task
def bad(x: Any) -> None:
    raise ValueError("bad")


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


def test_a_task_without_retries_is_attempted_once(queue: MemoryQueue) -> None:
    """Also after its limit and a worker's death; any other task has ten attempts at least."""
    once.delay()
    add.delay(1, 2)
    assert [row["max_attempts"] for row in queue.requests()] == [1, 10]


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
        assert tasks.add.apply_async((2, 2), countdown=0.1, expires=600, task_id="sum 7").get(timeout=30) == 4
        (mornings,) = load("beat", server, tmp_path, monkeypatch).app.schedules
        assert (mornings.when, mornings.service) == ("30 6 * * mon-fri Europe/Berlin", "tasks.add")
        load("test_tasks", server, tmp_path, monkeypatch).test_add()
        (tmp_path / "page").write_text("text")
        assert tasks.read.delay(str(tmp_path / "page")).get(timeout=30) == "text"
        result.forget()
        assert result.state == "PENDING"
        later = tasks.add.apply_async((1, 2), countdown=600)
        later.forget()
        assert client.show(later.id)["state"] == "delayed", "only what has ended is forgotten"
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
        assert all(isinstance(one, AsyncResult) != ("-" in one.id) for one in results)
    assert both.resize.apply_async(("x",), countdown=0.1).get(timeout=60) == "small x"
print(json.dumps(here))
"""


def test_side_by_side(server: Server, tmp_path: Path) -> None:
    """In a process of its own: Celery changes its logging, for good."""
    (tmp_path / "both.py").write_text(BLOCKS["both"].replace("tcp://127.0.0.1:5555", server.endpoints[0]))
    env = {**os.environ, **IN_ITS_FOLDER, "PYTHONPATH": str(Path(titanic.__file__).parent.parent)}
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


def test_a_retry_that_the_task_has_no_attempts_for_says_so(queue: MemoryQueue) -> None:
    @app.task(bind=True, default_retry_delay=0)
    def often(self: Any) -> None:
        CALLS.append(self.request.retries)
        raise self.retry(exc=Busy("not yet"), max_retries=20)

    with pytest.raises(TaskFailed, match="often has max_retries=20 in retry; it was tried 10 times, and was declared"):
        often.delay().get()
    assert CALLS[-1] == 9


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
        (lambda: add.apply_async((1, 2), shadow="low"), "there is no option shadow here; see titanic/celery/README.md"),
        (lambda: app.conf.update(worker_pool="gevent"), "there is no setting worker_pool here; see titanic/celery/"),
        (lambda: setattr(app.conf, "task_time_limit", 5), "task_time_limit is set too late; "),
        (lambda: setattr(app.conf, "task_serializer", "pickle"), "arguments and replies are JSON, never pickle"),
        (lambda: app.send_task("none.such"), "there is no task none.such here"),
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
        (lambda: app.control, "Celery.control"),
        (lambda: add.replace, "Task.replace"),
        (lambda: add.s().clone, "Signature.clone"),
        (lambda: app.conf.worker_pool, "Conf.worker_pool"),
    ):
        with pytest.raises(AttributeError, match=f"^there is no {fault} here; see titanic/celery/README.md$"):
            call()
    assert not hasattr(app, "control")


def test_shared_tasks_and_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(one.service, one.cron) for one in app.schedules] == [(f"{__name__}.nightly", "30 2 * * *")]
    monkeypatch.setattr(Celery, "latest", None)
    with pytest.raises(CallerError, match="there is no app; none was made yet"):
        shared_task(lambda: None)
    other = Celery("other", task_acks_late=True, task_time_limit=30)
    assert (other.conf.task_acks_late, other.conf.task_time_limit) == (True, 30)
    with pytest.raises(CallerError, match="there is no setting task_cls here; see titanic/celery"):
        Celery("wrong", task_cls="shop:Task")

    @shared_task(bind=True, autoretry_for=(Busy,), default_retry_delay=0, retry_jitter=False)
    def named(self: Any) -> str:
        return str(self.name)

    with other.testing():
        result = named.delay()
        assert result.get() == AsyncResult(result.id).get() == named.name == f"{__name__}.named"
    included = Celery("included", include=["titanic.errors", "none.such"])
    with pytest.raises(ModuleNotFoundError):
        _ = included.handlers


def test_immutable_signatures_and_links(queue: MemoryQueue) -> None:
    assert (add.s(1, 2) | add.si(10, 20) | add.s(3))().get() == 33
    assert (group(add.s(1, 1), add.s(2, 2)) | add.si(4, 5))().get() == 9
    assert add.si(2, 3).delay(9).get() == 5
    assert add.apply_async((2, 2), link=add.s(16)).get() == 20
    linked = add.s(2, 2)
    linked.link(add.s(8))
    linked.link(add.si(1, 1))
    assert linked.delay().get() == 2
    failing = flaky.s(1, how="raise").on_error(note.s("late"))
    with pytest.raises(Busy):
        failing.delay().get()
    queue.run()
    assert CALLS[-1][1] == "late"
    assert "not yet" in CALLS[-1][0]


@pytest.mark.parametrize(
    ("flow", "errbacks"),
    [
        (lambda: chord([add.s(1, 1), bad.s(2)], total.s().on_error(note.s("a"))), "a"),
        (lambda: chord([add.s(1, 1)], bad.s().on_error(note.s("a"))), "a"),
        (lambda: chord([bad.s(1).on_error(note.s("a")), bad.s(2)], total.s().on_error(note.s("b"))), "ab"),
        (lambda: group(add.s(1, 1), bad.s(2).on_error(note.s("a"))), "a"),
        (lambda: group((add.s(1, 1) | bad.s()).on_error(note.s("a")), add.s(1, 1).on_error(note.s("b"))), "a"),
        (lambda: (add.s(1, 1) | bad.s()).on_error(note.s("a")) | add.s(1), "a"),
        (lambda: add.s(1, 1) | (bad.s() | add.s(1)).on_error(note.s("a")), "a"),
        (lambda: add.s(1, 1) | bad.s().on_error(note.s("a")) | add.s(1), "a"),
        (lambda: add.s(1, 1).on_error(note.s("a")) | bad.s(), ""),
        (lambda: bad.s(1).on_error(note.s("a")) | add.s(1).on_error(note.s("b")), "a"),
        (lambda: bad.s(1).on_error(note.s("a")).on_error(note.si("why", "b")), "ab"),
        (lambda: bad.si(1).set(immutable=False, link=add.s(1), link_error=[note.s("a")]), "a"),
    ],
)
def test_an_errback_is_for_what_has_it(queue: MemoryQueue, flow: Any, errbacks: str) -> None:
    """Also within a chain or a group; that of a chord's body is also for its header."""
    assert isinstance(flow().delay().get(propagate=False), TaskFailed)
    queue.run()
    assert "".join(sorted(text for _, text in CALLS)) == errbacks
    assert all(reason in ("why", "ValueError: bad") for reason, _ in CALLS)


def test_links_within_flows(queue: MemoryQueue) -> None:
    assert group(add.s(1, 1).set(link=add.s(10)), add.s(2, 2)).delay().get() == [12, 4]
    assert (add.s(1, 1) | add.s(2).set(link=add.s(10))).delay().get() == 14
    assert (add.s(1, 1).set(link=add.s(10)) | add.si(2, 3)).delay().get() == 5
    assert add.apply_async((1, 2), link=group(add.s(1), add.s(2)) | total.s()).get() == 9
    assert (
        add.s(1, 1) | add.s(2).on_error(note.s("a")) | (add.si(2, 3) | add.s(4)).on_error(note.s("b"))
    ).delay().get() == 9
    assert (add.s(1, 1) | (add.s(2) | add.s(3)).on_error(note.s("a")) | add.s(4)).delay().get() == 11
    assert add.apply_async((1, 2), link=None, link_error=[]).ticket.task.service == add.name
    for flow in (
        add.s(1, 1).set(link=add.s(10)) | add.s(1),
        (add.s(1, 1) | add.s(2).set(link=add.s(10))) | add.s(1),
        chord([add.s(1, 1).set(link=add.s(10))], total.s()),
    ):
        with pytest.raises(CallerError, match="a link is before another task; that would get the linked task's reply"):
            flow.delay()
    for errback in (note.s("a") | note.s("b"), group(note.s("a")), note.s("a").set(link=note.s("b"))):
        with pytest.raises(CallerError, match="an errback has links, or is a chain or a group; it must be one task"):
            bad.s(1).on_error(errback).delay()
    with pytest.raises(CallerError, match="only a task without links has a schedule"):
        app.add_periodic_task(60, add.s(1, 1).set(link=add.s(1)))


def test_a_task_with_links_has_its_limit_and_priority(queue: MemoryQueue) -> None:
    assert queue.show(add.apply_async((1, 2), countdown=60, link=add.s(1)).id)["state"] == "delayed"
    add.apply_async((1, 2), time_limit=5, priority=9, link=add.s(1))
    queue.run()
    rows = [row for row in queue.requests() if row["service"] == add.name]
    assert [(row["priority"], row["options"].get("limit")) for row in rows] == [(9, 5), (4, None)]


def test_arguments_of_flows(queue: MemoryQueue) -> None:
    assert chain(add.s(1), add.s(1)).delay(y=5).get() == chain(add.s(1), add.s(1))(y=5).get() == 7
    assert group(add.s(1), add.si(2, 3)).delay(y=5).get() == [6, 5]
    assert chain(add.si(1, 2), add.s(1)).delay(9).get() == 4
    assert chord(add.s(1, 2), total.s())().get() == chord(add.s(1, 1) | add.s(1))(total.s()).get() == 3


def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "celeryconfig_of_a_test.py").write_text(
        "import os\nbroker_url = 'tcp://127.0.0.1:7'\ntask_time_limit = 300\ntask_soft_time_limit = 240\n"
        "task_acks_late = True\ntask_routes = {'shop.*': {'queue': 'slow'}}\ntimezone = 'Europe/Oslo'\n"
        "result_expires = 60\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    other = Celery("other")
    other.config_from_object("celeryconfig_of_a_test")
    assert other.endpoint == "tcp://127.0.0.1:7"

    @other.task(queue="slow")
    def send(to: str, text: str = "") -> str:
        return to + text

    @other.on_after_configure.connect
    def periodic(sender: Celery, **kwargs: Any) -> None:
        sender.add_periodic_task(10.0, send.s("hello"), name="add every 10")

    other.conf.beat_schedule = {
        "mornings": {
            "task": send.name,
            "schedule": crontab(hour=7, minute=[0, 30], day_of_week="mon-fri"),
            "args": ("x",),
            "kwargs": {"text": "y"},
            "options": {"queue": "slow", "priority": 9},
        },
        "often": {"task": send.name, "schedule": timedelta(minutes=5), "args": ("x",)},
    }
    every, mornings, often = other.schedules
    assert often.every == timedelta(minutes=5)
    assert (every.name, every.every, every.frames) == ("add-every-10", 10.0, (b'{"args":["hello"],"kwargs":{}}',))
    assert (mornings.cron, mornings.tz) == ("0,30 7 * * mon-fri", "Europe/Oslo")
    assert mornings.options == {**every.options, "priority": 9}
    assert [every.options[name] for name in ("limit", "keep", "keep_failed")] == [240, 60, 60]
    assert len(other.schedules) == 3
    other.conf.beat_schedule = {"wrong": {"task": "none.such", "schedule": 1}}
    with pytest.raises(CallerError, match=r"beat_schedule has the task none\.such; there is none of that name"):
        _ = other.schedules


def test_the_page_names_all_settings_and_options() -> None:
    table = PAGE.partition("\n## Options and settings\n")[2].partition("\n\nAll others")[0]
    cells = [{*re.findall(r"`(\w+)`", cell)} for row in table.splitlines()[-3:] for cell in row.split("|")[2:4]]
    of_tasks, _, of_calls, ignored, settings, unused = cells
    assert of_tasks - {"task_id"} == {*inspect.signature(Task).parameters} - {"app", "function", "options"}
    assert of_calls - {"task_id", "apply_async"} == {*inspect.signature(options_of).parameters} - {"others"} | {
        "link",
        "link_error",
    }
    assert "task_id" in of_calls
    assert ignored == IGNORED - {"ignore_result"}
    assert settings | unused == CONF.keys()
    assert not settings & unused


PROJ = {
    "proj/__init__.py": "",
    "proj/celery.py": """
from titanic.celery import Celery

app = Celery("proj", broker=ENDPOINT, backend="rpc://", include=["proj.tasks"])
app.conf.update(result_expires=3600, task_routes={"proj.tasks.add": {"queue": "hipri"}})

if __name__ == "__main__":
    app.start()
""",
    "proj/tasks.py": """
from .celery import app


@app.task
def add(x, y):
    return x + y


@app.task
def mul(x, y):
    return x * y


@app.task
def xsum(numbers):
    return sum(numbers)
""",
    "calls.py": """
from titanic.celery import chain, chord, group
from proj.celery import app
from proj.tasks import add, mul, xsum

with app.worker(jobs=4):
    res = add.apply_async((2, 2), queue="lopri", countdown=0.1)
    assert (res.get(timeout=60), res.ready(), res.state, res.successful()) == (4, True, "SUCCESS", True)
    assert add(2, 2) == 4
    res = add.delay(2, "2")
    assert "TypeError" in str(res.get(propagate=False)) and (res.failed(), res.successful()) == (True, False)
    assert add.signature((2, 2), countdown=0.1).delay().get(timeout=60) == 4
    assert add.s(2).delay(8).get(timeout=60) == 10
    assert group(add.s(i, i) for i in range(10))().get(timeout=60) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    g = group(add.s(i) for i in range(10))
    assert g(10).get(timeout=60) == [*range(10, 20)]
    assert chain(add.s(4, 4) | mul.s(8))().get(timeout=60) == 64
    g = chain(add.s(4) | mul.s(8))
    assert g(4).get(timeout=60) == 64
    assert (add.s(4, 4) | mul.s(8))().get(timeout=60) == 64
    assert chord((add.s(i, i) for i in range(10)), xsum.s())().get(timeout=60) == 90
    assert (group(add.s(i, i) for i in range(10)) | xsum.s())().get(timeout=60) == 90
    assert app.send_task("proj.tasks.mul", (3, 4)).get(timeout=60) == 12
""",
}
"""The project of "Next Steps" in Celery's documentation; only the imports and the address of the broker differ."""

DJANGO = {
    "proj/__init__.py": "from .celery import app as celery_app\n\n__all__ = ('celery_app',)\n",
    "proj/celery.py": """
import os

from titanic.celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@app.task(bind=True, ignore_result=True)
def debug_task(self):
    print(f"Request: {self.request!r}")
""",
    "proj/settings.py": """
SECRET_KEY = "x"
INSTALLED_APPS = ["demoapp"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3", "OPTIONS": {"timeout": 60}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CELERY_BROKER_URL = ENDPOINT
CELERY_TASK_TRACK_STARTED = True
CELERY_TASK_TIME_LIMIT = 30 * 60
CELERY_TIMEZONE = "Australia/Tasmania"
""",
    "demoapp/__init__.py": "",
    "demoapp/models.py": """
from django.db import models


class Widget(models.Model):
    name = models.CharField(max_length=140)
""",
    "demoapp/tasks.py": """
from demoapp.models import Widget

from titanic.celery import shared_task


@shared_task
def add(x, y):
    return x + y


@shared_task
def count_widgets():
    return Widget.objects.count()


@shared_task
def rename_widget(widget_id, name):
    w = Widget.objects.get(id=widget_id)
    w.name = name
    w.save()
""",
    "calls.py": """
from proj.celery import app, debug_task
import django

with app.worker(jobs=1):
    from django.core.management import call_command
    from django.db import connection
    from demoapp.models import Widget
    from demoapp.tasks import add, count_widgets, rename_widget

    with connection.schema_editor() as editor:
        editor.create_model(Widget)
    widget = Widget.objects.create(name="old")
    assert add.delay(4, 4).get(timeout=60) == 8
    assert rename_widget.delay(widget.id, "new").get(timeout=60) is None
    assert Widget.objects.get().name == "new"
    assert count_widgets.delay().get(timeout=60) == 1
    assert debug_task.apply_async().get(timeout=60) is None
    from django.db import transaction

    def replies():
        rows, _ = app.client.list(service="demoapp.tasks.add")
        return sorted(app.client.wait(row["uuid"], 60) for row in rows)

    with transaction.atomic():
        add.delay_on_commit(20, 3)
        assert replies() == [[b"8"]], "nothing is submitted yet"
    assert replies() == [[b"23"], [b"8"]]
    ticket = add.apply_async((1, 2), countdown=600).ticket
    assert app.client.show(ticket.uuid)["options"]["limit"] == 1800
""",
}
"""The project of "First steps with Django" there."""


@pytest.mark.parametrize("project", [PROJ, DJANGO], ids=["next steps", "django"])
def test_projects_of_its_documentation(server: Server, tmp_path: Path, project: dict[str, str]) -> None:
    for name, text in project.items():
        (path := tmp_path / name).parent.mkdir(exist_ok=True)
        path.write_text(text.replace("ENDPOINT", repr(server.endpoints[0])))
    env = {**os.environ, **IN_ITS_FOLDER, "PYTHONPATH": f"{Path(titanic.__file__).parent.parent}:{tmp_path}"}
    command = [sys.executable, "calls.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_revoking(queue: MemoryQueue) -> None:
    result = add.delay(1, 2)
    result.revoke(terminate=True)
    assert result.state == "PENDING"
