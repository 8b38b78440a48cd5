"""The audit: who acted on requests of others and on services, and what was refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.access_files import ALICE, BOB, AccessFiles
from support.serving import serving
from support.waiting import until

from broker import Worker
from titanic import Client, UnknownRequest
from titanic.client.calls import VIA
from titanic.errors import Forbidden
from titanic.facts.audit import Audit, FactsRing, Origin
from titanic.store.memory import MemoryStore

QUEUE = '[users.queue]\nkeys = ["queue.key"]\nadmin = true\nsubmit = ["*"]\nwork = ["echo"]\n'
"""The administrator."""


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    text = ALICE + BOB + 'read = "all"\nclose = true\n' + QUEUE
    return AccessFiles(tmp_path / "access", text)


def keys(files: AccessFiles, name: str) -> dict[str, Any]:
    return {"key": files.secret(name), "server_key": files.server_key}


@pytest.fixture
def via() -> Iterator[None]:
    """A call that states how its user came to the client."""
    token = VIA.set("page 192.0.2.7")
    yield
    VIA.reset(token)


@pytest.fixture
def one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are in the same minute."""
    monkeypatch.setattr("titanic.facts.audit.MINUTE_US", 1 << 60)


def acts(client: Client) -> list[tuple[str, ...]]:
    return [(one["user"], one["act"], one["way"], one["address"]) for one in client.audit()["acts"]]


@pytest.mark.usefixtures("one_minute")
def test_acts_on_requests_of_others_are_kept_over_a_restart(tmp_path: Path, files: AccessFiles, via: None) -> None:
    with serving(tmp_path, access=files.path, key=files.key) as server:
        endpoint = server.endpoints[0]
        with Client(endpoint, **keys(files, "alice")) as alice, Client(endpoint, **keys(files, "queue")) as chief:
            first, second, own = (alice.submit("echo", b"x") for _ in range(3))
            alice.close(own)
            chief.close(first)
            with Client(endpoint, **keys(files, "bob")) as bob:  # without the permission gateway
                bob.look(second)
                bob.look(second)
                bob.close(second)
                with pytest.raises(Forbidden, match="audit = true"):
                    bob.audit()
            chief.set_service("echo", paused=True)
            expected = [
                ("queue", "pause", "page", "192.0.2.7"),
                ("bob", "close", "mdp", "127.0.0.1"),
                ("bob", "read", "mdp", "127.0.0.1"),
                ("queue", "close", "page", "192.0.2.7"),
            ]
            assert acts(chief) == expected
            page = chief.audit(act="close", limit=1)
            assert [one["uuid"] for one in page["acts"]] == [second]
            assert [one["uuid"] for one in chief.audit(act="close", after=page["next"])["acts"]] == [first]
    with (
        serving(tmp_path, access=files.path, key=files.key) as server,
        Client(server.endpoints[0], **keys(files, "queue")) as chief,
    ):
        assert acts(chief) == expected
        refused = chief.audit(refusals=True)["refusals"]
        assert [(one["address"], one["user"]) for one in refused] == [("127.0.0.1", "bob")]


def test_the_receiver_of_completion_events_closes_them_without_a_row(tmp_path: Path, files: AccessFiles) -> None:
    with serving(tmp_path, access=files.path, key=files.key) as server:
        endpoint = server.endpoints[0]
        with Client(endpoint, **keys(files, "alice")) as alice, Client(endpoint, **keys(files, "queue")) as chief:
            chief.set_service("echo", on_end="events")
            with Worker("echo", list, endpoint, **keys(files, "queue")):
                alice.wait(alice.submit("echo", b"x"), 30)
            (event,) = until(lambda: chief.list(service="events")[0], 30)
            other = alice.submit("echo", b"x")
            chief.close(event["uuid"])
            chief.close(other)
            assert [(one["act"], one["uuid"]) for one in chief.audit(act="close")["acts"]] == [("close", other)]


@pytest.mark.usefixtures("one_minute")
def test_a_list_with_beginnings_of_bodies_is_a_read(tmp_path: Path, files: AccessFiles) -> None:
    with serving(tmp_path, access=files.path, key=files.key) as server:
        endpoint = server.endpoints[0]
        with Client(endpoint, **keys(files, "alice")) as alice, Client(endpoint, **keys(files, "queue")) as chief:
            uuids = [alice.submit("echo", b"secret") for _ in range(2)]
            chief.submit("echo", b"own")
            assert [row["begin"] for row in alice.list(begin=3)[0]] == ["sec", "sec"]
            assert alice.list(owner="queue")[0] == []
            assert [row["uuid"] for row in chief.list(owner="alice")[0]] == uuids
            assert chief.audit()["acts"] == []
            chief.list(begin=3)
            chief.list(begin=3)
            (act,) = chief.audit()["acts"]
            assert (act["act"], act["uuid"], act["count"]) == ("read", uuids[0], 2)


def test_a_refused_user_is_in_the_other_ring(tmp_path: Path, files: AccessFiles) -> None:
    with serving(tmp_path, access=files.path, key=files.key) as server:
        endpoint = server.endpoints[0]
        with Client(endpoint, **keys(files, "alice")) as alice, Client(endpoint, **keys(files, "queue")) as chief:
            with pytest.raises(UnknownRequest):
                alice.show(chief.submit("echo", b"x"))
            with pytest.raises(Forbidden):
                alice.set_service("echo", paused=True)
            until(lambda: chief.audit(refusals=True)["refusals"])
            assert chief.audit(refusals=True, user="alice")["refusals"][0]["action"] == "titanic.admin"


def test_many_failed_log_ins_take_no_row_of_an_act() -> None:
    store = MemoryStore()
    audit = Audit(room=1 << 20)
    chief = Origin("ann", "cli", "192.0.2.1")
    for number in range(4_000):
        audit.refused("", "login", f"198.51.100.{number % 250}")
        if number % 20 == 0:
            with store.write() as transaction:
                audit.put(transaction, [chief.act("close", count=1)], 1_000_000 + number)
                audit.put_refusals(transaction, audit.take_refusals())
    with store.read() as transaction:
        assert len(transaction.facts(b"a", limit=5000)) == 200
        assert len(transaction.facts(b"r", limit=5000)) <= 2 * 250


def test_a_ring_deletes_its_oldest_rows() -> None:
    store, ring = MemoryStore(), FactsRing(b"a", 10_000)
    for number in range(1000):
        with store.write() as transaction:
            ring.put(transaction, [(b"a%07d" % number, bytes(92))])
    with store.read() as transaction:
        kept = [key for key, _ in transaction.facts(b"a")]
        assert kept == [b"a%07d" % number for number in range(1000 - len(kept), 1000)]
        assert 80 <= len(kept) <= 100
