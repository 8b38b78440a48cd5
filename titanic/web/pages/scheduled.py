"""What the queue tells of schedules: their pauses, and the requests of ticks that it still has. When the next
ticks are, stands in the file of `titanic cron`, which only schedulers have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from titanic.aio import Client
from titanic.protocol.answers import RequestInfo
from titanic.schedules.queue_state import PAUSED
from titanic.schedules.schedule import NAME

KEY = re.compile(rf"cron:({NAME.pattern}):(?:(paused)|(run):[0-9a-f]+|(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ))")
"""The keys of schedules: of a pause, of a request beside the ticks, of a tick."""

PAGE, PAGES = 1000, 3
"""Requests that are looked at, the newest ones."""


@dataclass(slots=True)
class Seen:
    """A schedule, as far as the queue tells of it."""

    name: str
    owner: str = ""
    paused: int = 0
    """Since when it is paused, in microseconds since 1970; 0: it is not."""
    service: str = ""
    tick: str = ""
    """The last tick whose request is still there, as 2026-11-22T20:00:00Z."""
    last: RequestInfo | None = None
    """The newest of its requests that is still there: that of a tick, or one beside them."""
    states: dict[str, int] = field(default_factory=dict)
    """How many of its requests are there in which state."""


@dataclass(frozen=True, slots=True)
class Schedules:
    """What was seen. `all`: whether no more requests of schedules are there than were looked at."""

    seen: list[Seen]
    all: bool


def read_key(key: str) -> tuple[str, str, str] | None:
    """The schedule of a key, what it is of (paused, run or tick), and the time of a tick; None: of no schedule."""
    found = KEY.fullmatch(key)
    if found is None:
        return None
    name, paused, run, tick = found.groups()
    return name, paused or run or "tick", tick or ""


async def look(client: Client) -> Schedules:
    """What the queue tells."""
    pauses, more_pauses = await client.list(service=PAUSED, newest=True, limit=PAGE)
    rows: list[RequestInfo] = []
    after: str | None = None
    for _ in range(PAGES):
        page, after = await client.list(text="cron:", newest=True, limit=PAGE, after=after)
        rows += page
        if after is None or len(rows) >= PAGE:
            break
    return Schedules(gather([*pauses, *rows]), after is None and more_pauses is None)


def gather(rows: Iterable[RequestInfo]) -> list[Seen]:
    """The schedules of requests, by name."""
    seen: dict[tuple[str, str], Seen] = {}
    known: set[str] = set()
    for row in rows:
        said = read_key(row["key"])
        if said is None or row["uuid"] in known:
            continue
        known.add(row["uuid"])
        name, kind, tick = said
        one = seen.setdefault((row.get("owner", ""), name), Seen(name, row.get("owner", "")))
        if kind == "paused":
            if row["service"] == PAUSED and row["state"] in ("waiting", "delayed"):
                one.paused = row["submitted_at"]
            continue
        one.tick = max(one.tick, tick)
        one.states[row["state"]] = one.states.get(row["state"], 0) + 1
        if one.last is None or row["uuid"] > one.last["uuid"]:
            one.last, one.service = row, row["service"]
    return [seen[key] for key in sorted(seen)]
