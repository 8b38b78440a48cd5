"""Services: the list, a hundred on a page; the page of each with its rates, latency, limits and settings; workers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.errors import TitanicError
from titanic.facts.service_health import HOUR, LATELY, RECENTLY, SLOWER, RunTimes, run_times, slow_services
from titanic.protocol.documents import FactsInfo, LimitValues, RequestInfo, ServiceFacts, ServiceStats
from titanic.schedules.scheduler import PAUSED
from titanic.util.text import limit_source, limit_value
from titanic.util.units import READ_LIMIT
from titanic.web.app_state import AppState, app_state, visitor_of
from titanic.web.hooks.registry import DELIVERY, KEPT, Hook, ServiceSettings, hook_status, mark_of_service, sources
from titanic.web.pages import forms
from titanic.web.pages.forms import NotPermitted, unless_forbidden
from titanic.web.problems import HTTPProblem
from titanic.web.request_filter import STATES
from titanic.web.stats import (
    Latency,
    StatsSample,
    current,
    facts_of,
    latency_charts,
    measured_latency,
    per_second,
    unfinished,
)
from titanic.web.template_filters import Line, chart, number, rate, service_url

PAGE = 100
"""Services on a page."""

RECENT_FAILURES = 5

MAX_DELIVERIES, MAX_ALL_DELIVERIES = 200, 1000
"""Deliveries to the webhooks of a service, and of all, among which those that failed are shown."""

MESSAGES = {
    "pause": "Paused. Its requests wait until it is resumed; running requests continue.",
    "resume": "Resumed. Workers get its requests again.",
    "ends": "Saved. It applies to requests that end from now on.",
    "limits": "Saved. The limits apply at once; running requests continue.",
}
"""What is shown after an action."""


NO_TIMES = RunTimes(None, None)


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """Figures of a service; None: unknown or none."""

    name: str
    waiting: int = 0
    delayed: int = 0
    running: int = 0
    workers: int | None = None
    oldest: int | None = None
    """When the oldest waiting request was submitted, in microseconds since 1970."""
    done: int = 0
    failed: int = 0
    expired: int = 0
    """Since the start of the server that answered."""
    paused: bool = False
    on_end: str | None = None
    """The service that gets a request when one of this service ends."""
    limits: Mapping[str, float | None] = field(default_factory=dict)
    """Limits on waiting and running requests, bytes and rate."""
    limits_set: Mapping[str, Any] = field(default_factory=dict)
    """Those that an admin has set, as titanic.stats has them."""
    times: RunTimes = NO_TIMES

    @property
    def url(self) -> str:
        """Its page."""
        return service_url(self.name)

    @property
    def unended(self) -> int:
        """Its requests that have not ended."""
        return self.waiting + self.delayed + self.running

    @property
    def excess(self) -> str:
        """Why more of its requests run than its limit, or than it has workers; empty: no more do."""
        if self.running > (self.limits.get("running") or math.inf):
            return "over the limit: they began before it was lowered"
        return "sent to workers; some wait for a free slot" if self.running > (self.workers or math.inf) else ""

    @property
    def by_age(self) -> float:
        """A sort key: larger the older its oldest request is."""
        return -math.inf if self.oldest is None else -self.oldest

    @property
    def by_workers(self) -> int:
        """A sort key."""
        return self.workers or 0

    @property
    def by_run(self) -> float:
        """A sort key."""
        return self.times.now["p50"] if self.times.now else 0.0

    @property
    def lacks_workers(self) -> bool:
        """Whether requests wait, it is not paused, and it has no worker."""
        return self.waiting > 0 and self.workers == 0 and not self.paused


_OTHERWISE = {"workers", "limits", "limits_set"}
FIGURES = {one.name for one in fields(ServiceRow)} & ServiceStats.__annotations__.keys() - _OTHERWISE
"""The fields that are as the server sends them."""


@lru_cache(maxsize=1)
def services_of(sample: StatsSample) -> tuple[ServiceRow, ...]:
    """All services with requests, workers or settings, by name, without Titanic's own. Those of webhooks are listed
    because they have requests to execute. Cached for all pages that show the same sample."""
    names = {*(sample.stats.get("by_service") or sample.stats["services"]), *(sample.workers or ())}
    return tuple(service_of(sample, name) for name in sorted(names) if not is_internal(name))


async def run_times_now(request: Request) -> dict[str, RunTimes]:
    """How long attempts take, now and usually, by service; empty: the server is of an older version. For visitors whose
    sample was returned."""
    poller, visitor = app_state(request).stats_poller, visitor_of(request)
    lately, recent, hour = [await poller.facts(visitor, seconds) for seconds in (LATELY, RECENTLY, HOUR)]
    return run_times(lately, recent, hour) if lately and recent and hour else {}


def is_internal(service: str) -> bool:
    """Whether the server itself answers this service, or its requests only record a state and are never executed."""
    return service.startswith(("titanic.", "mmi.")) or service in (PAUSED, KEPT)


def service_of(sample: StatsSample, name: str) -> ServiceRow:
    """The figures of a service, known or not."""
    workers = None if sample.workers is None else sample.workers.get(name, 0)
    row = (sample.stats.get("by_service") or {}).get(name)
    if row is None:
        return ServiceRow(name, sample.stats["services"].get(name, 0), workers=workers)
    limits = {limit: most for limit, most in row.get("limits", {}).items() if most is not None}
    figures = {figure: row[figure] for figure in FIGURES if figure in row}  # an older server has fewer
    return ServiceRow(name, workers=workers, limits=limits, limits_set=row.get("limits_set") or {}, **figures)


# -- the list -----------------------------------------------------------------------------------------------------

LABELS = {
    "name": "Service",
    "waiting": "Waiting",
    "oldest": "Oldest",
    "running": "Running",
    "workers": "Workers",
    "run": "Run p50, p90",
    "done": "Done",
    "failed": "Failed",
}
"""The columns that the list can be sorted by."""

SORT_KEYS = {"oldest": "by_age", "workers": "by_workers", "run": "by_run"}
"""What columns are sorted by, if not by their values."""

FILTERS = {"waiting": "waiting", "lonely": "lacks_workers", "paused": "paused", "failed": "failed"}
"""Filters beside the name, and what each requires."""


class Column(NamedTuple):
    """A column of the table. `url`: the page sorted by it, in reverse if it is sorted by it already."""

    label: str
    css: str
    """Its class."""
    url: str
    sorted: str
    """The value of `aria-sort`; empty: sorted by another column."""


async def services(request: Request) -> Response:
    """Show the list, sorted and filtered as the query says."""
    state, query = app_state(request), request.query_params
    text, only = query.get("q", "").strip(), query.get("only", "")
    order, page = query.get("sort", "name"), query.get("page", "1")
    by = order.removeprefix("-")
    if by not in LABELS or not page.isdecimal() or not 1 <= len(page) <= 6 or page == "0":
        raise HTTPProblem(400, f"invalid sort order or page; sort must be one of {', '.join(LABELS)}, page a number")
    sample = await unless_forbidden("services and their statistics", state.stats_poller.sample(visitor_of(request)))
    if isinstance(sample, NotPermitted):
        return state.page(request, "services.html", missing=sample)
    times = await run_times_now(request)
    every = [replace(one, times=times.get(one.name, NO_TIMES)) for one in services_of(sample)]
    chosen = [one for one in every if text.casefold() in one.name.casefold()]
    if only in FILTERS:
        chosen = [one for one in chosen if getattr(one, FILTERS[only])]
    chosen.sort(key=attrgetter(SORT_KEYS.get(by, by)), reverse=order.startswith("-"))
    first = (int(page) - 1) * PAGE
    shown = chosen[first : first + PAGE]
    return state.page(
        request,
        "services.html",
        missing=None,
        q=text,
        only=only,
        sort=order,
        total=len(every),
        found=len(chosen),
        other=sample.stats.get("other"),
        first=first,
        services=shown,
        columns=_columns(text, only, order),
        next=_list_url(text, only, order, int(page) + 1) if first + PAGE < len(chosen) else "",
        start=_list_url(text, only, order, 1) if first else "",
    )


def _list_url(text: str, only: str, order: str, page: int) -> str:
    values = {"q": text, "only": only, "sort": "" if order == "name" else order, "page": "" if page == 1 else page}
    query = urlencode({name: value for name, value in values.items() if value})
    return f"/services?{query}" if query else "/services"


def _columns(text: str, only: str, order: str) -> Sequence[Column]:
    found = []
    for name, label in LABELS.items():
        first = name if name == "name" else f"-{name}"  # names ascending, figures descending
        again = name if order.startswith("-") else f"-{name}"
        sorted_by = order.removeprefix("-") == name
        direction = ("descending" if order.startswith("-") else "ascending") if sorted_by else ""
        css = "" if name == "name" else "right"
        found.append(Column(label, css, _list_url(text, only, again if sorted_by else first, 1), direction))
    return found


# -- one service --------------------------------------------------------------------------------------------------


async def service(request: Request) -> Response:
    """Show a service."""
    state, visitor = app_state(request), visitor_of(request)
    name = request.path_params["name"] or request.query_params.get("name", "")
    if not name:
        raise HTTPProblem(404, "no service given; choose one from the list of services")
    cache, client = state.cache, visitor.client
    sample, facts, failures = await asyncio.gather(
        unless_forbidden("statistics and workers", state.stats_poller.sample_of(visitor, name)),
        unless_forbidden("history", cache.get(request, "facts", facts_of, client, [name])),
        unless_forbidden("failures", cache.get(request, "failures", _failures, client, name)),
    )
    known = None if isinstance(sample, NotPermitted) else service_of(sample, name)
    history = None if isinstance(facts, NotPermitted) else facts
    past = None if history is None else history["services"][name]
    latency: Latency | NotPermitted | None = None if past is None else Latency(past["wait"], past["run"])
    if isinstance(facts, NotPermitted):
        latency = await unless_forbidden("latency", cache.get(request, "own", measured_latency, client, name))
    settings = {} if isinstance(sample, NotPermitted) else sample.stats.get("settings") or {}
    why = await cache.get(request, "why", _why, client, name) if known and known.waiting else None
    limits_set: Mapping[str, Any] = known.limits_set if known else {}
    if limits_set:
        limits_set = await cache.get(request, "limits", _limits_set, client, name)
    times = (await run_times_now(request)).get(name, NO_TIMES) if known else NO_TIMES
    now, slow = time.time(), ""
    if not isinstance(sample, NotPermitted) and history:
        slow = slow_services(sample.stats, history["services"], {name: times}, now).get(name, "")
    return state.page(
        request,
        "service.html",
        times=times,
        slow=slow,
        slower=SLOWER,
        source={limit: limit_source(limit, limits_set, now) for limit in READ_LIMIT},
        set_limits={one: limit_value(one, limits_set[one]) if limits_set.get(one) else "" for one in READ_LIMIT},
        name=name,
        missing=[sample] if isinstance(sample, NotPermitted) else [],
        service=known,
        why=why,
        states=STATES,
        latency=None if isinstance(latency, NotPermitted) else latency,
        measured=isinstance(facts, NotPermitted),
        failures=None if isinstance(failures, NotPermitted) else failures,
        rates={}
        if not history or not past
        else {outcome: current(history, past, outcome, now) for outcome in ("succeeded", "failed")},
        charts=_charts(history, past, known.unended, now) if known and history and past else [],
        sources=sources(settings, name),
        hooks=[] if known is None else await cache.get(request, "hook rows", _hooks, state, client, name),
        silent=None if known is None else await cache.get(request, "hooks", _silent_hooks, state, settings, name),
    )


async def pause(request: Request) -> Response:
    """Pause or resume a service."""
    form = await forms.read(request)
    name, action = form.get("service", ""), form.get("do", "")
    if not name or action not in ("pause", "resume"):
        raise HTTPProblem(400, "nothing was changed: the form's action is neither pause nor resume; reload its page")
    await visitor_of(request).client.set_service(name, paused=action == "pause")
    return _back(request, name, action)


async def set_on_end(request: Request) -> Response:
    """Set the service that gets a request when one of this service ends; empty: none."""
    form = await forms.read(request)
    name = form.get("service", "")
    if not name or "on_end" not in form:
        raise HTTPProblem(400, "nothing was changed: the form names no service; reload its page")
    await visitor_of(request).client.set_service(name, on_end=form["on_end"].strip())
    return _back(request, name, "ends")


async def set_limits(request: Request) -> Response:
    """Set the limits of a service; empty ones are the configured ones."""
    form = await forms.read(request)
    name, changes = form.get("service", ""), dict[str, float | None]()
    if not name or not form.keys() >= READ_LIMIT.keys():
        raise HTTPProblem(400, "nothing was changed: the form does not name a service and all limits; reload its page")
    for limit, read_limit in READ_LIMIT.items():
        try:
            changes[limit] = read_limit(form[limit].strip()) if form[limit].strip() else None
        except ValueError as error:
            raise HTTPProblem(400, f"{limit}: {error}") from None
    await visitor_of(request).client.set_limits(name, **cast(LimitValues, changes))
    return _back(request, name, "limits")


async def _limits_set(client: Client, name: str) -> Mapping[str, Any]:
    """What an admin has set, and by whom, if the visitor may know."""
    row: Mapping[str, Any] = (await client.stats(services=True, of=[name]))["by_service"].get(name, {})
    return row.get("limits_set") or {}


def _back(request: Request, name: str, message: str) -> Response:
    state = app_state(request)
    state.stats_poller.invalidate()
    return state.to(request, service_url(name), MESSAGES[message])


async def _why(client: Client, name: str) -> RequestInfo | None:
    """The oldest waiting request that the visitor may read, with the reason why it waits."""
    with suppress(TitanicError):
        rows, _ = await client.list(service=name, state="waiting", limit=1)
        return await client.show(rows[0]["uuid"], why=True) if rows else None
    return None


async def _failures(client: Client, name: str) -> list[RequestInfo]:
    rows, _ = await client.list(service=name, state="failed", newest=True, limit=RECENT_FAILURES)
    return rows


async def _hooks(state: AppState, client: Client, name: str = "") -> list[tuple[Hook, list[RequestInfo]]]:
    """The webhooks of a service, or of all, if the visitor may see them; with the newest deliveries of each that
    failed, some of which will be tried again. Others are closed."""
    if state.hooks is None:
        return []
    with suppress(TitanicError):  # the hooks user or the visitor may lack the permission
        if hooks := await (state.hooks.of_service(name) if name else state.hooks.all()):
            await client.show(hooks[0].uuid)
            mark = f":{mark_of_service(name)}" if name else None
            limit = MAX_DELIVERIES if name else MAX_ALL_DELIVERIES
            rows, _ = await client.list(service=DELIVERY, text=mark, newest=True, limit=limit)
            failed: dict[str, list[RequestInfo]] = {}
            for row in filter(itemgetter("reason"), rows):
                failed.setdefault(row["key"].rpartition(":")[2], []).append(row)
            return [(one, failed.get(one.id, [])) for one in sorted(hooks, key=attrgetter("service", "url"))]
    return []


async def web_hooks(request: Request) -> Response:
    """List the webhooks of all services."""
    state, client = app_state(request), visitor_of(request).client
    rows = await state.cache.get(request, "all hooks", _hooks, state, client)
    settings = await state.hooks.settings() if state.hooks is not None and rows else {}
    names = dict.fromkeys(hook.service for hook, _ in rows)
    return state.page(
        request,
        "hooks.html",
        rows=rows,
        enabled=state.hooks is not None,
        silent=[(name, why) for name in names if (why := hook_status(settings, name))],
        delivery=DELIVERY,
    )


async def _silent_hooks(state: AppState, settings: ServiceSettings, name: str) -> tuple[int, str] | None:
    """How many webhooks of a service get no events, and why; None: there are none, or that is unknown."""
    why = hook_status(settings, name)
    if state.hooks is None or not why:
        return None
    with suppress(TitanicError):  # the hooks user may lack the permission to list them
        if hooks := await state.hooks.of_service(name):
            return len(hooks), why
    return None


def _charts(facts: FactsInfo, figures: ServiceFacts, left: int, now: float) -> list[tuple[str, Markup]]:
    series = figures["series"]
    rates = [
        Line(text, per_second(facts, series, name, now)) for text, name in (("done", "succeeded"), ("failed", "failed"))
    ]
    return [
        ("Unfinished requests", chart("Unfinished requests", [Line("unfinished", unfinished(series, left))], number)),
        ("Ended per second", chart("Per second", rates, rate)),
        *latency_charts(series),
    ]


# -- workers ------------------------------------------------------------------------------------------------------


async def workers(request: Request) -> Response:
    """Show the workers of the server, and the requests that they have."""
    state = app_state(request)
    found = await state.cache.get(request, "workers", visitor_of(request).client.workers)
    rows = found["workers"] or []
    in_hand = sorted(((one, row) for row in rows for one in row["requests"]), key=lambda pair: pair[0]["started_at"])
    has = {name for row in rows for name in ("user", "version") if row.get(name)}
    return state.page(request, "workers.html", found=found, in_hand=in_hand[:PAGE], has=has)


ROUTES = [
    Route("/workers", workers),
    Route("/services", services),
    Route("/services/{name:path}", service),
    Route("/hooks", web_hooks),
    Route("/actions/services", pause, methods=["POST"]),
    Route("/actions/services/ends", set_on_end, methods=["POST"]),
    Route("/actions/services/limits", set_limits, methods=["POST"]),
]
