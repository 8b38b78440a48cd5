"""The audit under faults: full stores, kills, nodes, repairs and moves; and that each act has one row, whichever way it
comes."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from support import torture
from support.cli_titanic import here
from support.nodes import cluster
from support.ports import free_port
from support.postgres import PASSWORD, needs_postgres, shared_server
from support.processes import SUPPORT, Process
from support.serving import serving
from support.waiting import PATIENCE, until
from support.web_secured import PEOPLE, TOKENS, Secured, csrf_of, secured

from titanic import Client, Refused
from titanic.facts.audit import ACTS, MINUTE_US
from titanic.protocol.documents import AuditAct
from titanic.store import Store
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import salvage

MIB = 1 << 20


def every_act(client: Client, **wanted: Any) -> list[AuditAct]:
    """All of them, the newest first."""
    found, after = list[AuditAct](), None
    while True:
        page = client.audit(after=after, limit=1000, **wanted)
        found += page["acts"]
        after = page["next"]
        if after is None:
            return found


def keys_of(store: Store) -> list[bytes]:
    """The rows of acts, the oldest first."""
    found, after = list[bytes](), b""
    with store.read() as transaction:
        while rows := transaction.facts(ACTS, after):
            found += [key for key, _ in rows]
            after = found[-1]
    return found


def toggle(client: Client, service: str, times: int, begin: int = 0) -> None:
    """Acts that change something each time."""
    for number in range(begin, begin + times):
        assert client.set_service(service, paused=number % 2 == 0)["done"] == 1


def fill(client: Client, size: int) -> None:
    """Submit requests with bodies of this size until the store is full."""
    with suppress(Refused):
        for _ in range(20_000):
            client.submit_batch("full", [os.urandom(size)] * 50)
        pytest.fail("it is never full")


def test_a_full_store_refuses_no_act(tmp_path: Path) -> None:
    """More acts than there is room for: the oldest rows go."""
    with (
        serving(tmp_path, capacity=16 * MIB, durability="relaxed") as server,
        Client(server.endpoints[0], timeout=PATIENCE) as client,
    ):
        fill(client, 3000)
        fill(client, 10)
        assert keys_of(server.store) == []
        toggle(client, "mail" * 50, 500)
        oldest, total = keys_of(server.store)[0], 500
        while keys_of(server.store)[0] == oldest:
            toggle(client, "mail" * 50, 500)
            total += 500
            assert total < 20_000
        fill(client, 10)  # there is no more room for requests than before
        kept = every_act(client)
        assert 500 < len(kept) < total
        assert [one["act"] for one in kept[:4]] == ["resume", "pause", "resume", "pause"]
        times = [one["at"] for one in kept]
        assert times == sorted(times, reverse=True)
        with server.store.read() as transaction:
            assert transaction.facts_bytes() <= server.store.facts_room
        assert client.purge("waiting") > 1000
        assert client.audit(limit=1)["acts"][0]["act"] == "purge"


@pytest.mark.torture(short=True)
def test_an_act_that_was_answered_has_one_row_after_a_kill(place: str, tmp_path: Path) -> None:
    endpoint, script = f"tcp://127.0.0.1:{free_port()}", SUPPORT / "server_process.py"
    both = endpoint, endpoint.replace("127.0.0.1", "localhost")  # a client of several notices at once that one is gone
    done, enough, end = Counter[str](), 100 if torture.LONG else 15, Event()

    def act(service: str) -> None:
        with Client(both, timeout=PATIENCE) as client:
            for number in range(100_000):
                if end.is_set():
                    return
                client.set_service(service, paused=number % 2 == 0)
                done[service] += 1

    def start() -> Process:
        return Process(script, "serve", endpoint, place, output=tmp_path / "server.out")

    process = start()
    services = [f"service {number}" for number in range(3)]
    try:
        with ThreadPoolExecutor() as pool:
            acting = [pool.submit(act, service) for service in services]
            try:
                for _ in range(8 if torture.LONG else 2):
                    before = done.copy()
                    until(
                        lambda before=before: all(done[one] >= before[one] + enough or end.is_set() for one in services)
                    )
                    process.kill()
                    process = start()
                before = done.copy()
                until(lambda: all(done[one] > before[one] for one in services))
            finally:
                end.set()
            for one in acting:
                one.result()
        with Client(endpoint, timeout=PATIENCE) as client:
            rows = every_act(client)
        assert Counter(one["service"] for one in rows) == done
        for service in services:
            mine = [one["act"] for one in reversed(rows) if one["service"] == service]
            assert mine == (["pause", "resume"] * len(mine))[: len(mine)]
    finally:
        process.kill()


@needs_postgres
def test_nodes_share_the_audit(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as nodes:
        with ThreadPoolExecutor() as pool:
            acting = [pool.submit(toggle, nodes.clients[n], f"of {n}", 60) for n in range(2)]
            for one in acting:
                one.result()
        minute = int(time.time() * 1e6) // MINUTE_US - 1
        row = {"minute": minute, "address": "192.0.2.1", "count": 3, "action": "login"}
        body = json.dumps({"do": "refused", "rows": [row, {**row, "minute": minute - 1}]}).encode()
        for client in (*nodes.clients, nodes.clients[0]):
            assert client.call("titanic.admin", body)[0] == b"200"
        for client in nodes.clients:
            acts = every_act(client)
            assert Counter(one["service"] for one in acts) == {"of 0": 60, "of 1": 60}
            times = [one["at"] for one in acts]
            assert times == sorted(times, reverse=True)
            refused = client.audit(refusals=True, address="192.0.2.1")["refusals"]
            assert [(one["at"], one["count"]) for one in refused] == [
                (minute * MINUTE_US, 9),
                ((minute - 1) * MINUTE_US, 9),
            ]
            first = client.audit(refusals=True, limit=1, address="192.0.2.1")
            second = client.audit(refusals=True, limit=1, address="192.0.2.1", after=first["next"])
            assert first["refusals"] + second["refusals"] == refused


@pytest.fixture(scope="module")
def acted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 300 acts."""
    folder = tmp_path_factory.mktemp("acted")
    with serving(folder, capacity=16 * MIB) as server, Client(server.endpoints[0], timeout=PATIENCE) as client:
        client.submit_batch("echo", [b"x" * 500] * 50)
        toggle(client, "mail", 300)
    return folder / "store"


