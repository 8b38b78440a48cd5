"""Schedules: those that schedulers have registered."""

from __future__ import annotations

import contextlib
import os
import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.errors import InvalidRequest
from titanic.protocol.documents import ScheduleInfo
from titanic.schedules.schedule import NAME, check_name
from titanic.schedules.scheduler import ask_to_run, pause_schedule, resume_schedule
from titanic.web.app_state import app_state, visitor_of
from titanic.web.auth.clients import call_sync
from titanic.web.pages import forms
from titanic.web.pages.requests import MAX_AGAIN, is_whole, submit_again
from titanic.web.problems import HTTPProblem
from titanic.web.template_filters import size

KEY = re.compile(rf"cron:({NAME.pattern}):(?:run:[0-9a-f]+|\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")
"""The keys of requests of schedules: of a manual run, or of a tick."""


async def fetch(client: Client) -> list[ScheduleInfo]:
    """Fetch the registered schedules; an older server has none."""
    with contextlib.suppress(InvalidRequest):
        return await client.schedules()
    return []


async def schedules(request: Request) -> Response:
    """List the schedules."""
    found = await app_state(request).cache.get(request, "schedules", fetch, visitor_of(request).client)
    return app_state(request).page(request, "schedules.html", schedules=found)


async def pause(request: Request) -> Response:
    """Pause a schedule, known or not."""
    name = await _name(request)
    await call_sync(visitor_of(request).client, pause_schedule, name)
    return app_state(request).to(request, "/schedules", f"{name} is paused.")


async def resume(request: Request) -> Response:
    """Resume a schedule."""
    name = await _name(request)
    resumed = await call_sync(visitor_of(request).client, resume_schedule, name)
    message = "resumes at its next tick." if resumed else "was not paused."
    return app_state(request).to(request, "/schedules", f"{name} {message}")


async def _name(request: Request) -> str:
    name = (await forms.read(request)).get("name", "").strip()
    check_name(name)
    return name


async def run(request: Request) -> Response:
    """Submit the request of its last tick again, in addition to its ticks; or have its scheduler submit one."""
    form = await forms.read(request)
    if name := form.get("name", ""):
        check_name(name)
        await call_sync(visitor_of(request).client, ask_to_run, name)
        text = f"The scheduler of {name} will submit a request within 30 s."
        return app_state(request).to(request, "/schedules", text)
    uuid = form.get("uuid", "")
    found = await visitor_of(request).client.look(uuid, MAX_AGAIN)
    row = found.info
    key = KEY.fullmatch(row["key"])
    if key is None:
        raise HTTPProblem(400, "this is not the request of a schedule; run one from the Schedules page")
    name = key[1]
    if not is_whole(found):
        fact = f"its body is {size(row['body_bytes'])}; the limit here is {size(MAX_AGAIN)}"
        raise HTTPProblem(413, f"{name} cannot be run from here: {fact}; use `titanic cron run FILE {name}`")
    return await submit_again(request, row, found.body, key=f"cron:{name}:run:{os.urandom(8).hex()}")


ROUTES = [
    Route("/schedules", schedules),
    Route("/actions/schedules/pause", pause, methods=["POST"]),
    Route("/actions/schedules/resume", resume, methods=["POST"]),
    Route("/actions/schedules/run", run, methods=["POST"]),
]
