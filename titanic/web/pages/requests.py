"""The requests: filtered as the address says, newest first, fifty on a page."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from titanic.client.batching import KEY_PREFIX
from titanic.errors import TitanicError
from titanic.web.gateway import gateway_of, visitor_of
from titanic.web.pages.asking import Missing, unless_forbidden
from titanic.web.pages.choosing import AGES_TOLD, STATES, choice_of, page
from titanic.web.pages.figures import is_own

PAGE = 50
"""Requests on a page."""

SUGGESTED = 200
"""Names of services that are suggested."""


async def requests(request: Request) -> Response:
    """The page."""
    gateway, visitor = gateway_of(request), visitor_of(request)
    choice = choice_of(request.query_params)
    after = request.query_params.get("after")
    ask = partial(page, visitor.client, choice, after, PAGE)
    found = await unless_forbidden("the requests", gateway.looks.share(request, "requests", ask))
    missing = found if isinstance(found, Missing) else None
    rows, following = ([], None) if isinstance(found, Missing) else found
    return gateway.page(
        request,
        "requests.html",
        missing=missing,
        choice=choice,
        states=STATES,
        ages=AGES_TOLD,
        names=await _names(request),
        rows=rows,
        generated=KEY_PREFIX,
        next=choice.url(after=following) if following else "",
        start=choice.url() if after else "",
        searched=bool(following) and len(rows) < PAGE,
    )


async def _names(request: Request) -> list[str]:
    """Names of services, to choose from; none for who may not know them."""
    try:
        sample = await gateway_of(request).live.sample(visitor_of(request))
    except TitanicError:
        return []
    names = {*sample.stats["services"], *(sample.workers or ())}
    return sorted(name for name in names if not is_own(name))[:SUGGESTED]


ROUTES = [Route("/requests", requests)]