def acts_in(place: Path | str) -> list[AuditAct]:
    """What a server on this store shows."""
    folder = Path(place).parent if isinstance(place, Path) else Path()
    with serving(folder, store=place) as server, Client(server.endpoints[0], timeout=PATIENCE) as client:
        return every_act(client)


def copied(acted: Path, tmp_path: Path, name: str) -> Path:
    """A copy of it, which `titanic restore` made."""
    store = tmp_path / name / "store"
    assert here("restore", acted, "--store", store).code == 0
    return store


def offline(acts: list[AuditAct]) -> list[tuple[str, str, str]]:
    """The acts of tools, the newest first."""
    return [(one["act"], one["user"], one["text"]) for one in acts if one["way"] == "offline"]


def test_only_age_removes_rows_and_repairs_are_acts(acted: Path, tmp_path: Path) -> None:
    store, me = copied(acted, tmp_path, "one"), getpass.getuser()
    with LmdbStore.open(store) as opened, opened.write() as transaction:
        transaction.put_facts([(b"c damaged", b"odd")])
        transaction.raw.put(b"c damaged\0", b"odd", db=transaction.db.facts)
    assert here("check", "--repair", "--store", store).code == 0
    assert here("check", "--repair", "--store", store).code == 0  # changes nothing
    expected = [("repair", me, "1 problem"), ("restore", me, f"from {acted}")]
    with serving(store.parent, capacity=16 * MIB) as server, Client(server.endpoints[0], timeout=PATIENCE) as client:
        assert client.purge("waiting") == 50
        for number in range(1200):  # more names than are counted
            client.submit(f"name {number}", b"x")
        assert client.purge("waiting") == 1200
    found = acts_in(store)
    assert offline(found) == expected
    assert Counter(one["act"] for one in found if one["way"] == "mdp").items() >= {("pause", 150), ("resume", 150)}


def test_a_salvaged_store_has_the_audit(acted: Path, tmp_path: Path) -> None:
    store = copied(acted, tmp_path, "one")
    before = len(acts_in(store))
    salvage(store)
    assert len(acts_in(store)) == before


