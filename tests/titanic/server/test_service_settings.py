"""What operators set for services: a paused one, and requests that are stored when others have ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any

import pytest
from support.each import each
from support.nodes import cluster, deafen, heard_of_each_other
from support.postgres import needs_postgres, shared_server
from support.processes import run_fork
from support.serving import QUICK, config, serving
from support.store_facts import state_of
from support.waiting import until

from broker import Worker
from titanic import Client, InvalidRequest, Refused, Server
from titanic.dispatch.attempts import Finish
from titanic.dispatch.outcomes import CompletionEvents, OutcomeWrite
from titanic.facts import set_service
from titanic.facts.recorder import FactsRecorder
from titanic.facts.set_service import KnownSettings
from titanic.protocol.messages import SetAction
from titanic.store import MIN_CAPACITY, LeaseConfig, ServiceSetting, State, Status, open_store
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import check


def shout(frames: list[bytes]) -> list[bytes]:
    if frames == [b"fail"]:
        raise RuntimeError("as you wish")
    return [frame.upper() for frame in frames]


@pytest.fixture(params=["lmdb", pytest.param("postgresql", marks=needs_postgres)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Of servers that have the same store, one after the other."""
    given: dict[str, Any] = {"presence_most": 0.1, "max_attempts": 1}
    if request.param == "lmdb":
        yield given
        return
    postgres = shared_server()
    name = postgres.new_store()
    yield given | {"store": postgres.url(name)}
    postgres.drop_database(name)


@contextmanager
def serve(path: Path, settings: dict[str, Any]) -> Iterator[Server]:
    if "store" not in settings:
        with serving(path, **settings) as server:
            yield server
        return
    with Server(config(path, **settings)) as server:
        yield server
        assert server.alive
        assert check(server.store) == []


@pytest.fixture
def server(tmp_path: Path, settings: dict[str, Any]) -> Iterator[Server]:
    with serve(tmp_path, settings) as server:
        yield server


def states(client: Client, *uuids: str) -> list[str]:
    return [client.show(uuid)["state"] for uuid in uuids]


def test_a_paused_service_gets_nothing_until_it_is_resumed(server: Server, client: Client) -> None:
    told = client.set_service("shout", paused=True)
    assert told == {"done": 1, "service": "shout", "paused": True, "on_end": None}
    with (
        Worker("shout", shout, server.endpoints[0], config=QUICK),
        Worker("other", shout, server.endpoints[0], config=QUICK),
    ):
        waits, dies = client.submit("shout", "a"), client.submit("shout", "b", ttl=0.2)
        assert client.wait(client.submit("other", "x"), 30) == [b"X"]
        assert client.call("shout", "plain") == [b"PLAIN"], "a plain request is not Titanic's"
        until(lambda: client.show(dies)["state"] == "expired")
        assert states(client, waits) == ["waiting"]
        assert client.stats()["settings"] == {"shout": {"paused": True, "on_end": None}}
        assert client.set_service("shout", paused=False)["paused"] is False
        assert client.wait(waits, 30) == [b"A"]
    assert "settings" not in client.stats()


def test_what_waits_at_the_broker_comes_back_and_what_runs_goes_on(server: Server, client: Client) -> None:
    with Worker("shout", shout, server.endpoints[0], config=QUICK):
        uuids = client.submit_many("shout", [b"x"] * 1000)
        client.set_service("shout", paused=True)
        until(lambda: server.dispatcher.stats()["running"] == 0)
        done = sum(state == "done" for state in states(client, *uuids[::10]))
        assert sum(state == "done" for state in states(client, *uuids[::10])) == done
        assert server.dispatcher.core.counts["failed"] == 0
        client.set_service("shout", paused=False)
        assert all(outcome == [b"X"] for _, outcome in client.replies(uuids, 60))


def test_it_survives_a_restart(tmp_path: Path, settings: dict[str, Any]) -> None:
    with serve(tmp_path, settings) as server, Client(server.endpoints[0], timeout=30) as client:
        client.set_service("shout", paused=True, on_end="")
        client.set_service("größe", on_end="told")
        waits = client.submit("shout", "a")
    with (
        serve(tmp_path, settings) as server,
        Client(server.endpoints[0], timeout=30) as client,
        Worker("shout", shout, server.endpoints[0], config=QUICK),
    ):
        until(lambda: client.call("shout", "x") == [b"X"])
        assert states(client, waits) == ["waiting"]
        told = client.stats()["settings"]
        assert told == {
            "shout": {"paused": True, "on_end": None},
            "größe": {"paused": False, "on_end": "told"},
        }
        client.set_service("shout", paused=False)
        assert client.wait(waits, 30) == [b"A"]


