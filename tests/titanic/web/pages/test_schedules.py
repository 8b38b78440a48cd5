"""Schedules as the queue knows them."""

from __future__ import annotations

from typing import Any, cast

import httpx
from support.pages import page_of

from titanic import Client
from titanic.protocol.documents import ScheduleReport
from titanic.schedules import Schedule, Scheduler
from titanic.schedules.schedule import in_utc
from titanic.schedules.scheduler import pause_schedule, paused_schedules, submit_tick

NIGHTLY = Schedule("nightly", "backup", [b"all", b"\xff"], every=3600, options={"priority": 7, "limit": 60})
HOURLY = Schedule("hourly", "backup", every=3600)
TICK = 1_795_000_000 // 3600 * 3600


def do(http: httpx.Client, what: str, **fields: str) -> httpx.Response:
    csrf = page_of(http, "/schedules").form("/actions/schedules/pause")["csrf"]
    return http.post(f"/actions/schedules/{what}", data={"csrf": csrf, **fields}, follow_redirects=True)


def report(client: Client, schedule: Schedule, **more: Any) -> None:
    """Register a schedule as a scheduler does."""
    next = client.clock() + 3600
    row = {"name": schedule.name, "service": schedule.service, "when": "every 3600 s", "tz": "UTC", "next": next}
    client.register_schedules([cast(ScheduleReport, row | more)])


def test_an_empty_list_says_what_to_do(http: httpx.Client, client: Client) -> None:
    """Also beside requests of schedules that no scheduler has registered: requests are not searched."""
    submit_tick(client, NIGHTLY, TICK)
    found = page_of(http, "/schedules")
    assert "No schedules" in found.text
    assert found.rows == []


def test_last_ticks_with_their_outcomes(http: httpx.Client, client: Client) -> None:
    uuid = submit_tick(client, NIGHTLY, TICK)
    report(client, NIGHTLY, tick=TICK, uuid=uuid)
    report(client, HOURLY)
    hourly, nightly = page_of(http, "/schedules").rows
    assert hourly[:3] == ["hourly", "active", "backup"]
    assert hourly[4:6] == ["none", "–"]
    assert nightly[4:6] == [in_utc(TICK).replace("T", " ").replace("Z", " UTC"), "waiting"]
    assert f"/requests/{uuid}" in http.get("/schedules").text
    client.close(uuid)
    assert page_of(http, "/schedules").rows[1][5] == "closed"


def test_registered_schedules(http: httpx.Client, client: Client) -> None:
    Scheduler(client, [HOURLY]).once()
    late = {"name": "daily", "service": "mail", "when": "30 2 * * *", "tz": "Asia/Tokyo", "next": TICK - 9_000_000}
    client.register_schedules([cast(ScheduleReport, late)])
    daily, hourly = page_of(http, "/schedules").rows
    assert daily[1].startswith("late scheduler last seen")
    assert daily[3].endswith("30 2 * * * Asia/Tokyo")
    assert hourly[:3] == ["hourly", "active", "backup"]
    assert hourly[3].endswith(" every hour")
    assert hourly[4:6] == ["none", "–"]
    pause_schedule(client, "daily")
    assert page_of(http, "/schedules").rows[0][1].startswith("paused for")


def test_pause_and_resume(http: httpx.Client, client: Client) -> None:
    assert "nightly is paused." in do(http, "pause", name="nightly").text
    assert paused_schedules(client, ["nightly"])
    assert "nightly resumes" in do(http, "resume", name="nightly").text
    assert not paused_schedules(client, ["nightly"])
    assert "nightly was not paused" in do(http, "resume", name="nightly").text
    assert do(http, "pause", name="no name").status_code == 400
    assert http.post("/actions/schedules/pause", data={"name": "x"}).status_code == 403


def test_run_now(http: httpx.Client, client: Client) -> None:
    uuid = submit_tick(client, NIGHTLY, TICK)
    answer = do(http, "run", uuid=uuid)
    assert answer.status_code == 200
    again = client.show(str(answer.url).rpartition("/")[2])
    assert again["uuid"] != uuid
    assert again["key"].startswith("cron:nightly:run:")
    assert (again["service"], again["priority"], again["options"]) == ("backup", 7, {"limit": 60.0})
    assert client.look(again["uuid"]).body == [b"all", b"\xff"]


def test_the_scheduler_of_a_schedule_without_requests_runs_it(http: httpx.Client, client: Client) -> None:
    daily = Schedule("daily", "mail", [b"all", b"\xff"], every=86_400)
    Scheduler(client, [daily]).once()
    form = page_of(http, "/schedules").form("/actions/schedules/run")
    answer = http.post("/actions/schedules/run", data=form, follow_redirects=True)
    assert "The scheduler of daily will submit a request within 30 s." in answer.text
    Scheduler(client, [daily]).once()
    (row,) = client.list(service="mail")[0]
    assert client.look(row["uuid"]).body == [b"all", b"\xff"]
    assert row["key"].startswith("cron:daily:run:")
    assert do(http, "run", name="no name").status_code == 400


def test_requests_that_cannot_be_run(http: httpx.Client, client: Client) -> None:
    for key in ("other", "cron:<b>:paused", "cron:a:2026", "cron::run:00", "xcron:a:run:00", "cron:a:paused"):
        other = client.submit("mail", b"", key=key)
        assert do(http, "run", uuid=other).status_code == 400
    large = submit_tick(client, Schedule("big", "backup", bytes(2 << 20), every=60), TICK)
    answer = do(http, "run", uuid=large)
    assert answer.status_code == 413
    assert "titanic cron run FILE big" in answer.text
    assert do(http, "run", uuid="x").status_code == 400
