"""What the server remembers of schedules: on each engine, over restarts, by owner, bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.access_files import ALICE, BOB, AccessFiles
from support.cli_titanic import here
from support.postgres import needs_postgres, shared_server
from support.serving import QUICK, config, serving
from support.waiting import until

from broker import User
from titanic import Client, Forbidden, InvalidRequest, Server, ServerConfig
from titanic.facts.registered_schedules import KEPT, LATE, MOST, documents, register
from titanic.protocol.documents import ScheduleReport
from titanic.protocol.messages import ScheduleRow
from titanic.schedules import Schedule, Scheduler
from titanic.schedules.scheduler import REGISTER_LEAST, REGISTER_MOST, pause_schedule, resume_schedule
from titanic.store import Store
from titanic.store.memory import MemoryStore

NIGHTLY = Schedule("nightly", "backup", cron="30 2 * * *", tz="Europe/Berlin")
OFTEN = Schedule("often", "absent", every=1)


@pytest.fixture(params=["lmdb", pytest.param("postgres", marks=needs_postgres)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> ServerConfig:
    """The settings of a server on either engine."""
    if request.param == "lmdb":
        return config(tmp_path)
    postgres = shared_server()
    store = postgres.url(postgres.new_store())
    return ServerConfig(store=store, bind=("tcp://127.0.0.1:*",), grace=0.0, worker=QUICK)


def test_schedules_and_their_last_ticks_are_kept_over_a_restart(where: ServerConfig) -> None:
    with Server(where) as server, Client(server.endpoints[0], timeout=60) as client:
        assert client.schedules() == []
        scheduler = Scheduler(client, [NIGHTLY, OFTEN])
        scheduler.once()
        nightly, often = client.schedules()
        assert (nightly["name"], nightly["owner"], nightly["service"]) == ("nightly", "", "backup")
        assert (nightly["when"], nightly["tz"], nightly["last"], nightly["late"]) == (
            "30 2 * * *",
            "Europe/Berlin",
            None,
            False,
        )
        assert nightly["next"] / 1e6 == NIGHTLY.ticks.after(nightly["seen_at"] / 1e6)
        assert often["when"] == "every 1 s"
        *_, (_, tick, uuid) = until(lambda: Scheduler(client, [OFTEN]).once())
        pause_schedule(client, "nightly")
    with Server(where) as server, Client(server.endpoints[0], timeout=60) as client:
        again, often = client.schedules()
        assert again["paused_at"] > 0
        assert again == nightly | {"paused_at": again["paused_at"]}
        assert often["last"] == {"tick": tick * 1_000_000, "uuid": uuid, "state": "waiting"}
        client.close(uuid)
        assert client.schedules()[1]["last"] == {"tick": tick * 1_000_000, "uuid": uuid, "state": "closed"}
        resume_schedule(client, "nightly")
        assert client.schedules()[0]["paused_at"] == 0
        line = here("cron", "list", "--endpoint", server.endpoints[0]).out.decode().splitlines()[1]
        assert line.split()[:6] == ["nightly", "30", "2", "*", "*", "*"]
        listed = here("cron", "list", "--json", "--endpoint", server.endpoints[0]).json
        assert [one["name"] for one in listed] == ["nightly", "often"]


class OldClient:
    """Passes all on to a client, but for the registration, which servers of before refuse."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.reports: list[list[ScheduleReport]] = []
        self.refuses = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def register_schedules(self, reports: list[ScheduleReport]) -> None:
        self.reports.append(reports)
        if self.refuses:
            raise InvalidRequest("options must be a JSON object", "", "")


def test_ticks_do_not_depend_on_the_registration(client: Client) -> None:
    now = 1e6
    old: Any = OldClient(client)
    scheduler = Scheduler(old, [OFTEN], elapsed=lambda: now)
    until(scheduler.once)
    assert len(old.reports) == 1, "a server that refuses it is not asked again at each tick"
    now += REGISTER_MOST
    old.refuses = False
    scheduler.once()
    now += REGISTER_LEAST - 0.1
    until(scheduler.once)
    assert len(old.reports) == 2, "ticks are reported together"
    now += 0.1
    scheduler.once()
    assert len(old.reports) == 3
    (report,) = old.reports[2]
    assert report["tick"] in scheduler._cores[0].search(client.clock(), 60)


