"""Schedules: those that schedulers have registered, and those of which the queue has pauses or requests."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.errors import InvalidRequest
from titanic.protocol.answers import RequestInfo
from titanic.protocol.documents import ScheduleInfo
from titanic.schedules.schedule import NAME, check_name, in_utc
from titanic.schedules.scheduler import PAUSED, ask_to_run, pause_schedule, resume_schedule
from titanic.web.app_state import app_state, visitor_of
from titanic.web.auth.clients import call_sync
from titanic.web.pages import forms
from titanic.web.pages.requests import MAX_AGAIN, is_whole, submit_again
from titanic.web.problems import HTTPProblem
from titanic.web.template_filters import size

KEY = re.compile(rf"cron:({NAME.pattern}):(?:(paused)|(run):[0-9a-f]+|(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ))")
"""The keys of schedules: of a pause, of a manual run, of a tick."""

PAGE, MAX_CALLS = 1000, 3
"""Requests that are fetched, the newest ones, and calls that are made for them."""


@dataclass(slots=True)
class KnownSchedule:
    """What the queue knows of a schedule."""

    name: str
    owner: str = ""
    paused: int = 0
    """When it was paused, in microseconds since 1970; 0: it is not paused."""
    service: str = ""
    tick: str = ""
    """The last known tick, as 2026-11-22T20:00:00Z."""
    last: RequestInfo | None = None
    """The newest of its requests that is not closed, of a tick or a manual run."""
    registered: ScheduleInfo | None = None
    """What its scheduler has registered, if it has."""


@dataclass(frozen=True, slots=True)
class KnownSchedules:
    """The schedules that the queue knows. `all`: whether all requests of schedules were fetched."""

    schedules: list[KnownSchedule]
    all: bool


def parse_key(key: str) -> tuple[str, str, str] | None:
    """Parse a key into the schedule's name, the kind (paused, run or tick), and the time of a tick; None: it is no key
    of a schedule."""
    found = KEY.fullmatch(key)
    if found is None:
        return None
    name, paused, run, tick = found.groups()
    return name, paused or run or "tick", tick or ""


async def fetch(client: Client) -> KnownSchedules:
    """Fetch the pauses and the newest requests of schedules."""
    pauses, more_pauses = await client.list(service=PAUSED, newest=True, limit=PAGE)
    rows: list[RequestInfo] = []
    after: str | None = None
    for _ in range(MAX_CALLS):
        page, after = await client.list(text="cron:", newest=True, limit=PAGE, after=after)
        rows += page
        if after is None or len(rows) >= PAGE:
            break
    registered: list[ScheduleInfo] = []
    with contextlib.suppress(InvalidRequest):  # of an older server
        registered = await client.schedules()
    return KnownSchedules(by_schedule([*pauses, *rows], registered), after is None and more_pauses is None)


def by_schedule(rows: Iterable[RequestInfo], registered: Sequence[ScheduleInfo] = ()) -> list[KnownSchedule]:
    """Gather schedules and their requests, in the order of owners and names."""
    found = {
        (one["owner"], one["name"]): KnownSchedule(
            one["name"],
            one["owner"],
            one["paused_at"],
            one["service"],
            in_utc(one["last"]["tick"] / 1e6) if one["last"] else "",
            registered=one,
        )
        for one in registered
    }
    seen: set[str] = set()
    for row in rows:
        parsed = parse_key(row["key"])
        if parsed is None or row["uuid"] in seen:
            continue
        seen.add(row["uuid"])
        name, kind, tick = parsed
        one = found.setdefault((row.get("owner", ""), name), KnownSchedule(name, row.get("owner", "")))
        if kind == "paused":
            if row["service"] == PAUSED and row["state"] in ("waiting", "delayed"):
                one.paused = row["submitted_at"]
            continue
        one.tick = max(one.tick, tick)
        if one.last is None or row["uuid"] > one.last["uuid"]:
            one.last, one.service = row, row["service"]
    return [found[key] for key in sorted(found)]


async def schedules(request: Request) -> Response:
    """List the schedules."""
    found = await app_state(request).cache.get(request, "schedules", fetch, visitor_of(request).client)
    return app_state(request).page(request, "schedules.html", found=found)


async def pause(request: Request) -> Response:
    """Pause a schedule, known or not."""
    name = await _name(request)
    await call_sync(visitor_of(request).client, pause_schedule, name)
    return app_state(request).to(request, "/schedules", f"{name} is paused.")


async def resume(request: Request) -> Response:
    """Resume a schedule."""
    name = await _name(request)
    resumed = await call_sync(visitor_of(request).client, resume_schedule, name)
    message = "resumes with its next tick." if resumed else "was not paused."
    return app_state(request).to(request, "/schedules", f"{name} {message}")


async def _name(request: Request) -> str:
    name = (await forms.read(request)).get("name", "").strip()
    check_name(name)
    return name


async def run(request: Request) -> Response:
    """Submit the newest request of a schedule again, in addition to its ticks; or have its scheduler submit one."""
    form = await forms.read(request)
    if name := form.get("name", ""):
        check_name(name)
        await call_sync(visitor_of(request).client, ask_to_run, name)
        return app_state(request).to(request, "/schedules", f"The scheduler of {name} submits it within 30 seconds.")
    uuid = form.get("uuid", "")
    found = await visitor_of(request).client.look(uuid, MAX_AGAIN)
    row = found.info
    parsed = parse_key(row["key"])
    if parsed is None or parsed[1] == "paused":
        raise HTTPProblem(400, "this is not the request of a schedule; run one from the Schedules page")
    name = parsed[0]
    if not is_whole(found):
        fact = f"its body has {size(row['body_bytes'])}; the limit here is {size(MAX_AGAIN)}"
        raise HTTPProblem(413, f"{name} cannot be run from here: {fact}; use `titanic cron run FILE {name}`")
    return await submit_again(request, row, found.body, key=f"cron:{name}:run:{os.urandom(8).hex()}")


ROUTES = [
    Route("/schedules", schedules),
    Route("/actions/schedules/pause", pause, methods=["POST"]),
    Route("/actions/schedules/resume", resume, methods=["POST"]),
    Route("/actions/schedules/run", run, methods=["POST"]),
]
