"""Retry or close many requests: those selected, or all that match. A job in the server does it; its page asks for
confirmation with the number of requests, and shows the progress.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from titanic.errors import InvalidRequest
from titanic.protocol.documents import RedriveInfo
from titanic.util import ids
from titanic.web.api.jobs import find_job
from titanic.web.app_state import app_state, visitor_of
from titanic.web.pages import forms
from titanic.web.problems import HTTPProblem
from titanic.web.request_filter import FOREVER, RequestFilter, parse_filter
from titanic.web.request_headers import WHOLE

COUNT_TIMEOUT, COUNT_INTERVAL = 2.0, 0.05
"""Seconds for which the page of a job waits for its number, and between two polls."""

CONFIRMED_BY_CLICK = 100
"""Deleting more requests than this takes typing their number."""

MAX_SELECTED = 1000

ENDED = ("done", "cancelled", "stopped")


async def confirm_selected(request: Request) -> Response:
    """Ask for confirmation of the selected requests."""
    form = await forms.read(request)
    uuids, back = _uuids(form.getlist("uuid")), parse_filter(form).url()
    return app_state(request).page(request, "bulk.html", action=_action(form), uuids=uuids, back=back)


async def start(request: Request) -> Response:
    """Retry or close the selected requests."""
    form = await forms.read(request)
    job = await visitor_of(request).client.redrive(_action(form), uuids=_uuids(form.get("uuids", "").split()))
    return RedirectResponse(f"/works/{job['id']}", 303)


async def count(request: Request) -> Response:
    """Start a job over all requests that match."""
    form = await forms.read(request)
    client, action, wanted = visitor_of(request).client, _action(form), parse_filter(form)
    where: dict[str, Any] = {name: value for name, value in wanted.fields.items() if name not in ("age", "order")}
    if form.get("error"):
        where["error"] = form["error"]
    _check(action, wanted)
    if wanted.since:
        where["since"] = wanted.since / 1e6
    if wanted.before != FOREVER:
        where["until"] = wanted.before / 1e6
    job, until = await client.redrive(action, **where), time.monotonic() + COUNT_TIMEOUT
    while job["state"] == "counting" and time.monotonic() < until:
        await asyncio.sleep(COUNT_INTERVAL)
        (job,) = await client.redrives(job["id"])
    return RedirectResponse(f"/works/{job['id']}", 303)


async def show_job(request: Request) -> Response:
    """Ask for confirmation of a job, or show its progress."""
    job = await find_job(request)
    where = {name: value for name, value in job["where"].items() if name in ("service", "state", "text", "key")}
    back = RequestFilter(**cast(dict[str, Any], where)).url()
    times = ("since", "until")
    facts = {name: int(cast(float, value) * 1e6) if name in times else value for name, value in job["where"].items()}
    return app_state(request).page(
        request,
        "bulk_job.html",
        job=job,
        facts=facts,
        times=times,
        back=back,
        typed=_typed(job),
        ended=job["state"] in ENDED,
    )


async def change_job(request: Request) -> Response:
    """Confirm, pause, resume or cancel a job."""
    form = await forms.read(request)
    job, change = await find_job(request), form.get("do", "")
    if change not in ("confirm", "pause", "resume", "cancel"):
        raise HTTPProblem(400, "nothing was changed: the form names no action; reload the page")
    if change == "confirm" and _typed(job) and form.get("typed", "").strip().replace(",", "") != str(job["counted"]):
        raise HTTPProblem(400, f"nothing was deleted: type “{_typed(job)}” to confirm")
    number = int(form["count"]) if WHOLE.fullmatch(form.get("count", "")) else None
    try:
        await visitor_of(request).client.change_redrive(job["id"], cast(Any, change), number)
    except InvalidRequest as error:
        raise HTTPProblem(409, f"nothing was changed: {error}") from error
    return RedirectResponse(f"/works/{job['id']}", 303)


def _typed(job: RedriveInfo) -> str:
    """The number to type; empty: a click confirms."""
    return f"{job['counted']:,}" if job["action"] == "close" and job["counted"] > CONFIRMED_BY_CLICK else ""


def _action(given: Mapping[str, str]) -> Literal["retry", "close"]:
    if (action := given.get("do", "")) not in ("retry", "close"):
        raise HTTPProblem(400, "nothing was changed: the form's action is neither retry nor close; reload its page")
    return cast(Literal["retry", "close"], action)


def _uuids(given: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(ids.plain(uuid).lower() for uuid in given))
    if not found:
        raise HTTPProblem(400, "no request is selected; go back and select some")
    if len(found) > MAX_SELECTED or any(ids.parse(uuid.encode(errors="replace")) is None for uuid in found):
        raise HTTPProblem(400, f"invalid UUIDs, or more than {MAX_SELECTED:,}; select the requests again")
    return found


def _check(action: str, wanted: RequestFilter) -> None:
    if action == "close" and wanted.state in ("", "running") and not wanted.key:
        what = "first choose a state other than running"
        raise HTTPProblem(400, f"nothing was deleted: {what}; delete running requests on their own pages")
    if action == "retry" and wanted.state not in ("", "failed", "expired"):
        raise HTTPProblem(400, f"{wanted.state} requests cannot be retried; choose failed or expired")


ROUTES = [
    Route("/requests/selected", confirm_selected, methods=["POST"]),
    Route("/requests/all", count, methods=["POST"]),
    Route("/actions/requests", start, methods=["POST"]),
    Route("/works/{job}", show_job),
    Route("/actions/works/{job}", change_job, methods=["POST"]),
]
