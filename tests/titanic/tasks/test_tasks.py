"""Tasks, submitted to a queue in memory: calls, tickets, failures, middleware. tests/titanic/tasks/test_worker.py has
the same with a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from titanic import Failed, Retry, TimedOut, UnknownRequest, current
from titanic.errors import CallerError
from titanic.tasks import Call, TaskFailed, Tasks
from titanic.tasks.memory_queue import MemoryQueue

app = Tasks(name="shop")
calls: list[str] = []


@dataclass
class Size:
    width: int
    height: int


class OutOfStock(Exception):
    def __init__(self, item: str, left: int) -> None:
        super().__init__(item, left)
        self.left = left


class Odd(Exception):
    """It cannot be made of what it keeps."""

    def __init__(self, *, name: str) -> None:
        super().__init__(f"{name} is odd")


@app.task(max_attempts=3, retry_first=10, raises=(OutOfStock, Odd))
def resize(path: str, width: int = 80) -> Size:
    """Make it small."""
    calls.append(path)
    if path == "gone":
        raise OutOfStock(path, 3)
    if path == "odd":
        raise Odd(name="it")
    if path == "unknown":
        raise LookupError(path)
    return Size(width, 2 * width)


@app.task
async def add(a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


@app.task(key=lambda order, amount=0: f"order {order}")
def pay(order: int, amount: int = 5) -> int:
    calls.append(f"paid {order}")
    return amount


@app.service("raw")
def raw(frames: list[bytes]) -> list[bytes]:
    return [frame.upper() for frame in frames]


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    calls.clear()
    with app.testing() as queue:
        yield queue


def test_a_plain_call_is_a_plain_call() -> None:
    assert resize("a.png") == Size(80, 160)
    assert asyncio.run(add(2)) == 3
    assert (resize.__name__, resize.__doc__, resize.service) == ("resize", "Make it small.", "shop.resize")


def test_a_ticket_has_the_reply(queue: MemoryQueue) -> None:
    ticket = resize.submit("a.png", width=120)
    assert queue.show(ticket.uuid)["state"] == "waiting"
    assert ticket.reply(timeout=10) == Size(120, 240)
    assert ticket.reply() == Size(120, 240)
    assert resize.ticket(ticket.uuid).reply() == Size(120, 240)
    ticket.close()
    with pytest.raises(UnknownRequest):
        ticket.reply()


def test_an_async_task(queue: MemoryQueue) -> None:
    assert add.submit(2, b=3).reply() == 5


def test_options_of_one_call(queue: MemoryQueue) -> None:
    ticket = resize.options(delay=5).options(priority=9, ttl=60).submit("a.png")
    found = queue.show(ticket.uuid)
    assert (found["state"], found["priority"], found["max_attempts"]) == ("delayed", 9, 3)
    with pytest.raises(TimedOut, match="it is delayed"):
        ticket.reply(timeout=4)
    assert ticket.reply(timeout=1.5) == Size(80, 160)


def test_a_time_to_start_at(queue: MemoryQueue) -> None:
    at = queue.now + timedelta(hours=1)
    ticket = resize.options(delay=5).options(at=at).submit("a.png")  # one replaces the other
    queue.advance(3599)
    assert queue.show(ticket.uuid)["state"] == "delayed"
    queue.advance(2)
    assert queue.show(ticket.uuid)["state"] == "done"
    ticket = resize.options(at=at).options(delay=timedelta(minutes=5)).submit("a.png")
    assert queue.show(ticket.uuid)["not_before"] == pytest.approx((queue.now.timestamp() + 300) * 1e6, abs=2)


def test_a_change(queue: MemoryQueue) -> None:
    first, second = (resize.options(delay=60).submit(path) for path in ("a.png", "b.png"))
    queue.change(second.uuid, priority=9, delay=0)
    queue.run()
    assert calls == ["b.png"]
    queue.change(first.uuid, at=queue.now + timedelta(hours=1))
    queue.advance(3599)
    assert queue.show(first.uuid)["state"] == "delayed"
    queue.advance(2)
    assert queue.show(first.uuid)["state"] == "done"
    with pytest.raises(CallerError, match="cannot be changed; it is done"):
        queue.change(first.uuid, priority=1)


def test_a_key_makes_it_one(queue: MemoryQueue) -> None:
    first = pay.submit(7)
    assert pay.submit(order=7, amount=6).uuid == first.uuid
    assert pay.options(key="other").submit(7).uuid != first.uuid
    assert pay.map([7, 7, 8]).uuids[:2] == [first.uuid] * 2
    queue.run()
    assert sorted(calls) == ["paid 7", "paid 7", "paid 8"]


def test_a_key_that_is_none_is_no_key() -> None:
    app = Tasks(name="k")

    @app.task(key=lambda order: order)
    def note(order: str | None) -> None: ...

    with app.testing():
        assert note.submit(None).uuid != note.submit(None).uuid
        assert note.submit("a").uuid == note.submit("a").uuid
        assert len(set(note.map(["a", None, "a", None]).uuids)) == 3


def test_many_at_once(queue: MemoryQueue) -> None:
    tickets = resize.map(["a", "b", "gone", "c"], width=5)
    assert len(tickets) == 4
    assert tickets[0].uuid == tickets.uuids[0]
    assert {type(outcome).__name__ for _, outcome in tickets.ended()} == {"Size", "OutOfStock"}
    with pytest.raises(OutOfStock):
        tickets.replies()
    assert resize.map(["a", "b"]).replies(timeout=1) == [Size(80, 160)] * 2
    tickets.close()
    assert resize.map([]).replies() == []
    assert [one["service"] for one in queue.requests()] == ["shop.resize"] * 2


def test_nothing_is_submitted_when_one_of_many_does_not_fit(queue: MemoryQueue) -> None:
    with pytest.raises(TypeError, match="'path' does not match its type"):
        resize.map(["a", 5])  # type: ignore[list-item]
    assert queue.requests() == []


def test_a_declared_exception_comes_back_as_what_it_is(queue: MemoryQueue) -> None:
    ticket = resize.submit("gone")
    with pytest.raises(OutOfStock) as caught:
        ticket.reply()
    assert (caught.value.args, caught.value.left) == (("gone", 3), 3)
    cause = caught.value.__cause__
    assert isinstance(cause, TaskFailed)
    assert (cause.type.rpartition(".")[2], cause.arguments, cause.state) == ("OutOfStock", ("gone", 3), "failed")
    assert cause.traceback.endswith("OutOfStock: ('gone', 3)\n")
    assert "in resize" in cause.traceback
    assert "definition.py" not in cause.traceback
    assert calls == ["gone"] * 3


@pytest.mark.parametrize(("path", "name"), [("unknown", "builtins.LookupError"), ("odd", "Odd")])
def test_other_exceptions_come_back_by_name(queue: MemoryQueue, path: str, name: str) -> None:
    with pytest.raises(TaskFailed) as caught:
        resize.submit(path).reply()
    assert caught.value.type.endswith(name)
    assert str(caught.value).startswith(name.rpartition(".")[2])


def test_the_module_that_is_run_is_known_by_its_other_name(queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = resize.submit("gone")
    queue.advance(100)
    monkeypatch.setattr(OutOfStock, "__module__", "__main__")
    with pytest.raises(OutOfStock):
        ticket.reply()
    monkeypatch.setattr(OutOfStock, "__module__", "elsewhere")
    with pytest.raises(TaskFailed):
        ticket.reply()


def test_arguments_that_do_not_fit_fail_for_good(queue: MemoryQueue) -> None:
    uuid = queue.submit("shop.resize", b'{"args": [5]}')
    with pytest.raises(TaskFailed, match="argument 'path' does not match its type"):
        resize.ticket(uuid).reply()
    assert queue.show(uuid)["attempts"] == 1
    with pytest.raises(TaskFailed, match="has 2 frames"):
        resize.ticket(queue.submit("shop.resize", b"{}", b"then")).reply()


def test_the_ways_to_fail() -> None:
    app = Tasks()

    @app.task(fatal=ValueError, max_attempts=5)
    def strict(what: str) -> None:
        raise {"value": ValueError, "key": KeyError, "failed": Failed}[what](what)

    @app.task(retry_on=(KeyError,), max_attempts=2)
    def lenient(what: str) -> None:
        raise {"value": ValueError, "key": KeyError}[what](what)

    @app.task(max_attempts=2)
    def later() -> int:
        if current().attempt == 1:
            raise Retry("not yet", after=3600)
        return current().attempts

    with app.testing() as queue:
        attempts = []
        for ticket in [*strict.map(["value", "key", "failed"]), *lenient.map(["value", "key"])]:
            with pytest.raises((ValueError, KeyError, TaskFailed)):
                ticket.reply()
            attempts.append(queue.show(ticket.uuid)["attempts"])
        assert attempts == [1, 5, 1, 1, 2]
        before = queue.now
        assert later.submit().reply() == 2
        assert 3600 <= (queue.now - before).total_seconds() < 3601


def test_a_reply_that_cannot_travel_fails_for_good() -> None:
    app = Tasks()

    @app.task
    def wrong() -> object:
        return object()

    with app.testing() as queue:
        ticket = wrong.submit()
        with pytest.raises(TaskFailed, match="the reply of wrong cannot be sent"):
            ticket.reply()
        assert queue.show(ticket.uuid)["attempts"] == 1


def test_middleware(caplog: pytest.LogCaptureFixture) -> None:
    app = Tasks(name="m")
    seen: list[object] = []

    @app.before
    def begin(call: Call) -> None:
        seen.append(("before", call.service, call.args, call.kwargs, current().attempt))
        if call.args == (0,):
            raise Failed("not zero")

    @app.after
    def end(call: Call, value: object) -> None:
        seen.append(("after", value))
        raise RuntimeError("it changes nothing")

    @app.error
    def report(call: Call, error: BaseException) -> None:
        seen.append(("error", repr(error)))

    @app.task(max_attempts=1)
    def invert(number: int) -> float:
        if number == 2:
            raise Retry(after=1)
        return 1 / number

    with app.testing():
        assert invert.submit(4).reply() == 0.25
        assert seen == [("before", "m.invert", (4,), {}, 1), ("after", 0.25)]
        assert "an @app.after function failed, for m.invert" in caplog.text
        with pytest.raises(TaskFailed, match="not zero"):
            invert.submit(0).reply()
        assert seen[-1] == ("error", "Failed('500 not zero')")
        seen.clear()
        with pytest.raises(TaskFailed):
            invert.submit(2).reply()
        assert [one[0] for one in seen if isinstance(one, tuple)] == ["before"]


def test_what_cannot_be_a_task_or_have_a_schedule_is_told_by_name() -> None:
    app = Tasks(name="w")

    def plain() -> None: ...

    class Shop:
        def method(self) -> None: ...

        @staticmethod
        def static() -> int:
            return 5

    wrong: list[tuple[Any, str]] = [
        (app.task(plain), "it is already a task"),
        (lambda: 5, "a lambda has no name"),
        (Shop.method, "it is a method, and its 'self' cannot be sent"),
        (partial(plain), "it is not a named function"),
        (Shop(), "it is not a named function"),
    ]
    for one, fact in wrong:
        with pytest.raises(CallerError, match=f"cannot be a task; {fact}"):
            app.task(one)
    for decorate in (app.every(60), app.cron("* * * * *")):
        with pytest.raises(CallerError, match="a lambda has no name"):
            decorate(lambda: 5)
        with pytest.raises(CallerError, match=r"it is already a task; @app.cron and @app.every stand above @app.task"):
            app.task(decorate(app.task(service=f"w.{id(decorate)}")(lambda: 5)))
    with app.testing():
        assert app.task(Shop.static).submit().reply() == 5
        assert app.task(service="w.six")(lambda: 6).submit().reply() == 6


class Short(Exception):
    """It wants other arguments than it keeps."""

    def __init__(self, article: str, left: int) -> None:
        super().__init__(f"{article}: only {left} left")
        self.article, self.left, self.ratio, self.gone = article, left, 0.5, None
        self.when, self._token = [1], "secret"


def test_exceptions_that_cannot_be_made_again(caplog: pytest.LogCaptureFixture) -> None:
    app = Tasks(name="x")

    @app.task(max_attempts=1, raises=Short)
    def order(article: str) -> None:
        raise Short(article, 3)

    @app.task(fatal=Short)
    def closed(article: str) -> None:
        raise Short(article, 3)

    with app.testing():
        for _ in range(2):
            with pytest.raises(Short, match=r"^a\.png: only 3 left$") as caught:
                order.submit("a.png").reply()
            assert vars(caught.value) == {"article": "a.png", "left": 3, "ratio": 0.5, "gone": None}
        assert caplog.text.count("clients of x.order cannot recreate Short from its arguments (TypeError: ") == 1
        with pytest.raises(TaskFailed, match="only 3 left") as undeclared:
            closed.submit("a.png").reply()
        assert (undeclared.value.type, undeclared.value.attributes) == (f"{__name__}.Short", {})
        assert b"secret" not in b"".join(caught.value.__cause__.detail + undeclared.value.detail)  # type: ignore[union-attr]
        with pytest.raises(TaskFailed) as long:
            order.submit("a" * 2500).reply()
        assert (len(long.value.arguments[0]), long.value.attributes) == (2513, {})


def test_the_log_names_the_request_and_has_the_traceback_of_what_nobody_expected(
    queue: MemoryQueue, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ticket = resize.options(max_attempts=1).submit("unknown")
        queue.run()
        assert f"shop.resize failed ({ticket.uuid}, attempt 1 of 1): LookupError: unknown" in caplog.text
        assert "Traceback" in caplog.text
        caplog.clear()
        resize.options(max_attempts=1).submit("gone")
        queue.run()
        assert "OutOfStock" in caplog.text
        assert "Traceback" not in caplog.text


def test_raw_services(queue: MemoryQueue) -> None:
    assert queue.wait(queue.submit("raw", b"a", b"b")) == [b"A", b"B"]


def test_a_trace_goes_on_to_what_a_task_submits() -> None:
    app = Tasks()
    trace = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"

    @app.task
    def inner() -> str:
        return current().trace

    @app.task
    def outer() -> list[str]:
        return [inner.submit().reply(), *inner_too.map([1]).replies()]

    @app.task
    def inner_too(number: int) -> str:
        return current().trace

    with app.testing():
        assert outer.options(trace=trace).submit().reply() == [trace, trace]
        assert outer.submit().reply() == ["", ""]


class Rude(Exception):
    """What must not bring a worker down."""

    def __str__(self) -> str:
        raise RuntimeError("do not look at me")

    __repr__ = __str__


def test_an_exception_that_cannot_be_looked_at() -> None:
    app = Tasks()

    @app.task(max_attempts=1)
    def rude() -> None:
        raise Rude(Rude())

    with app.testing(), pytest.raises(TaskFailed) as caught:
        rude.submit().reply()
    assert caught.value.type.endswith("Rude")
    assert len(caught.value.arguments) == 1


def test_names_are_there_once() -> None:
    app = Tasks(name="a")

    @app.task
    def one() -> None: ...

    with pytest.raises(CallerError, match=r"a\.one is declared twice"):
        app.task(service="a.one")(lambda: None)
    with pytest.raises(CallerError, match="declared twice"):
        app.service("a.one")(raw)


def test_what_cannot_be_a_task() -> None:
    def parts() -> Iterator[int]:
        yield 1

    async def frames(frames: list[bytes]) -> bytes:
        return b""

    with pytest.raises(CallerError, match="task frames has jobs=0; it would never run; give 1 or more"):
        Tasks(name="a").task(jobs=0)(frames)
    unknown: Any = {"every": 300}
    line = frames.__code__.co_firstlineno
    with pytest.raises(
        CallerError, match=rf"test_tasks.py:{line}: task frames has every; .*write @app.every\(…\) above"
    ):
        Tasks(name="a").task(**unknown)(frames)
    unknown = {"max_atempts": 3}
    with pytest.raises(CallerError, match=r"task frames has max_atempts; there is no such option; there are .*max_att"):
        Tasks(name="a").task(**unknown)(frames)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"keep": timedelta(days=-1)}, "keep must be a number of seconds, more than 0"),
        ({"limit": float("nan")}, "limit is nan; it must be a finite number"),
        ({"max_attempts": "3"}, "max_attempts must be a whole number from 1"),
        ({"unique_for": 5}, "unique_until and unique_for need unique"),
        ({"unique": str, "unique_for": 5, "unique_until": "done"}, "unique_until and unique_for cannot be combined"),
    ]
    for options, fault in wrong:
        with pytest.raises(CallerError, match=rf"test_tasks.py:{line}: task frames; {fault}"):
            Tasks(name="a").task(**options)(frames)
    of_submissions: dict[str, Any] = {"on_failed": "a.failed", "type": "text/csv", "keep": 60}
    Tasks(name="a").task(**of_submissions)(frames)
    with pytest.raises(CallerError, match="parts cannot be a task; it is a generator"):
        Tasks().task(parts)
    with pytest.raises(CallerError, match="the handler of raw is async"):
        Tasks().service("raw")(frames)  # type: ignore[type-var]
