"""Flows with servers and workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli_titanic import here
from support.flows import disconnect
from support.nodes import cluster
from support.postgres import needs_postgres
from support.waiting import until

from broker import Worker
from titanic import Client, Server
from titanic.client.flows import flow_tree
from titanic.protocol.submit_options import AT_ONCE
from titanic.settings import ServiceLimits
from titanic.tasks import Tasks, gather

app = Tasks(name="g", timeout=30)
others = Tasks(name="h")


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def total_of(numbers: list[Any], more: int) -> int:
    return int(more + sum(sum(number) if isinstance(number, list) else number for number in numbers))


@others.task(service="elsewhere")
def elsewhere(number: int) -> int:
    raise NotImplementedError


FLOW = gather(double.step(number).then(double) for number in range(3)).then(total)


@pytest.fixture
def served(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(app, "endpoint", server.endpoints[0])
    monkeypatch.setattr(app, "_client", None)
    yield server
    disconnect(app)


def test_a_flow(served: Server, client: Client) -> None:
    ticket = FLOW.submit()
    with app.worker(jobs=2):
        assert ticket.reply(timeout=60) == 12
        assert app.flow(ticket.uuid).reply() == 12
        until(lambda: len(client.list()[0]) == 1)
    ticket.close()
    assert client.list() == ([], None)


@pytest.mark.settings(limits={b"g.double": ServiceLimits(keep=AT_ONCE, keep_failed=1, keep_body=1)})
def test_a_step_is_kept_as_long_as_its_flow_needs_it(served: Server, client: Client) -> None:
    """Longer than its service and the server keep others."""
    ticket = gather([double.step(1), elsewhere.step(5)]).submit()
    with app.worker():
        (step,) = until(lambda: client.list(service="g.double", state="done")[0])
        assert step["options"] == {"keep": 30 * 86400, "keep_failed": 30 * 86400}
        with Worker("elsewhere", lambda frames: b"5", served.endpoints[0]):
            assert ticket.reply(timeout=60) == [2, 5]


def test_a_step_of_another_language_and_what_is_shown(served: Server, client: Client) -> None:
    """Its worker knows nothing of flows: the flow itself goes on behind it."""

    def other(frames: list[bytes]) -> bytes:
        return b"%d" % (json.loads(frames[0])["args"][0] + 1)

    ticket = gather([double.step(1).then(elsewhere).then(double), double.step(5)]).submit()
    with app.worker():
        tree = until(lambda: (found := flow_tree(client, ticket.uuid))["steps"] and found)
        (group,) = tree["steps"]
        assert (group["at"], group["service"]) == ("0.0", "g.flow")
        until(lambda: _states(client, ticket.uuid) == {"0.0": "done", "0.1": "waiting", "1.0": "done"})
        said = here("show", ticket.uuid, "--timeout", "60", "--endpoint", served.endpoints[0]).out.decode()
        shown = [line.split() for line in said.splitlines()]
        services = [line[-3:-1] for line in shown if len(line[-1]) == 32 and line[0] != "uuid"]
        assert services[1:] == [["g.double", "done"], ["elsewhere", "waiting"], ["g.double", "done"]]
        with Worker("elsewhere", other, served.endpoints[0]):
            assert ticket.reply(timeout=60) == [6, 10]


def _states(client: Client, uuid: str) -> dict[str, str]:
    (group,) = flow_tree(client, uuid)["steps"]
    return {step["at"]: step["state"] for step in (group["flow"] or {"steps": []})["steps"]}


def test_closed_steps_are_still_shown(served: Server, client: Client) -> None:
    """With names, last states and durations, those of flows within it, too; to no other user, and after a restart."""
    ticket = gather([double.step(1).then(double), gather([double.step(5)])]).then(total_of, 7).submit()
    with app.worker(jobs=2):
        assert ticket.reply(timeout=60) == 21
        until(lambda: len(client.list()[0]) == 1)
    facts = client.facts()["services"]["g.flow"]
    assert (facts["retried"], facts["failed"]) == (0, 0), "it is asked again and again whether its steps are done"
    tree = flow_tree(client, ticket.uuid, client.show(ticket.uuid)["closed_steps"])
    group, last = tree["steps"]
    assert [(one["at"], one["service"], one["state"], one["closed"]) for one in (group, last)] == [
        ("0.0", "g.flow", "", "done"),
        ("0.1", "g.total_of", "", "done"),
    ]
    assert 0 <= (last["took"] or 0) < 60
    within = group["flow"]
    assert within is not None
    assert [(one["at"], one["service"], one["closed"]) for one in within["steps"]] == [
        ("0.0", "g.double", "done"),
        ("0.1", "g.double", "done"),
        ("1.0", "g.flow", "done"),
    ]
    said = here("show", ticket.uuid, "--timeout", "60", "--endpoint", served.endpoints[0]).out.decode()
    assert "0.1   g.total_of" in said
    assert "closed " not in said
    client.submit("x", key=f"flow:{ticket.uuid}:end")
    client.close(client.submit("x", key=f"flow:{ticket.uuid}:25.0"))
    client.close(client.submit("x", key=f"flow:{ticket.uuid}:no.step"))
    assert len(client.show(ticket.uuid)["closed_steps"]) == 6


@needs_postgres
def test_a_flow_at_several_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitted at one, executed at both, waited for at the other."""
    with cluster(tmp_path, 2) as nodes:
        one, other = nodes[0].endpoints[0], nodes[1].endpoints[0]
        monkeypatch.setattr(app, "endpoint", one)
        monkeypatch.setattr(app, "_client", None)
        ticket = FLOW.submit()
        with app.worker():
            monkeypatch.setattr(app, "endpoint", other)
            with app.worker(), Client(other, timeout=30) as client:
                assert client.wait(ticket.uuid, timeout=60) == [b"12"]
                until(lambda: len(client.list()[0]) == 1)
                steps = client.show(ticket.uuid)["closed_steps"]
                assert sorted(one["service"] for one in steps) == ["g.double"] * 6 + ["g.flow", "g.total"]
                assert all(one["state"] == "done" for one in steps)
                assert [one["service"] for one in steps if one["took"] is None] == ["g.flow"]
        disconnect(app)
