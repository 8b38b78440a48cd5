"""Which requests are meant: what the address of the list says, as a filter; and how they are gone through."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from titanic.aio import Client
from titanic.errors import UnknownRequest
from titanic.protocol.answers import RequestInfo
from titanic.util import ids
from titanic.web.problems import Problem
from titanic.web.works import BATCH

STATES = ("waiting", "delayed", "running", "done", "failed", "expired")

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

AGES_TOLD = {name: text for name, (text, _) in AGES.items()}

PATIENCE = 1.0
"""Seconds that a page goes on to look for what is rare; then it says how far it came."""

FOREVER = 1 << 62


class Part(NamedTuple):
    """Some of the requests that are meant. `after`: where to go on; None: that was all."""

    rows: list[RequestInfo]
    after: str | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which requests are meant; empty: it does not matter."""

    service: str = ""
    state: str = ""
    text: str = ""
    """Of the error or the key: a part of it."""
    key: str = ""
    """The whole key."""
    age: str = ""
    """A name of AGES."""
    oldest: bool = False
    """Oldest first."""
    since: int = 0
    before: int = FOREVER
    """Between which moments they were submitted, in microseconds since 1970."""

    @property
    def fields(self) -> dict[str, str]:
        """As the address says it."""
        given = {name: getattr(self, name) for name in ("service", "state", "text", "key", "age")}
        given["order"] = "oldest" if self.oldest else ""
        return {name: value for name, value in given.items() if value}

    def url(self, path: str = "/requests", **more: str) -> str:
        """A page about these."""
        query = urlencode(self.fields | more)
        return f"{path}?{query}" if query else path

    @property
    def is_all(self) -> bool:
        """Whether nothing is filtered out."""
        return not self.fields.keys() - {"order"}


def choice_of(given: Mapping[str, str], now: float | None = None) -> Choice:
    """What the address or a form says. A form has fixed `since` and `before`. Raises Problem."""
    texts = {name: given.get(name, "").strip() for name in ("service", "state", "text", "key", "age", "order")}
    if texts["state"] and texts["state"] not in STATES:
        raise Problem(400, f"there is no such state; choose one of {', '.join(STATES)}")
    if texts["age"] and texts["age"] not in AGES:
        raise Problem(400, f"there is no such age; choose one of {', '.join(AGES)}")
    if any(len(text.encode(errors="replace")) > 255 for text in texts.values()):
        raise Problem(400, "a name, a key or a text to look for has at most 255 bytes; shorten it")
    since, before = 0, FOREVER
    if texts["age"]:
        moment = int(((time.time() if now is None else now) - AGES[texts["age"]][1]) * 1e6)
        since, before = (moment, FOREVER) if texts["age"].startswith("under") else (0, moment)
    since, before = max(since, _moment(given, "since", 0)), min(before, _moment(given, "before", FOREVER))
    oldest = texts.pop("order") == "oldest"
    return Choice(**texts, oldest=oldest, since=since, before=before)


def _moment(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 20 else default


def first_id(microseconds: int) -> str:
    """The UUID below all that are made at a moment or later: they begin with their time."""
    tick = max(0, microseconds) * 4096 // 1000
    head = (tick >> 12) << 16 | 0x7000 | (tick & 0xFFF)
    return f"{head:016x}{0:016x}"


async def part(client: Client, choice: Choice, after: str | None, limit: int) -> Part:
    """The next of them, one question long: there may be none among them, and yet more behind. Raises Forbidden."""
    if choice.key:
        return Part(await _with_key(client, choice), None)
    if after is None:
        if choice.oldest and choice.since:
            after = first_id(choice.since)
        if not choice.oldest and choice.before != FOREVER:
            after = first_id(choice.before)
    rows, after = await client.list(
        service=choice.service or None,
        state=choice.state or None,
        text=choice.text or None,
        newest=not choice.oldest,
        after=after,
        limit=limit,
    )
    chosen = [row for row in rows if choice.since <= row["submitted_at"] < choice.before]
    if rows and not _goes_on(choice, rows[-1]):
        after = None
    return Part(chosen, after)


def _goes_on(choice: Choice, last: RequestInfo) -> bool:
    """Whether others may be behind this one, in their order by time."""
    return last["submitted_at"] < choice.before if choice.oldest else last["submitted_at"] >= choice.since


async def _with_key(client: Client, choice: Choice) -> list[RequestInfo]:
    uuids, states = await client.find([choice.key])
    uuid = uuids.get(choice.key)
    if uuid is None or uuid not in states:
        return []
    try:
        row = await client.show(uuid)
    except UnknownRequest:  # it was closed just now
        return []
    fits = choice.service in ("", row["service"]) and choice.state in ("", row["state"])
    text = choice.text.casefold()
    fits = fits and (text in row["reason"].casefold() or text in row["key"].casefold())
    return [row] if fits and choice.since <= row["submitted_at"] < choice.before else []


async def page(client: Client, choice: Choice, after: str | None, limit: int) -> Part:
    """So many of them, or fewer when they are rare. Raises Forbidden."""
    if after is not None and ids.parse(after.encode(errors="replace")) is None:
        raise Problem(400, "the address of this page has no valid UUID after which to begin; begin with the first page")
    rows: list[RequestInfo] = []
    until = time.monotonic() + PATIENCE
    while True:
        found, after = await part(client, choice, after, limit - len(rows))
        rows += found
        if after is None or len(rows) >= limit or time.monotonic() >= until:
            return Part(rows, after)


async def walk(client: Client, choice: Choice) -> AsyncGenerator[list[RequestInfo], None]:
    """All of them, some at a time."""
    after: str | None = None
    while True:
        rows, after = await part(client, choice, after, BATCH)
        if rows:
            yield rows
        if after is None:
            return
