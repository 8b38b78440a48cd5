"""All services: sorted and filtered as the address says, a hundred on a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.pages.asking import Missing, unless_forbidden
from titanic.web.pages.figures import Service, services_of
from titanic.web.problems import Problem

PAGE = 100
"""Services on a page."""

SORTED_BY: dict[str, Callable[[Service], Any]] = {
    "name": attrgetter("name"),
    "waiting": attrgetter("waiting"),
    "running": attrgetter("running"),
    "oldest": attrgetter("by_age"),
    "workers": attrgetter("by_workers"),
    "done": attrgetter("done"),
    "failed": attrgetter("failed"),
}

LABELS = {
    "name": "Service",
    "waiting": "Waiting",
    "oldest": "Oldest",
    "running": "Running",
    "workers": "Workers",
    "done": "Done",
    "failed": "Failed",
}

ONLY: dict[str, Callable[[Service], Any]] = {
    "waiting": attrgetter("waiting"),
    "lonely": attrgetter("is_lonely"),
    "paused": attrgetter("paused"),
    "failed": attrgetter("failed"),
}
"""What is chosen beside the name."""


class Column(NamedTuple):
    """A column of the table. `url`: the page sorted by it, or the other way round if it is already."""

    label: str
    css: str
    """Its class."""
    url: str
    sorted: str
    """As `aria-sort` says it; empty: by another column."""


async def services(request: Request) -> Response:
    """The page."""
    gateway, given = gateway_of(request), request.query_params
    text, only = given.get("q", "").strip(), given.get("only", "")
    order, page = given.get("sort", "name"), given.get("page", "1")
    by = order.removeprefix("-")
    if by not in SORTED_BY or not page.isdecimal() or not 1 <= len(page) <= 6 or page == "0":
        raise Problem(400, f"there is no such order or page; sort is one of {', '.join(SORTED_BY)}, page a number")
    asked = gateway.live.sample(visitor_of(request))
    sample = await unless_forbidden("the services, with what waits and who works", asked)
    if isinstance(sample, Missing):
        return gateway.page(request, "services.html", missing=sample)
    every = services_of(sample)
    chosen = [one for one in every if text.casefold() in one.name.casefold() and (only not in ONLY or ONLY[only](one))]
    chosen.sort(key=SORTED_BY[by], reverse=order.startswith("-"))
    first = (int(page) - 1) * PAGE
    shown = chosen[first : first + PAGE]
    return gateway.page(
        request,
        "services.html",
        missing=None,
        q=text,
        only=only,
        sort=order,
        total=len(every),
        found=len(chosen),
        first=first,
        services=shown,
        columns=_columns(text, only, order),
        next=_url(text, only, order, int(page) + 1) if first + PAGE < len(chosen) else "",
        start=_url(text, only, order, 1) if first else "",
    )


def _url(text: str, only: str, order: str, page: int) -> str:
    values = {"q": text, "only": only, "sort": "" if order == "name" else order, "page": "" if page == 1 else page}
    query = urlencode({name: value for name, value in values.items() if value})
    return f"/services?{query}" if query else "/services"


def _columns(text: str, only: str, order: str) -> Sequence[Column]:
    found = []
    for name, label in LABELS.items():
        first = name if name == "name" else f"-{name}"  # what one looks for: the first names, the largest numbers
        again = name if order.startswith("-") else f"-{name}"
        sorted_by = order.removeprefix("-") == name
        way = ("descending" if order.startswith("-") else "ascending") if sorted_by else ""
        css = "" if name == "name" else "right"
        found.append(Column(label, css, _url(text, only, again if sorted_by else first, 1), way))
    return found


ROUTES = [Route("/services", services)]
