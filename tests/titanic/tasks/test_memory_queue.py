"""The queue in memory does what a server does, and its clock is moved."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise

import pytest

from titanic import InvalidRequest, RequestFailed, TimedOut, UnknownRequest, current
from titanic.errors import CallerError
from titanic.tasks import TaskFailed, Tasks
from titanic.tasks.memory_queue import MemoryQueue

app = Tasks(name="t")
order: list[str] = []


@app.task
def note(text: str) -> str:
    order.append(text)
    return text


@app.task
def note_too(text: str) -> None:
    order.append(text)


@app.task
def fail(text: str) -> None:
    order.append(text)
    raise ValueError(text)


@app.task
def ask(text: str) -> str:
    return note.submit(text).reply() + "!"


@app.task
def ask_itself(depth: int) -> int:
    return 0 if depth == 0 else 1 + ask_itself.submit(depth - 1).reply()


@app.task
def close_itself() -> bool:
    app.client.close(current().uuid)
    return current().cancelled


@app.service("parts")
def parts(frames: list[bytes]) -> Iterator[bytes]:
    yield from frames


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    order.clear()
    with app.testing(retry_first=1.0, retry_most=4.0, max_attempts=5) as queue:
        yield queue


def test_the_more_urgent_ones_first_then_the_older_ones(queue: MemoryQueue) -> None:
    for text, priority in [("b", 4), ("c", 4), ("d", 1), ("a", 9)]:
        note.options(priority=priority).submit(text)
    queue.run()
    assert order == ["a", "b", "c", "d"]


def test_the_most_urgent_of_all_tasks_comes_first_then_tasks_in_turns(queue: MemoryQueue) -> None:
    for number in range(3):
        note.options(priority=1).submit(f"low{number}")
        note_too.options(priority=9).submit(f"high{number}")
    queue.run()
    assert order == ["high0", "high1", "high2", "low0", "low1", "low2"]
    order.clear()
    for task, name in ((note, "a"), (note_too, "b")):
        for number in range(3):
            task.submit(f"{name}{number}")
    queue.run()
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_back_off(queue: MemoryQueue) -> None:
    ticket = fail.submit("x")
    seconds, count = [], 0
    start = queue.now
    while queue.show(ticket.uuid)["state"] != "failed":
        queue.advance(0.1)
        if len(order) > count:
            count = len(order)
            seconds.append(round((queue.now - start).total_seconds()))
    assert seconds[0] == 0
    assert [round(b - a) for a, b in pairwise(seconds)] in ([1, 2, 4, 4], [1, 2, 4, 5])
    with pytest.raises(TaskFailed, match="ValueError: x"):
        ticket.reply()


def test_time_to_live(queue: MemoryQueue) -> None:
    late = note.options(delay=20, ttl=10).submit("late")
    queue.advance(timedelta(seconds=30))
    assert order == []
    with pytest.raises(TaskFailed, match="not done in time, after 0 attempts") as caught:
        late.reply()
    assert (caught.value.state, caught.value.type) == ("expired", "")


def test_a_key_counts_for_a_while(queue: MemoryQueue) -> None:
    first = queue.submit("t.note", b'{"args": ["a"]}', key="k", key_for=60)
    assert queue.submit("t.other", b"", key="k") == first
    queue.close(first)
    assert queue.submit("t.note", b'{"args": ["a"]}', key="k") == first
    queue.advance(61)
    assert queue.submit("t.note", b'{"args": ["a"]}', key="k") != first


def test_options_are_checked_as_a_server_does(queue: MemoryQueue) -> None:
    with pytest.raises(InvalidRequest, match="priority must be a whole number from 0 to 9"):
        note.options(priority=10).submit("x")
    with pytest.raises(InvalidRequest, match="there are more keys than bodies"):
        queue.submit_many("t.note", [b""], keys=["a", "b"])
    with pytest.raises(InvalidRequest):
        queue.submit("\n", b"")


def test_a_service_that_nobody_serves_waits(queue: MemoryQueue) -> None:
    uuid = queue.submit("elsewhere", b"")
    with pytest.raises(TimedOut, match="it is waiting; this app has no task or service elsewhere"):
        queue.wait(uuid)
    with pytest.raises(TimedOut, match="no reply yet to 1 request"):
        list(queue.replies([uuid, note.submit("x").uuid], timeout=1))
    assert queue.reply(uuid) is None


def test_a_task_that_is_added_later_gets_what_waits() -> None:
    app = Tasks(name="l")
    with app.testing() as queue:
        uuid = queue.submit("l.late", b"{}")
        queue.advance(5)

        @app.task
        def late() -> int:
            return 1

        assert late.ticket(uuid).reply() == 1


def test_a_task_may_wait_for_others(queue: MemoryQueue) -> None:
    assert ask.submit("x").reply() == "x!"
    assert ask_itself.submit(5).reply() == 5


def test_closing(queue: MemoryQueue) -> None:
    ticket = note.submit("x")
    ticket.close()
    queue.run()
    assert order == []
    itself = close_itself.submit()
    queue.run()
    with pytest.raises(UnknownRequest):
        itself.reply()
    assert queue.requests() == []
    queue.close("no uuid")


def test_a_request_that_runs_is_seen_as_running(queue: MemoryQueue) -> None:
    app = Tasks()

    @app.task
    def look() -> str:
        assert isinstance(app.client, MemoryQueue)
        return app.client.show(current().uuid)["state"]

    with app.testing():
        assert look.submit().reply() == "running"


def test_parts_are_one_reply(queue: MemoryQueue) -> None:
    assert queue.wait(queue.submit("parts", b"a", b"b"))[:2] == [b"a", b"b"]


def test_a_handler_that_fails(queue: MemoryQueue) -> None:
    app = Tasks()

    @app.service("broken")
    def broken(frames: list[bytes]) -> bytes:
        raise OSError("broken")

    with app.testing(max_attempts=1) as queue, pytest.raises(RequestFailed, match="OSError: broken"):
        queue.wait(queue.submit("broken", b""))


def test_one_queue_at_a_time(queue: MemoryQueue) -> None:
    with pytest.raises(CallerError, match="the app is being tested already"), app.testing():
        pass


def test_a_year_goes_by_in_no_time(queue: MemoryQueue) -> None:
    tickets = [note.options(delay=86_400.0 * day + 1).submit(str(day)) for day in range(365)]
    before = queue.now
    assert tickets[-1].reply() == "364"
    assert (queue.now - before).days == 364
    assert len(order) == 365


def test_schedules_have_their_ticks() -> None:
    app, seen = Tasks(name="c"), list[str]()

    @app.cron("30 2 * * *", "nightly", name="c.nightly")
    @app.every(7200, "often")
    @app.task
    def tick(text: str) -> None:
        seen.append(f"{text} {current().key}")

    with app.testing() as queue:
        with pytest.raises(TimedOut):
            queue.wait(queue.submit("absent", b""))  # schedules alone would go on for ever
        assert seen == []
        queue.advance(timedelta(days=2))
        assert [one.split()[0] for one in seen].count("often") == 24
        assert sum("T02:30:00Z" in one for one in seen) == 2
        assert len(set(seen)) == 26


def test_without_a_worker_all_waits() -> None:
    app = Tasks(name="n")

    @app.task
    def one() -> int:
        return 1

    with app.testing(worker=False) as queue:
        ticket = one.submit()
        queue.advance(60)
        assert queue.show(ticket.uuid)["state"] == "waiting"
        with pytest.raises(TimedOut, match="it is waiting; the queue has no worker until has_worker is set"):
            ticket.reply()
        queue.has_worker = True
        assert ticket.reply() == 1
