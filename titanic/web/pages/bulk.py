"""Retry or close many requests: those selected, or all that match a filter. A page asks for confirmation with their
number; another shows the progress, while the job runs in the background.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.errors import TitanicError, UnknownRequest
from titanic.protocol.answers import RequestInfo
from titanic.util import ids
from titanic.web.app_state import app_state, visitor_of
from titanic.web.pages import forms
from titanic.web.problems import HTTPProblem
from titanic.web.request_filter import AGE_LABELS, BATCH, RequestFilter, find_all, parse_filter

ACTIONS = ("retry", "close")

RETRIABLE = ("failed", "expired")
"""States that can be retried."""

COUNT_TIMEOUT = 2.0
"""Seconds after which counting is given up. Then no number is shown or confirmed."""

CONFIRMED_BY_CLICK = 100
"""Closing more requests than this takes typing their number, or ALL when they were not counted."""

ALL = "all"

MAX_SELECTED = 1000


async def confirm_selected(request: Request) -> Response:
    """Ask for confirmation of the selected requests."""
    form = await forms.read(request)
    return confirm(request, _action(form), parse_filter(form), _uuids(form.getlist("uuid")))


def confirm(
    request: Request, action: str, matched: RequestFilter, uuids: Sequence[str], title: str = "", back: str = ""
) -> Response:
    """Ask for confirmation of these requests, a part of those that match. `title`: what they have in common; `back`:
    the page of their group, if they were found there."""
    return app_state(request).page(
        request,
        "bulk.html",
        action=action,
        count=len(uuids),
        typed="",
        filter=matched,
        title=title,
        uuids=uuids,
        back=back or matched.url(),
        group=bool(back),
    )


async def confirm_all(request: Request) -> Response:
    """Ask for confirmation of all requests that match, with their number."""
    action, wanted = _action(request.query_params), parse_filter(request.query_params)
    _check(action, wanted)
    wanted = replace(wanted, before=min(wanted.before, int(time.time() * 1e6)), oldest=False)
    count = await _count(visitor_of(request).client, action, wanted)
    return app_state(request).page(
        request,
        "bulk.html",
        action=action,
        count=count,
        typed=_confirmation(action, count),
        filter=wanted,
        title="",
        ages=AGE_LABELS,
        uuids=[],
        back=wanted.url(),
        group=False,
    )


async def start(request: Request) -> Response:
    """Start a confirmed job."""
    form = await forms.read(request)
    visitor = visitor_of(request)
    action, wanted, count = _action(form), parse_filter(form), form.get("count", "")
    if "count" not in form or (count and (not count.isdecimal() or len(count) > 9)):
        raise HTTPProblem(400, "nothing was changed: the form has no number of requests; reload its page")
    total = int(count) if count else None
    if selected := form.get("uuids", "").split():
        uuids = _uuids(selected)
        job, batches = BulkJob(visitor.user, action, len(uuids), wanted.url()), in_batches(uuids)
    else:
        _check(action, wanted)
        typed = form.get("typed", "").strip().lower().replace(",", "")
        if (expected := _confirmation(action, total)) and typed != expected.replace(",", ""):
            raise HTTPProblem(400, f"nothing was closed: type “{expected}” to confirm")
        job = BulkJob(visitor.user, action, total, wanted.url())
        batches = _matching(visitor.client, action, wanted, total)
    _jobs(request).start(job, visitor.client, batches)
    return RedirectResponse(f"/works/{job.id}", 303)


async def progress(request: Request) -> Response:
    """Show the progress of a job."""
    state = app_state(request)
    job = _jobs(request).get(visitor_of(request).user, request.path_params["work"])
    return state.page(request, "bulk_job.html", job=job)


async def stop(request: Request) -> Response:
    """Stop a job."""
    await forms.read(request)
    job = _jobs(request).get(visitor_of(request).user, request.path_params["work"])
    job.stopped = True
    return RedirectResponse(f"/works/{job.id}", 303)


def _action(given: Mapping[str, str]) -> str:
    if (action := given.get("do", "")) not in ACTIONS:
        raise HTTPProblem(400, "nothing was changed: the form says neither retry nor close; reload its page")
    return action


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
        raise HTTPProblem(400, f"nothing was closed: {what}; close running requests on their own pages")
    if action == "retry" and wanted.state not in ("", *RETRIABLE):
        raise HTTPProblem(400, f"{wanted.state} requests cannot be retried; choose failed or expired")


def _filters(action: str, wanted: RequestFilter) -> list[RequestFilter]:
    """Filters that match only what the action applies to: retriable requests are in two states."""
    if action == "retry" and not wanted.state:
        return [replace(wanted, state=state) for state in RETRIABLE]
    return [wanted]


async def _matching(
    client: Client, action: str, wanted: RequestFilter, total: int | None = None
) -> AsyncGenerator[Sequence[str], None]:
    """Yield the UUIDs that match, a batch at a time, but no more than `total`, because more requests may match since
    they were counted. None: all."""
    for one in _filters(action, wanted):
        async for rows in find_all(client, one):
            if uuids := [row["uuid"] for row in rows if _applies(action, row)][:total]:
                yield uuids
            if total is not None:
                total -= len(uuids)
                if not total:
                    return


def _applies(action: str, row: RequestInfo) -> bool:
    return row["state"] in RETRIABLE if action == "retry" else row["state"] != "running"


async def _count(client: Client, action: str, wanted: RequestFilter) -> int | None:
    """Count the requests that match; None when it takes too long or fails."""
    count = 0
    try:
        async with asyncio.timeout(COUNT_TIMEOUT):
            async for uuids in _matching(client, action, wanted):
                count += len(uuids)
    except (TimeoutError, UnknownRequest):
        return None
    return count


def _confirmation(action: str, count: int | None) -> str:
    """The text to type; empty: none. `count`: None: unknown."""
    if action != "close":
        return ""
    if count is None:
        return ALL
    return f"{count:,}" if count > CONFIRMED_BY_CLICK else ""


ROUTES = [
    Route("/requests/selected", confirm_selected, methods=["POST"]),
    Route("/requests/all", confirm_all),
    Route("/actions/requests", start, methods=["POST"]),
    Route("/works/{work}", progress),
    Route("/actions/works/{work}/stop", stop, methods=["POST"]),
]


MAX_RUNNING = 8
"""Jobs at a time, of all users."""

MAX_KEPT = 64
"""Jobs that are kept."""

Batches = AsyncGenerator[Sequence[str], None]
"""The UUIDs, a batch at a time."""


@dataclass(slots=True)
class BulkJob:
    """A job. `action`: retry or close. `total`: the number of requests that was confirmed; None: not counted."""

    user: str
    action: str
    total: int | None
    back: str
    """The URL of the list that it was started from."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    processed: int = 0
    done: int = 0
    error: str = "an internal error of titanic web; see its log"
    """Why it ended early."""
    ended: bool = False
    stopped: bool = False
    began: float = field(default_factory=time.time)
    task: asyncio.Task[None] | None = None

    async def run(self, client: Client, batches: Batches) -> None:
        """Process all batches, or those before it is stopped."""
        try:
            async with aclosing(batches):
                async for uuids in batches:
                    if self.action == "retry":
                        self.done += await client.retry(*uuids)
                    else:
                        await client.close_many(uuids)
                        self.done += len(uuids)
                    self.processed += len(uuids)
                    if self.stopped:
                        break
            self.error = ""
        except TitanicError as error:
            self.error = str(error)
        finally:
            self.ended = True


