"""Schedulers at a real server."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Unpack

import pytest
from support.serving import serving
from support.waiting import PATIENCE, until

from titanic import Client, Server
from titanic.client.request_queue import Found
from titanic.errors import InvalidSchedule, UnknownRequest
from titanic.protocol.submit_options import SubmitOptions
from titanic.schedules import Schedule, Scheduler
from titanic.schedules.schedule import Missed
from titanic.schedules.schedule_file import read_schedules
from titanic.schedules.scheduler import (
    Plan,
    ScheduleCore,
    ask_to_run,
    last_tick,
    pause_schedule,
    paused_schedules,
    resume_schedule,
    submit_now,
    submit_tick,
    submitted_ticks,
)
from titanic.settings import ServiceLimits
from titanic.tasks import Tasks

EACH_SECOND = Schedule("often", "absent", "a body", every=1, options={"priority": 7})


@contextmanager
def running(endpoint: str, *schedules: Schedule) -> Iterator[Scheduler]:
    with Client(endpoint, timeout=1, retries=0) as client:
        scheduler = Scheduler(client, schedules)
        thread = threading.Thread(target=scheduler.run)
        thread.start()
        try:
            yield scheduler
        finally:
            scheduler.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()


def submitted(client: Client, name: str = "often") -> Counter[str]:
    """The requests for the service `absent` by the key of their tick."""
    return Counter(
        row["key"] for row in client.list(service="absent", limit=1000)[0] if row["key"].startswith(f"cron:{name}:2")
    )


def test_each_tick_is_one_request_of_three_schedulers_also_when_the_server_is_away(tmp_path: Path) -> None:
    every = Schedule("often", "absent", every=1, missed="all")
    endpoint = f"ipc://{tmp_path}/socket"
    with running(endpoint, every), running(endpoint, every), Client(endpoint, timeout=30) as client:
        with serving(tmp_path, bind=(endpoint,)), running(endpoint, every):
            until(lambda: submitted(client))
        with serving(tmp_path, bind=(endpoint,)):
            seen = len(submitted(client))
            until(lambda: len(submitted(client)) > seen)
            found = submitted(client)
    first, last = (datetime.fromisoformat(key.split(":", 2)[2]).timestamp() for key in (min(found), max(found)))
    assert found == Counter(every.key(tick) for tick in range(int(first), int(last) + 1))


def test_a_new_schedule_begins_with_its_next_tick(client: Client) -> None:
    hourly = Schedule("hourly", "absent", every=3600, missed="all")
    assert Scheduler(client, [hourly]).once() == []
    assert client.list()[0] == []
    assert last_tick(client, hourly, client.clock()) is None


def past_tick(client: Client, schedule: Schedule, count: int) -> int:
    """Do as if the last ticks but so many had been submitted, long ago."""
    tick = schedule.ticks.last(client.clock(), count + 1)[0]
    submit_tick(client, schedule, tick)
    return tick


@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("once", 1), ("all", 100)])
def test_what_was_missed(client: Client, missed: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    yearly = Schedule("thirds", "absent", every=86_400 * 120, missed=missed)  # type: ignore[arg-type]
    monkeypatch.setattr("titanic.schedules.scheduler._time_of", lambda uuid: 0.0)  # it has been known since 1970
    past_tick(client, yearly, 140)
    scheduler = Scheduler(client, [yearly])
    done = scheduler.once()
    assert [tick for _, tick, _ in done] == yearly.ticks.last(client.clock(), 100)[100 - count :]
    assert scheduler.once() == Scheduler(client, [yearly]).once() == []


@pytest.mark.parametrize(("missed", "late"), [("skip", []), ("once", [40]), ("all", [30, 40])])
def test_ticks_that_are_not_late_are_submitted_whatever_the_policy(missed: Missed, late: list[int]) -> None:
    """After a pause of more than one tick; the policy decides about ticks that are over a minute late."""
    core = ScheduleCore(Schedule("ten", "absent", every=10, missed=missed))
    core.done(Plan([20], 20))
    assert core.due(49) is None
    assert core.missed(49, [10, 20, 30, 40], [10, 20], 0).ticks == [30, 40]
    assert core.missed(500, [10, 20, 30, 40], [10, 20], 0).ticks == late


def test_a_pause_holds_for_all_and_what_passes_meanwhile_is_not_missed(server: Server, client: Client) -> None:
    often = Schedule("often", "absent", every=1, missed="all")
    with running(server.endpoints[0], often):
        until(lambda: submitted(client))
        pause_schedule(client, "often")
        pause_schedule(client, "often")
        assert paused_schedules(client, ["often", "other"]).keys() == {"often"}
        other = Scheduler(client, [often])
        other.once()
        then = client.clock()
        until(lambda: client.clock() > then + 1.2)
        assert other.once() == Scheduler(client, [often]).once() == []
        last = max(submitted(client))
        resumed = client.clock()
        assert resume_schedule(client, "often")
        until(lambda: max(submitted(client)) > last)
    assert Scheduler(client, [often]).once() == [] or client.clock() > resumed + 1
    assert min(key for key in submitted(client) if key > last) > often.key(int(resumed) - 1)
    assert not resume_schedule(client, "often")
    pause_schedule(client, "often")
    assert paused_schedules(client, ["often"])
    client.close(paused_schedules(client, ["often"])["often"])  # somebody purges it
    assert not paused_schedules(client, ["often"])
    pause_schedule(client, "often")
    assert paused_schedules(client, ["often"])


def test_what_is_paused_does_not_look_as_if_it_waited(client: Client) -> None:
    pause_schedule(client, "often")
    (row,) = client.list()[0]
    assert (row["service"], row["state"], row["not_before"] > 2e15) == ("cron.paused", "delayed", True)
    assert client.stats()["services"] == {}


def test_a_tick_of_a_unique_schedule_finds_the_request_before(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.schedules.scheduler._time_of", lambda uuid: 0.0)  # it has been known since 1970
    (file := tmp_path / "s.toml").write_text(
        '[often]\nservice = "absent"\nevery = 1\nmissed = "all"\nunique = "a"\nunique-for = "1h"\non-failed = "mail"\n'
        'on-limit = "leave"\n'
    )
    (schedule,) = read_schedules(file)
    assert schedule.options == {"unique": "a", "unique_for": 3600.0, "on_failed": "mail", "on_limit": "leave"}
    past_tick(client, schedule, 5)
    with caplog.at_level(logging.INFO, "titanic.cron"):
        assert len({uuid for _, _, uuid in Scheduler(client, [schedule]).once()}) == 1
    assert "of before, which is unique" in caplog.text
    assert sum(submitted(client).values()) == 1
    (row,) = client.list(service="absent")[0]
    assert (row["unique"], row["on_failed"], row["on_limit"]) == ("a", "mail", "leave")


class Overtaken(Client):
    """A scheduler's, at each of whose ticks the request before ends, and another scheduler submits the tick first."""

    def submit(self, service: str, *body: bytes | str, **options: Unpack[SubmitOptions]) -> str:
        uuid = super().submit(service, *body, **options)
        if isinstance(uuid, Found):
            self.close(uuid)
            super().submit(service, *body, **options)
        return uuid