def test_each_end_is_told_once(server: Server, client: Client) -> None:
    client.set_service("shout", on_end="told")
    client.set_service("told", on_end="shout")  # neither tells the other of its own: there are no loops
    client.set_service("told", on_end="")
    told: dict[str, dict[str, Any]] = {}

    def hear(frames: list[bytes]) -> list[bytes]:
        (body,) = frames
        said = json.loads(body)
        assert said["uuid"] not in told
        told[said["uuid"]] = said
        return [b""]

    with (
        Worker("shout", shout, server.endpoints[0], config=QUICK),
        Worker("told", hear, server.endpoints[0], config=QUICK),
    ):
        done = client.submit("shout", "a", key="k")
        failed = client.submit("shout", "fail")
        expired = client.submit("shout", "c", delay=1000, ttl=0.1)
        closed = client.submit("shout", "d", delay=1000)
        client.close(closed)
        client.submit("elsewhere", "e", ttl=0.05)
        until(lambda: len(told) == 3)
    rows = {uuid: client.show(uuid) for uuid in (done, failed, expired)}
    assert {uuid: said["state"] for uuid, said in told.items()} == {
        done: "done",
        failed: "failed",
        expired: "expired",
    }
    for uuid, said in told.items():
        row: Any = rows[uuid]
        names = ("service", "key", "submitted_at", "finished_at", "attempts", "reason")
        assert said == {name: row[name] for name in names} | {"uuid": uuid, "state": row["state"], "owner": ""}
    assert [row["type"] for row in client.list(service="told")[0]] == ["application/json"] * 3
    assert client.retry(failed) == 1


def fill(client: Client, size: int) -> None:
    """Until there is no room for one more of that size."""
    with suppress(Refused):
        while True:
            client.submit("full", b"x" * size)


def test_an_end_that_finds_no_room_does_no_harm(tmp_path: Path) -> None:
    with (
        serving(tmp_path, capacity=MIN_CAPACITY, max_attempts=1) as server,
        Client(server.endpoints[0], timeout=30) as client,
    ):
        client.set_service("shout", on_end="told")
        uuids = [client.submit("shout", "a") for _ in range(5)]
        go = Semaphore(0)

        def work(frames: list[bytes]) -> list[bytes]:
            assert go.acquire(timeout=60)
            return shout(frames)

        fill(client, 100_000)
        with Worker("shout", work, server.endpoints[0], config=QUICK):
            for uuid in uuids:
                fill(client, 10)  # again: while somebody reads, pages that are free cannot be used
                go.release()
                assert client.wait(uuid, 30) == [b"A"]
        told = len(client.list(service="told")[0])
        assert client.stats()["since_start"]["ends_missed"] == len(uuids) - told > 0


@needs_postgres
@pytest.mark.parametrize("deaf", [False, True])
def test_every_node_learns_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool) -> None:
    if deaf:  # then it is seen when the lease is renewed
        deafen(monkeypatch)
    with cluster(tmp_path, 2, presence_most=0.1, lease=LeaseConfig(renew=0.2)) as nodes:
        if not deaf:
            heard_of_each_other(nodes)
        a, b = nodes.clients
        a.set_service("shout", paused=True, on_end="told")
        until(lambda: nodes[1].dispatcher.settings.paused == {b"shout"})
        with Worker("shout", shout, nodes[1].endpoints[0], config=QUICK):
            until(lambda: b.call("shout", "x") == [b"X"])
            uuid = a.submit("shout", "a")
            b.set_service("shout", paused=False)
            assert a.wait(uuid, 30) == [b"A"]
        assert b.stats()["settings"] == {"shout": {"paused": False, "on_end": "told"}}
        assert [row["state"] for row in a.list(service="told")[0]] == ["waiting"]


@needs_postgres
def test_two_admins_set_a_service_at_two_nodes_at_once() -> None:
    name = shared_server().new_store()
    url = shared_server().url(name)
    with PostgresStore.open(url) as one, PostgresStore.open(url) as other:

        def set_on_end() -> None:
            with other.write() as txn:
                set_service.apply(txn, SetAction("a", on_end="told"), (0, ""), {})

        thread = Thread(target=set_on_end)
        with one.write() as txn:
            set_service.apply(txn, SetAction("a", paused=True), (0, ""), {})
            thread.start()
            waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
            until(lambda: shared_server().sql(waits, name) == 1)
        thread.join()
        with one.read() as txn:
            assert txn.service_settings() == {b"a": ServiceSetting(True, b"told")}
    shared_server().drop_database(name)


