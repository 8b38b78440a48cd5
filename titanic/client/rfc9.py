"""The queue of another project, which knows RFC 9 and nothing more: the Guide's, for example.

It has `titanic.request`, `titanic.reply` and `titanic.close`, each for one request. There are no idempotency keys, so a
submission is sent once: what gets no answer may be stored. There is no `titanic.wait`, so replies are polled. UUIDs go
out as such a queue wrote them, which need not be as this project writes them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from titanic.client.calls import Calls
from titanic.client.wire import Body
from titanic.errors import InvalidRequest, TimedOut, UnknownRequest
from titanic.protocol import tsp
from titanic.protocol.answers import Ended, check, read_outcome, unknown
from titanic.protocol.tsp import Frames
from titanic.util import ids

POLL_FIRST = 0.05
POLL_MOST = 1.0
"""Seconds between two looks at a reply: the first pause, and the longest."""

ADVICE = "it is a queue of another project, and knows RFC 9 only"


def refuse(what: str) -> InvalidRequest:
    """The error for something that RFC 9 does not know."""
    return InvalidRequest(f"the queue there has no {what}", ADVICE, "leave it out, or use a queue of this project")


async def submit(calls: Calls, service: Body, body: Sequence[Body], options: Mapping[str, Any]) -> str:
    """Have a request stored; its UUID as the queue writes it."""
    if given := sorted(name for name, value in options.items() if value is not None):
        raise refuse(" and no ".join(given))
    frames = check(await calls.ask(tsp.REQUEST, service, *(body or (b"",)), once=True))
    if len(frames) != 1:
        raise refuse("UUID in its answer")
    return frames[0].decode(errors="replace")


async def outcome(calls: Calls, uuid: str, within: float | None = None) -> Ended | None:
    """How a request has ended; None while it is pending."""
    for written in _as_written(uuid):
        found = read_outcome(uuid, await calls.ask(tsp.REPLY, written, within=within))
        if not isinstance(found, UnknownRequest):
            return found
    return unknown(uuid)


async def outcomes(
    calls: Calls, uuids: Iterable[str], timeout: float | None
) -> AsyncGenerator[list[tuple[str, Ended]], None]:
    """Each UUID with how its request has ended, as that is found. Raises TimedOut when some are still pending."""
    until = None if timeout is None else time.monotonic() + timeout
    pending, pause = list(dict.fromkeys(uuids)), POLL_FIRST
    while pending:
        for uuid in tuple(pending):
            left = None if until is None else until - time.monotonic()
            try:
                ended = await outcome(calls, uuid, left)
            except TimedOut:
                if left is None or left <= 0:
                    raise
                break
            if ended is not None:
                pending.remove(uuid)
                yield [(uuid, ended)]
        left = POLL_MOST if until is None else until - time.monotonic()
        if pending and left <= 0:
            text = f"no reply to {pending[0]} yet" if len(pending) == 1 else f"{len(pending)} replies are pending"
            raise TimedOut(text, f"waited {timeout:g} s", "ask again later: the requests live on")
        if pending:
            await calls.wire.sleep(min(pause, left))
            pause = min(2 * pause, POLL_MOST)


async def wait(calls: Calls, uuid: str, timeout: float | None) -> Frames:
    """The reply's frames, as soon as they are there."""
    async for ((_, ended),) in outcomes(calls, [uuid], timeout):
        if isinstance(ended, Exception):
            raise ended
        return ended
    raise unknown(uuid)


async def close(calls: Calls, uuids: Iterable[str]) -> None:
    """Have requests and their replies deleted."""
    for uuid in uuids:
        for written in _as_written(uuid):
            check(await calls.ask(tsp.CLOSE, written))


def _as_written(uuid: str) -> tuple[str, ...]:
    """A UUID as it was given, and as the Guide's programs in C and in Python write it."""
    plain = ids.plain(uuid)
    forms = [uuid]
    with suppress(ValueError):
        if ids.parse(plain.encode()) is not None:
            low = plain.lower()
            dashed = "-".join((low[:8], low[8:12], low[12:16], low[16:20], low[20:]))
            forms += [plain.upper(), dashed]
    return tuple(dict.fromkeys(forms))