def test_users_see_and_change_their_own_schedules_only(tmp_path: Path) -> None:
    carl = ALICE.replace("alice", "queue").replace('submit = ["*"]', 'submit = ["absent"]')
    files = AccessFiles(tmp_path / "access", ALICE + BOB + carl)
    keys = {"server_key": files.server_key}
    with (
        serving(tmp_path, access=files.path, key=files.key) as server,
        Client(server.endpoints[0], timeout=60, key=files.secret("alice"), **keys) as alice,
        Client(server.endpoints[0], timeout=60, key=files.secret("bob"), **keys) as bob,
        Client(server.endpoints[0], timeout=60, key=files.secret("queue"), **keys) as queue,
    ):
        uuid = alice.submit("absent", b"secret")
        report: ScheduleReport = {"name": "x", "service": "absent", "when": "every 1 s", "tz": "UTC", "next": 5.0}
        alice.register_schedules([report])
        with pytest.raises(Forbidden):
            bob.register_schedules([report])
        assert queue.schedules() == []
        stolen, other = report.copy(), report.copy()
        stolen |= {"tick": 4.0, "uuid": uuid}
        other |= {"name": "y", "service": "mail"}
        queue.register_schedules([stolen, other])
        (own,) = queue.schedules()
        assert own["owner"] == "queue"
        assert own["last"] == {"tick": 4_000_000, "uuid": uuid, "state": "closed"}, "not the state of alice's request"
        (first,) = alice.schedules()
        assert (first["owner"], first["last"]) == ("alice", None)


def row(name: str, next: float = 0.0) -> ScheduleRow:
    return ScheduleRow(name=name, service="mail", when="every 60 s", next=next)


def registered(store: Store, now_us: int, user: User | None, *rows: ScheduleRow) -> None:
    with store.write() as transaction:
        register(transaction, rows, "host:1", user, now_us)


def names(store: Store, now_us: int) -> list[str]:
    with store.read() as transaction:
        return [one["name"] for one in documents(transaction, None, now_us)]


def test_of_too_many_schedules_the_oldest_of_the_user_with_most_go() -> None:
    store, ann, bob = MemoryStore(), User("ann", admin=True), User("bob", admin=True)
    registered(store, 1, bob, row("old"))
    for n in range(MOST - 1):
        registered(store, 2 + n, ann, row(f"{n:03}"))
    assert len(names(store, MOST)) == MOST
    registered(store, MOST + 2, ann, row("new"), row("001"))
    found = names(store, MOST)
    assert len(found) == MOST
    assert {"old", "new", "001"} <= {*found}
    assert "000" not in found


def test_schedules_that_are_not_refreshed_go() -> None:
    store = MemoryStore()
    registered(store, 1, None, row("a"), row("b"))
    registered(store, KEPT, None, row("b"))
    assert names(store, KEPT) == ["a", "b"]
    registered(store, KEPT + 2, None, row("c"))
    assert names(store, KEPT) == ["b", "c"]


def test_what_was_registered_while_the_clock_was_ahead_does_not_stay() -> None:
    """Neither are later ticks hidden by one of then."""
    store, ahead = MemoryStore(), 40 * KEPT
    before = ScheduleRow(
        name="a", service="x", when="hourly", tz="UTC", next=ahead / 1e6, tick=ahead / 1e6, uuid="0a" * 16
    )
    registered(store, ahead, None, before, row("b"))
    registered(store, KEPT, None, structs.replace(before, tick=3.0, uuid="0b" * 16))
    with store.read() as transaction:
        (found,) = documents(transaction, None, KEPT)
    assert (found["name"], found["last"] and found["last"]["tick"]) == ("a", 3_000_000)


def test_a_schedule_is_late_if_its_tick_does_not_come() -> None:
    store = MemoryStore()
    registered(store, 1, None, row("a", next=60.0))
    with store.read() as transaction:
        for now_us, late in ((60_000_000 + LATE, False), (60_000_001 + LATE, True)):
            assert documents(transaction, None, now_us)[0]["late"] is late