def test_a_tick_that_has_found_the_request_before_never_comes_again(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.schedules.scheduler._time_of", lambda uuid: 0.0)  # it has been known since 1970
    yearly = Schedule("thirds", "absent", every=86_400 * 120, missed="all", options={"unique": "a"})
    past_tick(client, yearly, 3)
    assert len(Scheduler(client, [yearly]).once()) == 3
    (row,) = client.list(service="absent")[0]
    client.close(row["uuid"])
    assert Scheduler(client, [yearly]).once() == []
    assert client.list(service="absent")[0] == []
    other = Schedule("others", "absent", every=86_400 * 120, missed="once", options={"unique": "b"})
    past_tick(client, other, 1)
    with Overtaken(server.endpoints[0], timeout=30) as overtaken:
        ((_, tick, _),) = Scheduler(overtaken, [other]).once()
    (row,) = client.list(service="absent")[0]
    assert (row["key"], row["state"]) == (other.key(tick), "waiting")


@pytest.mark.settings(limits={b"absent": ServiceLimits(waiting=1)})
def test_a_tick_finds_the_request_before_also_in_a_service_that_is_full(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.schedules.scheduler._time_of", lambda uuid: 0.0)  # it has been known since 1970
    yearly = Schedule("thirds", "absent", every=86_400 * 120, missed="all", options={"unique": "a"})
    submitted_ticks(client, yearly, [])  # sets its mark
    past_tick(client, yearly, 3)
    scheduler = Scheduler(client, [yearly])
    assert len(scheduler.once()) == 3
    (row,) = client.list(service="absent")[0]
    client.close(row["uuid"])
    assert scheduler.once() == []


def test_a_schedule_of_a_unique_task_has_its_key() -> None:
    app = Tasks(name="shop")

    @app.cron("0 7 * * *", "east")
    @app.cron("0 8 * * *", "west", name="later")
    @app.task(unique=lambda region: region, unique_until="started", key=lambda region: region)
    def report(region: str) -> None: ...

    assert [one.options for one in app.schedules] == [
        {"unique": region, "unique_until": "started", "keep": 3600.0} for region in ("west", "east")
    ]


def test_run_now_is_beside_the_ticks(client: Client) -> None:
    uuids = {submit_now(client, EACH_SECOND) for _ in range(2)}
    rows = [client.show(uuid) for uuid in uuids]
    assert len(rows) == 2
    assert {(row["service"], row["priority"], row["body_bytes"]) for row in rows} == {("absent", 7, 6)}


def test_the_mark_of_a_schedule_is_never_executed(client: Client) -> None:
    Scheduler(client, [EACH_SECOND]).once()
    uuid = client.find([EACH_SECOND.mark])[0][EACH_SECOND.mark]
    with pytest.raises(UnknownRequest):
        client.show(uuid)


def test_what_goes_wrong_with_one_does_not_hold_up_the_others(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    wrong = Schedule("wrong", "mmi.service", every=1)
    scheduler = Scheduler(client, [wrong, EACH_SECOND])
    with caplog.at_level(logging.INFO, "titanic.cron"):
        done = []
        until(lambda: done.extend(scheduler.round().submitted) or done)
    assert {schedule.name for schedule, _, _ in done} == {"often"}
    assert len([line for line in caplog.messages if line.startswith("wrong: nothing was submitted")]) == 1


def test_two_of_one_name_are_refused(client: Client) -> None:
    with pytest.raises(InvalidSchedule, match="two schedules have the name often"):
        Scheduler(client, [EACH_SECOND, EACH_SECOND])


def test_a_scheduler_runs_what_it_is_asked_to(client: Client) -> None:
    """Once, whichever scheduler finds it first; also while the schedule is paused."""
    third = 86_400 * 120  # so that no tick is due in this minute
    rare = Schedule("thirds", "absent", ["all", "of it"], every=third, options={"priority": 7})
    schedulers = [Scheduler(client, [rare, Schedule("other", "absent", every=third)]) for _ in range(2)]
    pause_schedule(client, "thirds")
    for count in (1, 2):
        ask_to_run(client, "thirds")
        ask_to_run(client, "thirds")
        (mark,) = (row["uuid"] for row in client.list(service="cron.paused")[0] if row["key"] == "cron:thirds:asked")
        for scheduler in schedulers:
            assert scheduler.once() == []
        rows = client.list(service="absent")[0]
        assert len(rows) == count
        assert (rows[-1]["key"], rows[-1]["priority"]) == (f"cron:thirds:run:{mark}", 7)
        assert client.look(rows[-1]["uuid"]).body == [b"all", b"of it"]
        with pytest.raises(UnknownRequest):
            client.show(mark)
    assert paused_schedules(client, ["thirds"])


def test_a_scheduler_that_dies_before_it_closes_the_mark(client: Client) -> None:
    hourly = Schedule("hourly", "absent", every=3600)
    ask_to_run(client, "hourly")
    (mark,) = client.find(["cron:hourly:asked"])[0].values()
    uuid = submit_now(client, hourly, mark)
    Scheduler(client, [hourly]).once()
    assert [row["uuid"] for row in client.list(service="absent")[0]] == [uuid]
    with pytest.raises(UnknownRequest):
        client.show(mark)
