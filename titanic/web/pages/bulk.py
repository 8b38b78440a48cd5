"""Retry or close many requests: those that were selected, or all that a filter means. A page asks first, with their
number; another says how far it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from titanic.aio import Client
from titanic.errors import UnknownRequest
from titanic.protocol.answers import RequestInfo
from titanic.util import ids
from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.pages import forms
from titanic.web.pages.choosing import AGES_TOLD, Choice, choice_of, walk
from titanic.web.problems import Problem
from titanic.web.works import Work, named

ACTIONS = ("retry", "close")

RETRIED = ("failed", "expired")
"""States of what can be retried."""

COUNTING = 2.0
"""Seconds after which a page gives up counting. Then no number is shown or confirmed."""

TYPED = 100
"""Closing more requests than this takes typing their number, or ALL when they were not counted."""

ALL = "all"

MOST_SELECTED = 1000


async def confirm_selected(request: Request) -> Response:
    """Asks whether the requests of the form are meant. It changes nothing."""
    form = await forms.read(request)
    return confirm(request, _action(form), choice_of(form), _uuids(form.getlist("uuid")))


def confirm(
    request: Request, do: str, choice: Choice, uuids: Sequence[str], title: str = "", back: str = ""
) -> Response:
    """Asks whether these are meant, which are among those of `choice`. `title`: what they have in common; `back`: the
    page of their group, if they were found there."""
    return gateway_of(request).page(
        request,
        "bulk.html",
        do=do,
        count=len(uuids),
        typed="",
        choice=choice,
        title=title,
        uuids=uuids,
        back=back or choice.url(),
        group=bool(back),
    )


async def confirm_all(request: Request) -> Response:
    """Asks whether all that the filter means are meant; says how many that are."""
    do, choice = _action(request.query_params), choice_of(request.query_params)
    _check(do, choice)
    choice = replace(choice, before=min(choice.before, int(time.time() * 1e6)), oldest=False)
    count = await _count(visitor_of(request).client, do, choice)
    return gateway_of(request).page(
        request,
        "bulk.html",
        do=do,
        count=count,
        typed=_confirmation(do, count),
        choice=choice,
        title="",
        ages=AGES_TOLD,
        uuids=[],
        back=choice.url(),
        group=False,
    )


async def begin(request: Request) -> Response:
    """Begin what was confirmed."""
    form = await forms.read(request)
    gateway, visitor = gateway_of(request), visitor_of(request)
    do, choice, count = _action(form), choice_of(form), form.get("count", "")
    if "count" not in form or (count and (not count.isdecimal() or len(count) > 9)):
        raise Problem(400, "nothing was done: the form has no number of requests; open its page again")
    most = int(count) if count else None
    if selected := form.get("uuids", "").split():
        uuids = _uuids(selected)
        work, batches = Work(visitor.user, do, len(uuids), choice.url()), partial(named, uuids)
    else:
        _check(do, choice)
        typed = form.get("typed", "").strip().lower().replace(",", "")
        if (wanted := _confirmation(do, most)) and typed != wanted.replace(",", ""):
            raise Problem(400, f"nothing was closed: type “{wanted}” to confirm")
        work = Work(visitor.user, do, most, choice.url())
        batches = partial(_meant, visitor.client, do, choice, most)
    gateway.works.begin(work, visitor.client, batches)
    return RedirectResponse(f"/works/{work.id}", 303)


async def progress(request: Request) -> Response:
    """How far it is."""
    gateway = gateway_of(request)
    work = gateway.works.of(visitor_of(request).user, request.path_params["work"])
    return gateway.page(request, "work.html", work=work)


async def stop(request: Request) -> Response:
    """Leave the rest as it is."""
    await forms.read(request)
    work = gateway_of(request).works.of(visitor_of(request).user, request.path_params["work"])
    work.stopped = True
    return RedirectResponse(f"/works/{work.id}", 303)


def _action(given: Mapping[str, str]) -> str:
    if (do := given.get("do", "")) not in ACTIONS:
        raise Problem(400, "nothing was done: the form says neither retry nor close; open its page again")
    return do


def _uuids(given: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(ids.plain(uuid).lower() for uuid in given))
    if not found:
        raise Problem(400, "no request was selected; go back, and tick those that you mean")
    if len(found) > MOST_SELECTED or any(ids.parse(uuid.encode(errors="replace")) is None for uuid in found):
        raise Problem(400, f"these are no UUIDs, or more than {MOST_SELECTED:,}; select them again")
    return found


def _check(do: str, choice: Choice) -> None:
    if do == "close" and choice.state in ("", "running") and not choice.key:
        what = "choose a state first, but not running: closed are all requests in a state"
        raise Problem(400, f"nothing was closed: {what}; a single one that runs is closed on its own page")
    if do == "retry" and choice.state not in ("", *RETRIED):
        raise Problem(400, f"what is {choice.state} cannot be retried, only what failed or expired; choose that state")


def _meant_by(do: str, choice: Choice) -> list[Choice]:
    """Choices that have only what can be done: without a state, all that can be retried is in two."""
    if do == "retry" and not choice.state:
        return [replace(choice, state=state) for state in RETRIED]
    return [choice]


async def _meant(
    client: Client, do: str, choice: Choice, most: int | None = None
) -> AsyncGenerator[Sequence[str], None]:
    """The UUIDs, some at a time. `most`: no more than so many, because others may come to match since they were
    counted; None: all."""
    for one in _meant_by(do, choice):
        async for rows in walk(client, one):
            if uuids := [row["uuid"] for row in rows if _can_be(do, row)][:most]:
                yield uuids
            if most is not None:
                most -= len(uuids)
                if not most:
                    return


def _can_be(do: str, row: RequestInfo) -> bool:
    return row["state"] in RETRIED if do == "retry" else row["state"] != "running"


async def _count(client: Client, do: str, choice: Choice) -> int | None:
    """How many there are; None: counting takes too long, or fails."""
    count = 0
    try:
        async with asyncio.timeout(COUNTING):
            async for uuids in _meant(client, do, choice):
                count += len(uuids)
    except (TimeoutError, UnknownRequest):
        return None
    return count


def _confirmation(do: str, count: int | None) -> str:
    """What is to be typed; empty: nothing. `count`: None: it is not known."""
    if do != "close":
        return ""
    if count is None:
        return ALL
    return f"{count:,}" if count > TYPED else ""


ROUTES = [
    Route("/requests/selected", confirm_selected, methods=["POST"]),
    Route("/requests/all", confirm_all),
    Route("/actions/requests", begin, methods=["POST"]),
    Route("/works/{work}", progress),
    Route("/actions/works/{work}/stop", stop, methods=["POST"]),
]
