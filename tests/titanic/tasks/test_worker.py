"""Tasks with a server and a worker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest
from support.waiting import until

from broker import DELIVERY, Delivery
from titanic import Cancelled, Client, Server, current
from titanic.tasks import Task, TaskFailed, Tasks
from titanic.tasks.event_loops import EVENT_LOOP

app = Tasks(name="w", timeout=30)


class Mine(Exception):
    pass


@app.task(max_attempts=2, raises=Mine)
def divide(a: int, b: int) -> float:
    if b == 0:
        raise Mine(a, b)
    return a / b


@app.task
async def twice(number: int) -> int:
    return 2 * await nested(number)


async def nested(number: int) -> int:
    await asyncio.sleep(0)
    return number if current() else 0


@app.task(max_attempts=1)
async def leaves(by_another: bool) -> None:
    async def leave() -> None:
        sys.exit(3)

    await (asyncio.create_task(leave()) if by_another else leave())


@app.task(max_attempts=2, retry_first=0.01, retry_on=KeyError)
async def awaits_what_is_cancelled() -> None:
    inner = asyncio.create_task(asyncio.Event().wait())
    inner.cancel()
    await inner


@app.task(key=lambda number: f"{number}" if number else None)
def keyed(number: int) -> int:
    return number


@app.task(unique=lambda number: f"{number}" if number else None)
def unique(number: int) -> int:
    return number


@app.task
def both(number: int) -> int:
    """A task that waits for another one."""
    return twice.submit(number).reply(timeout=30)


@app.service("w.raw")
def raw(frames: list[bytes]) -> list[bytes]:
    return frames[::-1]


@pytest.fixture
def served(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(app, "endpoint", server.endpoints[0])
    monkeypatch.setattr(app, "_client", None)
    with app.worker(jobs=2):
        yield server


def test_a_life(served: Server, client: Client) -> None:
    ticket = divide.submit(7, b=2)
    assert ticket.reply(timeout=30) == 3.5
    assert client.show(ticket.uuid)["service"] == "w.divide"
    assert both.submit(4).reply(timeout=30) == 8
    assert divide.map(range(10), 2).replies(timeout=30) == [number / 2 for number in range(10)]
    assert client.wait(client.submit("w.raw", b"a", b"b"), timeout=30) == [b"b", b"a"]
    with pytest.raises(Mine) as caught:
        divide.submit(1, 0).reply(timeout=30)
    assert caught.value.args == (1, 0)
    assert "in divide" in str(vars(caught.value.__cause__)["traceback"])
    ticket.close()


@pytest.mark.parametrize("task", [keyed, unique])
def test_some_of_many_have_no_key(served: Server, task: Task[[int], int]) -> None:
    tickets = task.options(delay=3600).map([0, 1, 2, 0, 1])
    assert len(tickets) == 5
    assert len(set(tickets.uuids)) == 4, "that of the second is that of the last"


@pytest.mark.parametrize("by_another", [False, True])
def test_an_async_task_that_exits_takes_no_other_along(served: Server, by_another: bool) -> None:
    with pytest.raises(TaskFailed, match="SystemExit: 3"):
        leaves.submit(by_another).reply(timeout=30)
    assert twice.submit(4).reply(timeout=30) == 8


def test_an_async_task_is_over_when_it_has_tidied_up() -> None:
    delivery, done = Delivery(b""), []

    async def tidies() -> None:
        try:
            delivery.cancel()
            await asyncio.Event().wait()
        finally:
            for _ in range(100):
                await asyncio.sleep(0)
            done.append("tidied up")

    token = DELIVERY.set(delivery)
    with pytest.raises(Cancelled):
        EVENT_LOOP.run(tidies())
    DELIVERY.reset(token)
    assert done == ["tidied up"]


def test_what_a_task_awaits_was_cancelled_and_not_its_request(served: Server, client: Client) -> None:
    ticket = awaits_what_is_cancelled.submit()
    with pytest.raises(TaskFailed) as caught:
        ticket.reply(timeout=30)
    assert caught.value.type.endswith(".CancelledError")
    assert "await inner" in caught.value.traceback
    assert client.show(ticket.uuid)["attempts"] == 1, "it is not among what is retried"


def test_a_worker_of_another_version_gives_back_what_it_cannot_do(server: Server, client: Client) -> None:
    """A rolling deployment: callers and modules are new before the last worker is."""
    old, new = (Tasks(server.endpoints[0], name="deployed") for _ in range(2))

    @old.task(service="deployed.paint")
    def paint(what: str) -> str:
        return what

    @old.task(service="deployed.load")
    def load() -> str:
        import titanic.not_there_yet  # type: ignore[import-not-found]

        return str(titanic.not_there_yet)

    @new.task(service="deployed.paint")
    def paint_in(what: str, colour: str = "black") -> str:
        return f"{what} in {colour}"

    @new.task(service="deployed.load")
    def load_now() -> str:
        return "loaded"

    painted, loaded = paint_in.submit("door", colour="red"), load_now.submit()
    with old.worker():
        until(lambda: "unexpected keyword argument 'colour'" in client.show(painted.uuid)["reason"])
        until(lambda: "No module named 'titanic.not_there_yet'" in client.show(loaded.uuid)["reason"])
    with new.worker():
        assert (painted.reply(timeout=30), loaded.reply(timeout=30)) == ("door in red", "loaded")
    assert [client.show(ticket.uuid)["attempts"] for ticket in (painted, loaded)] == [1, 1]


@pytest.mark.settings(unready_timeout=0.2)
def test_and_in_the_end_it_has_failed(served: Server, client: Client) -> None:
    uuid = client.submit("w.divide", b'{"args": [1], "kwargs": {"c": 2}}')
    with pytest.raises(
        TaskFailed, match=r"no worker was ready for it within 0.2 s: divide: the arguments do not match its signature; "
    ):
        divide.ticket(uuid).reply(timeout=30)
    assert client.show(uuid)["attempts"] == 0
