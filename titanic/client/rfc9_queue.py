"""Another project's queue, which knows RFC 9 only."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from titanic.client.calls import Body, Calls
from titanic.errors import InvalidRequest, TimedOut, UnknownRequest
from titanic.protocol import tsp
from titanic.protocol.answers import Ended, check, read_outcome, unknown
from titanic.protocol.tsp import Frames
from titanic.util import ids
from titanic.util.text import duration

RFC9_POLL_FIRST = 0.05
RFC9_POLL_MOST = 1.0
"""Pause in seconds between polls for a reply at a queue that knows RFC 9 only: the first and the longest."""

RFC9_ADVICE = "it is another project's queue and supports RFC 9 only"


def _refuse_rfc9(what: str) -> InvalidRequest:
    """The error for something that RFC 9 does not know."""
    return InvalidRequest(f"the queue there has no {what}", RFC9_ADVICE, "leave it out, or use a queue of this project")


class Rfc9Queue:
    """A queue of another project that knows RFC 9 and nothing more, the Guide's for example.

    It has `titanic.request`, `titanic.reply` and `titanic.close`, each for one request. It has no idempotency keys, so
    each submission is sent once: one without an answer may have been stored. It has no `titanic.wait`, so replies are
    polled. UUIDs are sent as that queue wrote them.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def submit(self, service: Body, body: Sequence[Body], options: Mapping[str, Any]) -> str:
        """Have a request stored; its UUID as the queue writes it."""
        if given := sorted(name for name, value in options.items() if value is not None):
            raise _refuse_rfc9(" and no ".join(given))
        frames = check(await self._calls.ask(tsp.REQUEST, service, *(body or (b"",)), once=True))
        if len(frames) != 1:
            raise _refuse_rfc9("UUID in its answer")
        return frames[0].decode(errors="replace")

    async def outcome(self, uuid: str, within: float | None = None) -> Ended | None:
        """How a request has ended; None while it is pending."""
        for written in _as_written(uuid):
            found = read_outcome(uuid, await self._calls.ask(tsp.REPLY, written, within=within))
            if not isinstance(found, UnknownRequest):
                return found
        return unknown(uuid)

    async def outcomes(
        self, uuids: Iterable[str], timeout: float | None
    ) -> AsyncGenerator[list[tuple[str, Ended]], None]:
        """Each UUID with how its request has ended, as that is found. Raises TimedOut when some are still pending."""
        until = None if timeout is None else time.monotonic() + timeout
        pending, pause = list(dict.fromkeys(uuids)), RFC9_POLL_FIRST
        while pending:
            for uuid in tuple(pending):
                left = None if until is None else until - time.monotonic()
                try:
                    ended = await self.outcome(uuid, left)
                except TimedOut:
                    if left is None or left <= 0:
                        raise
                    break
                if ended is not None:
                    pending.remove(uuid)
                    yield [(uuid, ended)]
            left = RFC9_POLL_MOST if until is None else until - time.monotonic()
            if pending and left <= 0:
                text = f"no reply to {pending[0]} yet" if len(pending) == 1 else f"{len(pending)} replies are pending"
                raise TimedOut(text, f"waited {duration(timeout or 0)}", "ask again later; they stay stored")
            if pending:
                await self._calls.wire.sleep(min(pause, left))
                pause = min(2 * pause, RFC9_POLL_MOST)

    async def wait(self, uuid: str, timeout: float | None) -> Frames:
        """The reply's frames, as soon as they are there."""
        async for ((_, ended),) in self.outcomes([uuid], timeout):
            if isinstance(ended, Exception):
                raise ended
            return ended
        raise unknown(uuid)

    async def close(self, uuids: Iterable[str]) -> None:
        """Have requests and their replies deleted."""
        for uuid in uuids:
            for written in _as_written(uuid):
                check(await self._calls.ask(tsp.CLOSE, written))


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
