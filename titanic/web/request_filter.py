"""Which requests are listed: a filter, and the search for those that match, for pages and the API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, get_args
from urllib.parse import urlencode

from titanic.aio import Client
from titanic.errors import UnknownRequest
from titanic.protocol.documents import RequestInfo
from titanic.protocol.messages import AnyState
from titanic.util import ids
from titanic.web.problems import HTTPProblem

STATES: tuple[str, ...] = get_args(AnyState)

SEARCH_TIMEOUT = 1.0
"""Seconds for which a page searches for rare requests; then it says how far it got."""

BATCH = 1000
"""UUIDs sent in one call."""

FOREVER = 1 << 62

AGES = {
    "under-5m": ("in the last 5 minutes", 300),
    "under-1h": ("in the last hour", 3600),
    "under-1d": ("in the last day", 86_400),
    "under-7d": ("in the last week", 604_800),
    "over-1h": ("more than an hour ago", 3600),
    "over-1d": ("more than a day ago", 86_400),
    "over-7d": ("more than a week ago", 604_800),
    "over-30d": ("more than 30 days ago", 2_592_000),
}

AGE_LABELS = {name: text for name, (text, _) in AGES.items()}


class FoundRequests(NamedTuple):
    """Some of the requests that match. `after`: the UUID to continue after; None: there are no more."""

    rows: list[RequestInfo]
    after: str | None


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests match; an empty field matches all."""

    service: str = ""
    state: str = ""
    text: str = ""
    """A part of the error or the key."""
    key: str = ""
    """The exact key."""
    age: str = ""
    """A name in AGES."""
    oldest: bool = False
    """Whether the oldest come first."""
    since: int = 0
    before: int = FOREVER
    """When they were submitted, in microseconds since 1970."""
    owner: str | None = None
    begin: int | None = None
    """Bytes of each body to fetch; None, too: an older server refuses them."""

    @property
    def fields(self) -> dict[str, str]:
        """The parameters of its URL."""
        given = {name: getattr(self, name) for name in ("service", "state", "text", "key", "age")}
        given["order"] = "oldest" if self.oldest else ""
        return {name: value for name, value in given.items() if value}

    def url(self, path: str = "/requests", **more: str) -> str:
        """The URL of a page about the requests that match."""
        query = urlencode(self.fields | more)
        return f"{path}?{query}" if query else path

    @property
    def matches_all(self) -> bool:
        """Whether it leaves nothing out."""
        return not self.fields.keys() - {"order"}


def parse_filter(given: Mapping[str, str], now: float | None = None) -> RequestFilter:
    """Parse a query or a form; a form fixes `since` and `before`. Raises HTTPProblem."""
    texts = {name: given.get(name, "").strip() for name in ("service", "state", "text", "key", "age", "order")}
    if texts["state"] and texts["state"] not in STATES:
        raise HTTPProblem(400, f"unknown state; choose one of {', '.join(STATES)}")
    if texts["age"] and texts["age"] not in AGES:
        raise HTTPProblem(400, f"unknown age; choose one of {', '.join(AGES)}")
    if any(len(text.encode(errors="replace")) > 255 for text in texts.values()):
        raise HTTPProblem(400, "names, keys and search texts have at most 255 bytes; shorten it")
    since, before = 0, FOREVER
    if texts["age"]:
        moment = int(((time.time() if now is None else now) - AGES[texts["age"]][1]) * 1e6)
        since, before = (moment, FOREVER) if texts["age"].startswith("under") else (0, moment)
    since, before = max(since, _moment(given, "since", 0)), min(before, _moment(given, "before", FOREVER))
    oldest = texts.pop("order") == "oldest"
    return RequestFilter(**texts, oldest=oldest, since=since, before=before, begin=None)


def check_after(after: str | None) -> None:
    """Check the UUID after which a page continues. Raises HTTPProblem."""
    if after is not None and ids.parse(after.encode(errors="replace")) is None:
        raise HTTPProblem(400, "the URL of this page has an invalid UUID; start at the first page")


def _moment(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 20 else default


async def find_some(client: Client, wanted: RequestFilter, after: str | None, limit: int) -> FoundRequests:
    """Make one call for requests that match; it may find none although there are more. Raises Forbidden."""
    if wanted.key:
        return FoundRequests(await _with_key(client, wanted), None)
    if after is None:
        if wanted.oldest and wanted.since:
            after = ids.before(wanted.since).hex()
        if not wanted.oldest and wanted.before != FOREVER:
            after = ids.before(wanted.before).hex()
    rows, after = await client.list(
        service=wanted.service or None,
        state=wanted.state or None,
        text=wanted.text or None,
        owner=wanted.owner,
        begin=wanted.begin,
        newest=not wanted.oldest,
        after=after,
        limit=limit,
    )
    chosen = [row for row in rows if wanted.since <= row["submitted_at"] < wanted.before]
    if rows and not _may_continue(wanted, rows[-1]):
        after = None
    return FoundRequests(chosen, after)


def _may_continue(wanted: RequestFilter, last: RequestInfo) -> bool:
    """Whether requests after this one may match by their time."""
    return last["submitted_at"] < wanted.before if wanted.oldest else last["submitted_at"] >= wanted.since


async def _with_key(client: Client, wanted: RequestFilter) -> list[RequestInfo]:
    uuids, states = await client.find([wanted.key])
    uuid = uuids.get(wanted.key)
    if uuid is None or uuid not in states:
        return []
    try:
        row = await client.show(uuid)
    except UnknownRequest:  # it was closed just now
        return []
    matches = wanted.service in ("", row["service"]) and wanted.state in ("", row["state"])
    text = wanted.text.casefold()
    matches = matches and (text in row["reason"].casefold() or text in row["key"].casefold())
    return [row] if matches and wanted.since <= row["submitted_at"] < wanted.before else []


async def find_page(client: Client, wanted: RequestFilter, after: str | None, limit: int) -> FoundRequests:
    """Find up to `limit` requests that match, fewer when they are rare. Raises Forbidden."""
    check_after(after)
    rows: list[RequestInfo] = []
    until = time.monotonic() + SEARCH_TIMEOUT
    while True:
        found, after = await find_some(client, wanted, after, limit - len(rows))
        rows += found
        if after is None or len(rows) >= limit or time.monotonic() >= until:
            return FoundRequests(rows, after)
