"""Flows with the queue in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

from titanic import Retry, UnknownRequest, current
from titanic.client.flows import step_key
from titanic.errors import CallerError
from titanic.tasks import Flow, InvalidArguments, TaskFailed, Tasks, gather
from titanic.tasks.memory_queue import MemoryQueue

app = Tasks(name="f")
packed = Tasks(name="p", serializer="msgpack")
executed: Counter[str] = Counter()


class Mine(Exception):
    pass


@app.task
def double(number: int) -> int:
    executed["double"] += 1
    return 2 * number


@app.task
async def add(number: int, more: int = 1) -> int:
    executed["add"] += 1
    return number + more


@app.task
def total(numbers: list[int], start: int = 0) -> int:
    executed["total"] += 1
    return sum(numbers) + start


@app.task
def up_to(number: int) -> list[int]:
    return list(range(number))


@app.task(fatal=Mine)
def fail(number: int) -> int:
    raise Mine(number)


@app.task(retry_first=1)
def at_last(number: int) -> int:
    if current().attempt < 3:
        raise Retry("not yet", after=60)
    return number


@app.task
def complain(why: str, to: str = "") -> None:
    executed[f"{to}: {why}"] += 1


@app.task
def rest(*numbers: int) -> int:
    return sum(numbers)


@packed.task
def size(body: bytes, more: bytes = b"") -> int:
    return len(body + more)


@packed.task
def body(length: int) -> bytes:
    return b"\xff" * length


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    executed.clear()
    with app.testing() as queue:
        yield queue


def rows(queue: MemoryQueue) -> Counter[str]:
    return Counter(f"{row['service']} {row['state']}" for row in queue.requests())


def test_steps_follow_each_other(queue: MemoryQueue) -> None:
    ticket = double.step(4).then(add, more=5).then(double).submit()
    assert ticket.reply() == 26
    assert app.flow(ticket.uuid).reply() == 26
    assert double.ticket(ticket.uuid).reply() == 26, "the reply is the last step's"
    queue.advance(1)
    assert rows(queue) == {"f.flow done": 1}, "its steps are closed when it has replied"
    assert executed == {"double": 2, "add": 1}
    ticket.close()
    assert queue.requests() == []


def test_groups(queue: MemoryQueue) -> None:
    ticket = gather(double.step(number).then(add) for number in range(20)).then(total, start=1000).submit()
    assert ticket.reply() == 1000 + sum(2 * number + 1 for number in range(20))
    assert gather([add.step(1), double.step(1)]).submit().reply() == [2, 2]
    inner = gather(double.step(number) for number in range(3))
    assert gather([inner.then(total), add.step(1), inner.then(total).then(add)]).submit().reply() == [6, 2, 7]
    queue.advance(1)
    assert rows(queue) == {"f.flow done": 3}


def test_a_task_for_each_item(queue: MemoryQueue) -> None:
    flow = up_to.step(5).each(double).each(add, more=3).then(total)
    assert flow.submit().reply() == 35
    assert up_to.step(0).each(double).submit().reply() == []
    with pytest.raises(TaskFailed, match="not a list"):
        double.step(1).each(double).submit().reply()  # type: ignore[misc]


def test_values_travel_in_the_apps_format() -> None:
    with packed.testing() as queue:
        flow = gather([body.step(3).then(size, more=b"\xfe"), body.step(5).then(size)])
        ticket = flow.submit()
        assert ticket.reply() == [4, 5]
        assert packed.flow(ticket.uuid).reply() == [4, 5]
        queue.advance(1)
        assert len(queue.requests()) == 1


def test_a_step_that_is_tried_again(queue: MemoryQueue) -> None:
    ticket = double.step(1).then(at_last).then(add).submit()
    queue.advance(100)
    assert ticket.uuid in [row["uuid"] for row in queue.requests("delayed")], "no worker is held"
    assert ticket.reply() == 3
    assert queue.show(ticket.uuid)["attempts"] == 1, "looks are no attempts"


def test_options_of_steps_and_of_flows(queue: MemoryQueue) -> None:
    later = add.options(delay=timedelta(hours=1), priority=9)
    ticket = double.step(1).then(later).submit(key="once")
    assert double.step(7).submit(key="once").uuid == ticket.uuid
    queue.run()
    (row,) = [row for row in queue.requests() if row["service"] == "f.add"]
    assert (row["priority"], row["state"], row["key"]) == (9, "delayed", step_key(ticket.uuid, "0.1"))
    assert ticket.reply() == 3
    ticket = double.step(1).then(later).submit(ttl=60)
    with pytest.raises(TaskFailed) as caught:
        ticket.reply()
    assert caught.value.state == "expired"
    queue.advance(7200)
    assert executed["add"] == 1, "what follows in a flow that has expired is not executed"


def test_a_step_fails(queue: MemoryQueue) -> None:
    ticket = double.step(2).then(fail).then(add).on_error(complain, to="me").submit()
    with pytest.raises(Mine) as caught:
        ticket.reply()
    assert caught.value.args == (4,)
    assert "in fail" in str(vars(caught.value.__cause__)["traceback"])
    queue.advance(3600)
    assert executed == {"double": 1, "me: Mine: 4": 1}
    assert rows(queue) == {"f.flow failed": 1, "f.double done": 1, "f.fail failed": 1, "f.complain done": 1}
    ticket.close()
    assert queue.requests() == [], "what is left of a flow that failed is closed with it"


def test_one_of_a_group_fails(queue: MemoryQueue) -> None:
    inner = gather([double.step(1), fail.step(2).on_error(complain, to="inner")])
    ticket = gather([inner.then(total), add.step(1)]).then(total).on_error(complain).submit()
    with pytest.raises(Mine):
        ticket.reply()
    queue.advance(3600)
    assert executed == {"double": 1, "add": 1, "inner: Mine: 2": 1, ": Mine: 2": 1}
    ticket.close()
    assert queue.requests() == []


def test_a_step_that_was_closed_by_hand(queue: MemoryQueue) -> None:
    ticket = double.step(1).then(add.options(delay=60)).submit()
    queue.run()
    (row,) = [row for row in queue.requests() if row["service"] == "f.add"]
    queue.close(row["uuid"])
    with pytest.raises(TaskFailed, match=r"step .* \(f.add\) was closed"):
        ticket.reply()


def test_what_is_closed_does_not_begin(queue: MemoryQueue) -> None:
    group = gather(double.step(number).then(add.options(delay=60)) for number in range(3))
    ticket = group.then(total).submit()
    queue.run()
    assert executed == {"double": 3}
    ticket.close()
    assert queue.requests() == []
    ticket = group.then(total).submit()
    queue.run()
    queue.close(ticket.uuid)  # as any client does that knows nothing of flows
    queue.advance(3600)
    assert executed == {"double": 6}
    assert queue.requests() == []
    with pytest.raises(UnknownRequest):
        ticket.reply()


def test_steps_are_what_a_flow_has_submitted(queue: MemoryQueue) -> None:
    """Who may submit a task may not have another one executed by that."""
    root = queue.submit("nobody")
    stage = b'{"service": "f.double", "args": [1]}'
    place = b'{"root": "%b", "parent": "%b", "at": "0.0", "then": [%b]}' % (root.encode(), root.encode(), stage)
    for forged in (place, place.replace(b'"0.0"', b'"end"'), b"7", b'{"root": 7}'):
        uuid = queue.submit("f.double", b'{"args": [1], "flow": %b}' % forged)
        with pytest.raises(Exception, match=r"not the flow step|cannot be decoded"):
            queue.wait(uuid)
    uuid = queue.submit("f.flow", b'{"args": [], "flow": %b}' % place)
    with pytest.raises(Exception, match="not the flow step"):
        queue.wait(uuid)
    for wrong in (b"x", b"{}", b'{"kwargs": {"plan": {"chains": 7}}}'):
        with pytest.raises(Exception, match="not a flow"):
            queue.wait(queue.submit("f.flow", wrong))
    assert executed == {}


def test_what_cannot_be_a_flow() -> None:
    with pytest.raises(InvalidArguments, match="'number'"):
        double.step("a")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="do not match its signature"):
        double.step(1).then(add, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(InvalidArguments, match="'more'"):
        double.step(1).then(add, "b")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="'numbers'"):
        double.step(1).then(rest, 1, "x")  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="no flows"):
        gather([]).submit()
    with pytest.raises(CallerError, match="no key"):
        double.options(key="k").step(1)


def test_a_group_of_none_is_an_empty_list(queue: MemoryQueue) -> None:
    nothing: list[Flow[int]] = []
    assert gather(nothing).then(total, start=5).submit().reply() == 5
    assert gather(nothing).each(add).then(total).then(add).submit().reply() == 1
    assert gather([gather(nothing), gather([add.step(1)])]).submit().reply() == [[], [2]]


def test_any_number_of_arguments(queue: MemoryQueue) -> None:
    assert double.step(1).then(rest, 3, 4).submit().reply() == 9