@each(
    "wrong",
    [
        {},
        *({"service": service} for service in ("", "titanic.list", 5)),
        *({"service": "a", "on_end": target} for target in ("a", 7, "mmi.x")),
        {"service": "a", "paused": "yes"},
        {"service": "a", "what": 1},
    ],
)
def test_what_cannot_be_set(client: Client, wrong: dict[str, Any]) -> None:
    (answer,) = client.call("titanic.admin", json.dumps({"do": "set", **wrong}))
    assert answer.startswith(b"400 ")
    with pytest.raises(InvalidRequest):
        client.set_service("mmi.x", paused=True)


def test_all_about_each_service(server: Server, client: Client) -> None:
    client.set_service("shout", paused=True, on_end="told")
    with Worker("other", shout, server.endpoints[0], config=QUICK):
        client.wait(client.submit("other", "a"), 30)
        failed = client.submit("other", "fail")
        client.submit("other", "x", ttl=0.1, delay=1000)
        waits = client.submit("shout", "12345")
        client.submit("shout", "x", delay=1000)
        until(lambda: client.stats(services=True)["by_service"]["other"]["expired"] == 1)
        until(lambda: client.show(failed)["state"] == "failed")
        told = client.stats(services=True)
    row = client.show(waits)
    assert row.get("paused") is True
    limits = dict.fromkeys(("waiting", "bytes", "running", "rate"))
    shouted = told["by_service"].pop("shout")
    assert shouted.pop("bytes") > 0
    assert row["submitted_at"] - 1000 <= shouted.pop("oldest") <= row["submitted_at"] + 1000
    assert shouted == {
        "waiting": 1,
        "delayed": 1,
        "running": 0,
        "workers": 0,
        "done": 0,
        "failed": 0,
        "expired": 0,
        "paused": True,
        "on_end": "told",
        "limits": limits,
    }
    assert told["by_service"] == {
        "other": {
            "waiting": 0,
            "delayed": 0,
            "running": 0,
            "workers": 1,
            "done": 1,
            "failed": 1,
            "expired": 1,
            "bytes": 0,
            "oldest": None,
            "paused": False,
            "on_end": None,
            "limits": limits,
        }
    }
    assert told["refusals"] == []
    assert "by_service" not in client.stats()
    assert server.snapshot().paused == ["shout"]


DIES = """
import os
import sys
from pathlib import Path
from titanic.dispatch.outcomes import CompletionEvents
from titanic.facts.recorder import FactsRecorder
from titanic.facts.set_service import KnownSettings
from titanic.store import NewRequest, ServiceSetting, Status, open_store

place, when = sys.argv[1:]
store = open_store(place if "://" in place else Path(place), capacity=64 << 20)
known = KnownSettings()
known.know({b"shout": ServiceSetting(on_end=b"told")})
ends = CompletionEvents(known, None, FactsRecorder(store))
with store.write() as transaction:
    (accepted,) = transaction.accept([NewRequest(b"shout", [b"x"])], store.now_us())
    uuid = accepted.uuid
print(uuid.hex(), flush=True)
with store.write() as transaction:
    transaction.finish(uuid, Status.DONE, [b"R"], attempts=1, dispatched_at=1, finished_at=2)
    if when == "between":
        os.kill(os.getpid(), 9)
    stored = ends.store(transaction, [uuid], store.now_us())
    if when == "before the commit":
        os.kill(os.getpid(), 9)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("when", ["between", "before the commit", "after it"])
def test_whoever_is_killed_has_stored_both_or_none(tmp_path: Path, settings: dict[str, Any], when: str) -> None:
    place = settings.get("store", str(tmp_path / "store"))
    code, out, err = run_fork(DIES, str(place), when)
    assert code == -9, err
    uuid = bytes.fromhex(out)
    with open_store(place, capacity=64 << 20) as store:
        with store.read() as transaction:
            told = transaction.select(service=b"told")
            ended = state_of(transaction, uuid) is State.DONE
        assert (ended, len(told)) == ((True, 1) if when == "after it" else (False, 0))
        known = KnownSettings()
        known.know({b"shout": ServiceSetting(on_end=b"told")})
        outcome = Finish(uuid, Status.DONE, [b"R"], 1, "", 0.0)
        for _ in range(2):  # the outcome is tried again: that is no second end
            write = OutcomeWrite([outcome], Unread(), CompletionEvents(known, Unread(), FactsRecorder(store)))
            with store.write() as transaction:
                write.apply(transaction, store.now_us())
            write.committed()
        with store.read() as transaction:
            assert state_of(transaction, uuid) is State.DONE
            assert len(transaction.select(service=b"told")) == 1


class Unread:
    """An inbox."""

    def post(self, notice: Any) -> None: ...
