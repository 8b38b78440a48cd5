"""Flows with access control: who submits them, whose workers execute them, and who may do neither."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from support.flows import disconnect
from support.serving import config
from support.waiting import until

from broker import new_keys
from titanic import Client, Forbidden, RequestFailed, Server
from titanic.client.flows import flow_tree
from titanic.protocol.tsp import step_key
from titanic.tasks import TaskFailed, Tasks

HANDS = 'work = ["s.*"]\nsubmit = ["s.*"]\nclose = true\nread = "{read}"\n'

PEOPLE = {
    "hands": HANDS.format(read="all"),
    "blind": HANDS.format(read="own"),
    "customer": 'submit = ["s.flow"]\nread = "own"\nclose = true\n',
    "single": 'submit = ["s.double"]\nread = "own"\n',
    "auditor": "admin = true\n",
}


class Scene:
    """A server with access control."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.access = folder, folder / "access.toml"
        self.server_key, self.key = new_keys(folder, "server")
        for name in PEOPLE:
            new_keys(folder, name)
        self.access.write_text("".join(f'[users.{one}]\nkeys = ["{one}.key"]\n{may}' for one, may in PEOPLE.items()))
        self.endpoint = ""
        self._shops: list[Shop] = []

    def client(self, user: str) -> Client:
        key = self.folder / f"{user}.key_secret"
        return Client(self.endpoint, timeout=30, key=str(key), server_key=str(self.server_key))

    def app(self, user: str) -> Shop:
        key = self.folder / f"{user}.key_secret"
        self._shops.append(Shop(Tasks(self.endpoint, name="s", timeout=30, key=str(key), server_key=self.server_key)))
        return self._shops[-1]

    def close(self) -> None:
        for shop in self._shops:
            disconnect(shop.app)


class Shop:
    """The same app, of some user."""

    def __init__(self, app: Tasks) -> None:
        self.app = app
        self.broken = False
        self.goes_on = Event()
        self.goes_on.set()
        self.told: list[str] = []

        @app.task(max_attempts=1)
        def double(number: int) -> int:
            assert self.goes_on.wait(60)
            if self.broken:
                raise ValueError(number)
            return 2 * number

        @app.task
        def tell(number: int) -> str:
            self.told.append(f"it is {number}")
            return self.told[-1]

        self.double, self.tell = double, tell
        self.flow = double.step(4).then(tell)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    with Server(config(tmp_path, access=scene.access, key=scene.key)) as server:
        (scene.endpoint,) = server.endpoints
        yield scene
        scene.close()


def test_one_user_submits_another_executes(scene: Scene) -> None:
    ticket = scene.app("customer").flow.submit()
    with scene.app("hands").app.worker(), scene.client("auditor") as auditor:
        assert ticket.reply(timeout=60) == "it is 8"
        until(lambda: [(row["service"], row["owner"]) for row in auditor.list()[0]] == [("s.flow", "customer")])
    ticket.close()


def test_who_submits_a_flow_sees_it_and_not_its_steps(scene: Scene) -> None:
    hands, customer = scene.app("hands"), scene.app("customer")
    hands.broken = True
    ticket = customer.flow.submit()
    with hands.app.worker(), scene.client("customer") as own, scene.client("hands") as theirs:
        with pytest.raises(TaskFailed, match="ValueError: 4"):
            ticket.reply(timeout=60)
        assert [row["service"] for row in own.list()[0]] == ["s.flow"]
        assert flow_tree(own, ticket.uuid)["steps"] == []
        (step,) = flow_tree(theirs, ticket.uuid)["steps"]
        assert (step["service"], step["state"]) == ("s.double", "failed")
        with pytest.raises(Forbidden):
            customer.double.submit(1)
        assert own.retry(step["uuid"]) == 0  # to him it is not there
        hands.broken = False
        assert (theirs.retry(step["uuid"]), own.retry(ticket.uuid)) == (1, 1)
        assert ticket.reply(timeout=60) == "it is 8"
        root = until(lambda: len(theirs.list()[0]) == 1 and theirs.show(ticket.uuid))
        assert {one["service"]: one["state"] for one in root["closed_steps"]} == {"s.double": "done", "s.tell": "done"}
        assert "closed_steps" not in own.show(ticket.uuid)


def test_who_reads_all_sees_the_steps_of_a_running_flow(scene: Scene) -> None:
    hands = scene.app("hands")
    hands.goes_on.clear()
    ticket = scene.app("customer").flow.submit()
    with scene.client("single") as single, scene.client("auditor") as auditor, scene.client("customer") as own:
        forged = step_key(ticket.uuid, "0.0")
        single.submit("s.double", b"{}", key=forged)
        assert flow_tree(auditor, ticket.uuid)["steps"] == []  # no worker of the flow submitted it
        with hands.app.worker(jobs=2):
            (step,) = until(lambda: flow_tree(auditor, ticket.uuid)["steps"], 30)
            assert (step["service"], auditor.show(step["uuid"])["owner"]) == ("s.double", "hands")
            assert auditor.find([forged]) == own.find([forged], flow=ticket.uuid) == ({}, {})
            hands.goes_on.set()
            assert ticket.reply(timeout=60) == "it is 8"


def test_a_flow_that_is_closed_takes_the_steps_of_others_along(scene: Scene) -> None:
    hands = scene.app("hands")
    hands.goes_on.clear()
    ticket = scene.app("customer").flow.submit()
    with hands.app.worker(jobs=2), scene.client("auditor") as auditor:
        until(lambda: ("s.double", "running") in {(row["service"], row["state"]) for row in auditor.list()[0]})
        ticket.close()
        hands.goes_on.set()
        until(lambda: not auditor.list()[0])
    assert not hands.told


def test_what_is_left_of_a_flow_that_failed_is_its_workers_to_close(scene: Scene) -> None:
    hands = scene.app("hands")
    hands.broken = True
    ticket = scene.app("customer").flow.submit()
    with hands.app.worker(), scene.client("hands") as theirs:
        with pytest.raises(TaskFailed, match="ValueError: 4"):
            ticket.reply(timeout=60)
        ticket.close()
        assert [row["service"] for row in theirs.list()[0]] == ["s.double"]
        hands.app.flow(ticket.uuid).close()
        assert not theirs.list()[0]


def test_workers_that_may_not_see_a_flow_say_so(scene: Scene) -> None:
    ticket = scene.app("customer").flow.submit()
    with (
        scene.app("blind").app.worker(),
        pytest.raises(TaskFailed, match=r'may not see the flow .*; give it read = "all"'),
    ):
        ticket.reply(timeout=60)


def test_nobody_makes_himself_a_step(scene: Scene) -> None:
    """A task that says it is a step would have others executed by the permissions of its worker."""
    place = {"root": "0" * 32, "parent": "0" * 32, "at": "0.0", "then": [{"service": "s.tell"}]}
    body = json.dumps({"args": [1], "kwargs": {}, "flow": place}).encode()
    with scene.app("hands").app.worker(), scene.client("single") as single:
        with pytest.raises(Forbidden):
            single.submit("s.flow", b"{}")
        uuid = single.submit("s.double", body, key="flow:" + "0" * 32 + ":0.0", max_attempts=1)
        with pytest.raises(RequestFailed, match="this is not the flow step"):
            single.wait(uuid, 60)
    with scene.client("auditor") as auditor:
        assert [row["service"] for row in auditor.list()[0]] == ["s.double"]