class BulkJobs:
    """The jobs of all users, with the most recent ones that ended."""

    def __init__(self) -> None:
        self._jobs: dict[str, BulkJob] = {}

    def start(self, job: BulkJob, client: Client, batches: Batches) -> None:
        """Start a job. Raises HTTPProblem while too many are running."""
        if sum(not one.ended for one in self._jobs.values()) >= MAX_RUNNING:
            raise HTTPProblem(
                503, "nothing was changed: too many bulk jobs are running; try again when they have ended"
            )
        ended = [name for name, one in self._jobs.items() if one.ended]
        for name in ended[: max(0, len(self._jobs) - MAX_KEPT + 1)]:
            del self._jobs[name]
        self._jobs[job.id] = job
        job.task = asyncio.create_task(job.run(client, batches))

    def get(self, user: str, name: str) -> BulkJob:
        """Return a user's job. Raises HTTPProblem for unknown jobs and those of other users."""
        job = self._jobs.get(name)
        if job is None or job.user != user:
            raise HTTPProblem(
                404, "unknown job: titanic web has restarted, or has run many newer jobs; reload the list of requests"
            )
        return job

    def close(self) -> None:
        """Cancel all jobs."""
        for job in self._jobs.values():
            if job.task is not None:
                job.task.cancel()


async def in_batches(uuids: Sequence[str]) -> Batches:
    """Yield these UUIDs a batch at a time."""
    for at in range(0, len(uuids), BATCH):
        yield uuids[at : at + BATCH]


def _jobs(request: Request) -> BulkJobs:
    jobs: BulkJobs = request.app.bulk_jobs
    return jobs