@needs_postgres
def test_the_audit_moves_with_the_store(acted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, me = shared_server(), getpass.getuser()
    name = server.new_database()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    there = f"postgresql://titanic@127.0.0.1:{server.port}/{name}"
    back = tmp_path / "back" / "store"
    before = [one for one in acts_in(copied(acted, tmp_path, "before")) if one["way"] == "mdp"]
    for source, target in ((acted, there), (there, back)):
        done = here("migrate", source, target)
        assert done.code == 0, done.err
    found = acts_in(back)
    assert [one for one in found if one["way"] == "mdp"] == before
    assert offline(found) == [("migrate", me, f"from {there}"), ("migrate", me, f"from {acted}")]
    server.drop_database(name)


USERS = ("ann", "bea", "cid")
ACTING, STRANGERS = (1000, 100_000) if torture.LONG else (72, 600)


@pytest.mark.torture(short=True)
@pytest.mark.timeout(torture.MOST_SECONDS if torture.LONG else 600)
def test_each_act_has_one_row_whichever_way_it_comes(tmp_path: Path) -> None:
    """Those of three users by the library, the command line, the page and the API, beside many failed log-ins."""
    with pytest.MonkeyPatch.context() as patch:
        for name in USERS:
            patch.setitem(PEOPLE, name, 'read = "all"\nclose = true\ngateway = true\n')
            patch.setitem(TOKENS, name, f"token-of-{name}")
        with secured(tmp_path / "scene") as scene:
            _act(scene)


def _act(scene: Secured) -> None:
    endpoint, server_key = scene.server.endpoints[0], str(scene.server_key)
    answer = scene.program("alice").post("/v1/services/x/requests:batch", json=[1] * ACTING)
    uuids = answer.json()["uuids"]
    planned: dict[str, tuple[str, str]] = {}
    """The user and the way of each."""
    ways = cycle([(user, way) for way in ("library", "command", "page", "http") for user in USERS])
    for uuid, how in zip(uuids, ways, strict=False):
        planned[uuid] = how
    of = {how: [uuid for uuid in uuids if planned[uuid] == how] for how in set(planned.values())}

    def key(user: str) -> str:
        return str(scene.keys / f"{user}.key_secret")

    def by_library(user: str) -> None:
        with Client(endpoint, timeout=PATIENCE, key=key(user), server_key=server_key) as client:
            for uuid in of[user, "library"]:
                client.close(uuid)

    def by_page(user: str) -> None:
        browser = scene.browser(user)
        csrf = csrf_of(browser.get("/users").text)
        for uuid in of[user, "page"]:
            answer = browser.post(f"/actions/requests/{uuid}/close", data={"csrf": csrf})
            assert answer.status_code == 303, answer.text

    def by_http(user: str) -> None:
        program = scene.program(user)
        for uuid in of[user, "http"]:
            assert program.delete(f"/v1/requests/{uuid}").status_code == 204

    def fail(stranger: int) -> None:
        transport = httpx.HTTPTransport(local_address=f"127.0.1.{stranger}", verify=False)
        with httpx.Client(base_url=scene.url, timeout=PATIENCE, transport=transport) as client:
            for number in range(STRANGERS // 4):
                if number % 3:
                    wrong = client.get("/v1/stats", headers={"Authorization": "Bearer wrong"})
                else:
                    wrong = client.post("/login", data={"token": f"wrong {number}"})
                assert wrong.status_code in (401, 403, 429)

    with ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(one, user) for one in (by_library, by_page, by_http) for user in USERS]
        jobs += [pool.submit(fail, stranger) for stranger in range(1, 5)]
        for user in USERS:
            for uuid in of[user, "command"]:
                options = ("--endpoint", endpoint, "--key-file", key(user), "--server-key", server_key)
                assert here("close", uuid, *options).code == 0
        for job in jobs:
            job.result()
    with Client(endpoint, timeout=PATIENCE, key=key("chief"), server_key=server_key) as chief:
        rows = every_act(chief)
        names = {"library": "mdp", "command": "mdp", "page": "page", "http": "http"}
        assert {(one["uuid"], one["user"], one["way"]) for one in rows} == {
            (uuid, user, names[way]) for uuid, (user, way) in planned.items()
        }
        assert len(rows) == ACTING
        assert {(one["act"], one["address"], one["count"]) for one in rows} == {("close", "127.0.0.1", 1)}

        def refused() -> int:
            found = chief.audit(refusals=True, limit=1000)["refusals"]
            return sum(one["count"] for one in found if one["address"].startswith("127.0.1."))

        until(lambda: refused() >= STRANGERS // 4 * 4)
        assert refused() == STRANGERS // 4 * 4
