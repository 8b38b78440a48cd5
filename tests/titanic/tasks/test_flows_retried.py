"""`titanic retry` of flows that have failed, and of their steps."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from support.cli_titanic import here
from support.flows import disconnect
from support.waiting import until

from titanic import Client, Server
from titanic.client.flows import FlowTree, flow_tree
from titanic.tasks import TaskFailed, Tasks, Ticket, gather

app = Tasks(name="r", timeout=30)
broken: set[int] = set()
"""What `halve` fails with."""
executed: Counter[str] = Counter()
go = threading.Event()
"""What `held` waits for."""


@app.task(max_attempts=1)
def halve(number: int) -> int:
    executed["halve"] += 1
    if number in broken:
        raise ValueError(number)
    return number // 2


@app.task
def held(number: int) -> int:
    assert go.wait(60)
    return number


@app.task
def total(numbers: list[int]) -> int:
    executed["total"] += 1
    return sum(numbers)


@app.task
def tell(number: int) -> str:
    return f"it is {number}"


@app.task
def complain(why: str) -> None:
    executed["complain"] += 1


@pytest.fixture(autouse=True)
def served(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(app, "endpoint", server.endpoints[0])
    monkeypatch.setattr(app, "_client", None)
    broken.clear()
    executed.clear()
    go.clear()
    yield server
    disconnect(app)


def failed(client: Client, tree: FlowTree) -> list[str]:
    """The UUIDs of the steps that have failed, innermost first."""
    found: list[str] = []
    for step in tree["steps"]:
        if step["flow"] is not None:
            found += failed(client, step["flow"])
        if step["state"] == "failed":
            found.append(step["uuid"])
    return found


def retry(server: Server, *uuids: str) -> None:
    done = here("retry", *uuids, "--timeout", "60", "--endpoint", server.endpoints[0])
    assert (done.code, done.line) == (0, f"{len(uuids)} request{'s' if len(uuids) > 1 else ''} requeued"), done.err


def fails(ticket: Ticket[str]) -> None:
    with pytest.raises(TaskFailed, match="ValueError: 6"):
        ticket.reply(timeout=60)


def test_a_flow_goes_on_when_its_step_was_retried(served: Server, client: Client) -> None:
    broken.add(6)
    ticket = halve.step(12).then(halve).then(tell).on_error(complain).submit()
    with app.worker():
        fails(ticket)
        until(lambda: executed["complain"])
        retry(served, ticket.uuid)  # alone: nothing is different
        fails(ticket)
        broken.clear()
        (step,) = failed(client, flow_tree(client, ticket.uuid))
        retry(served, step)
        assert client.wait(step, 60) == [b"3"]
        retry(served, ticket.uuid)
        assert ticket.reply(timeout=60) == "it is 3"
        until(lambda: len(client.list()[0]) == 1)
    assert executed == {"halve": 3, "complain": 1}


def test_flows_within_a_flow_are_retried_too(served: Server, client: Client) -> None:
    broken.add(6)
    group = gather(halve.step(number) for number in (4, 6, 8)).then(total)
    ticket = gather([group, halve.step(10)]).then(total).then(tell).submit()
    with app.worker():
        fails(ticket)
        broken.clear()
        steps = until(lambda: len(found := failed(client, flow_tree(client, ticket.uuid))) == 3 and found)
        for uuid in (*steps, ticket.uuid):
            retry(served, uuid)
        assert ticket.reply(timeout=60) == "it is 14"
        until(lambda: len(client.list()[0]) == 1)
    assert executed == {"halve": 5, "total": 2}


def test_all_of_it_is_retried_at_once(served: Server, client: Client) -> None:
    broken.add(6)
    ticket = gather([gather([halve.step(6), halve.step(4)]).then(total), halve.step(2)]).then(total).then(tell).submit()
    with app.worker():
        fails(ticket)
        broken.clear()
        steps = failed(client, flow_tree(client, ticket.uuid))
        retry(served, ticket.uuid, *reversed(steps))
        assert ticket.reply(timeout=60) == "it is 6"


def test_what_follows_a_step_that_ends_after_its_flow_failed_begins_when_that_is_retried(
    served: Server, client: Client
) -> None:
    broken.add(6)
    ticket = gather([held.step(4).then(halve).then(halve), halve.step(6)]).then(total).then(tell).submit()
    with app.worker(jobs=2):
        fails(ticket)
        go.set()
        until(lambda: client.list(service="r.held", state="done")[0])
        assert [row["state"] for row in client.list(service="r.halve")[0]] == ["failed"]
        broken.clear()
        retry(served, *failed(client, flow_tree(client, ticket.uuid)), ticket.uuid)
        assert ticket.reply(timeout=60) == "it is 4"
    assert executed == {"halve": 4, "total": 1}


def test_what_has_failed_again_is_not_complained_of_again(served: Server, client: Client) -> None:
    broken.add(6)
    ticket = halve.step(6).then(tell).on_error(complain).submit()
    with app.worker():
        for _ in range(2):
            fails(ticket)
            until(lambda: executed["complain"] and all(row["state"] != "running" for row in client.list()[0]))
            retry(served, *failed(client, flow_tree(client, ticket.uuid)), ticket.uuid)
        fails(ticket)
        ticket.close()
        until(lambda: not client.list()[0])
    assert executed == {"halve": 3, "complain": 1}
