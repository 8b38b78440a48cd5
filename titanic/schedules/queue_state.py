"""What the queue knows of schedules: which ticks were submitted, since when a schedule is known, whether it is paused.

All of it is in idempotency keys, which all schedulers share and which outlive every restart:

    cron:NAME:2026-11-22T20:00:00Z   the request of a tick
    cron:NAME:since:3f2a…            taken when the schedule was first seen; its UUID tells when that was
    cron:NAME:paused                 a request for `cron.paused`, which nobody serves: while it lives, NAME is paused
    cron:NAME:resumed                taken when it was resumed; its UUID tells when that was
    cron:NAME:run:5d1c…              a request of `titanic cron run`

"Taken" is a key whose request is never executed: it is closed at once. With access control keys are each
user's own: schedulers, and who pauses them, are to be one user.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, Unpack

from titanic.client.client import Client
from titanic.client.wire import Body
from titanic.errors import Forbidden
from titanic.protocol.submit_options import MOST_SECONDS, SubmitOptions
from titanic.schedules.core import LOOK_BACK
from titanic.schedules.schedule import Schedule, paused_key, resumed_key

PAUSED = "cron.paused"
"""The service of requests that stand for a pause. Nobody serves it."""

_NEVER = {"delay": 3600.0, "ttl": 600.0}
"""A request that is closed at once; if that does not come to pass, it expires before it could be executed."""


class Queue(Protocol):
    """What pauses want of a queue: some methods of `titanic.Client`."""

    def find(self, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The UUID of each key, and the state of each of these that is not closed."""

    def submit(self, service: Body, *body: Body, **options: Unpack[SubmitOptions]) -> str:
        """Have a request executed."""

    def close(self, *uuids: str) -> None:
        """Delete requests and their replies."""


class Past(NamedTuple):
    """What became of some ticks: those that were submitted, with their UUIDs; and the time up to which ticks do not
    count."""

    known: dict[int, str]
    since: float


class LastTick(NamedTuple):
    """A tick, its request, and the state of that; `closed` when it is gone."""

    tick: int
    uuid: str
    state: str


def submit_tick(client: Queue, schedule: Schedule, tick: int) -> str:
    """The UUID of the request of a tick, whoever submitted it."""
    return _submit(client, schedule, key=schedule.key(tick), key_for=schedule.key_for)


def submit_now(client: Client, schedule: Schedule) -> str:
    """Submit a request beside the ticks; its UUID."""
    return _submit(client, schedule, key=f"cron:{schedule.name}:run:{os.urandom(8).hex()}")


def _submit(client: Queue, schedule: Schedule, **keys: Any) -> str:
    options: Any = {**schedule.options, **keys}
    return client.submit(schedule.service, *schedule.frames, **options)


def past(client: Client, schedule: Schedule, looked: Sequence[int]) -> Past:
    """What became of these ticks. The first look at a schedule sets its mark."""
    keys = {schedule.key(tick): tick for tick in looked}
    uuids, _ = client.find([schedule.mark, resumed_key(schedule.name), *keys])
    mark = uuids.get(schedule.mark) or _take(client, schedule.service, schedule.mark)
    resumed = uuids.get(resumed_key(schedule.name))
    since = max(_time_of(mark), _time_of(resumed) if resumed else 0.0)
    return Past({tick: uuids[key] for key, tick in keys.items() if key in uuids}, since)


def last_tick(client: Client, schedule: Schedule, now: float) -> LastTick | None:
    """The last tick that was submitted; None: there is none."""
    for count in LOOK_BACK:
        keys = {schedule.key(tick): tick for tick in schedule.ticks.last(now, count)}
        uuids, states = client.find(list(keys))
        if uuids:
            key = max(uuids, key=lambda one: keys[one])
            return LastTick(keys[key], uuids[key], states.get(uuids[key], "closed"))
    return None


def paused(client: Queue, names: Iterable[str]) -> dict[str, str]:
    """Those of these schedules that are paused, with the UUID of what stands for the pause."""
    keys = {paused_key(name): name for name in names}
    uuids, states = client.find(list(keys))
    return {keys[key]: uuid for key, uuid in uuids.items() if uuid in states}


def pause(client: Queue, name: str) -> None:
    """Have no scheduler submit the ticks of this schedule, until it is resumed."""
    key = paused_key(name)
    uuids, states = client.find([key])
    if uuids.get(key) in states:
        return
    options: Any = {"key": key, "key_for": MOST_SECONDS, "delay": MOST_SECONDS}
    if key in uuids:  # somebody closed its request
        options["forget"] = [key]
    client.submit(PAUSED, name, **options)


def resume(client: Queue, name: str) -> bool:
    """End a pause; ticks that passed meanwhile were not missed. Returns whether there was one."""
    uuid = paused(client, [name]).get(name)
    if uuid is None:
        return False
    # First the time: a scheduler that looks between the two finds it paused still.
    _take(client, PAUSED, resumed_key(name), forget=[resumed_key(name)])
    client.close(uuid)
    return True


def _take(client: Queue, service: str, key: str, **more: Any) -> str:
    options: Any = {**_NEVER, "key": key, "key_for": MOST_SECONDS, **more}
    uuid = client.submit(service, b"", **options)
    with contextlib.suppress(Forbidden):  # then it stays as expired, until it is deleted for its age
        client.close(uuid)
    return uuid


def _time_of(uuid: str) -> float:
    """When a UUID was made, by the server's clock, in seconds since 1970."""
    return int(uuid[:12], 16) / 1000
