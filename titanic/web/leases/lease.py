"""A request in the hands of a worker who speaks HTTP, until he says how it ended, or says nothing for too long."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine

from broker import RemoteError
from titanic import RequestContext
from titanic.protocol.tsp import Frames


class Lease:
    """One attempt of one request. The worker of Majordomo that has it awaits `reply`."""

    def __init__(self, user: str, context: RequestContext, body: Frames, seconds: float) -> None:
        self.id = secrets.token_urlsafe(18)
        self.user = user
        self.context = context
        self.body = body
        self.over = ""
        """Why it is over; "": it is not."""
        self.reply: asyncio.Future[Frames] = asyncio.get_running_loop().create_future()
        self.holds: Callable[[], bool]
        """Whether the broker still has it that the request is here."""
        self.told: Callable[[], Coroutine[None, None, bool]]
        """Whether the broker was told of the end, as soon as that is known."""
        self._until = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._seconds = seconds
        self.extend(seconds)

    @property
    def deadline(self) -> float:
        """When the attempt is over if nothing is said, in seconds since 1970."""
        until = time.time() + self._until - asyncio.get_running_loop().time()
        return until if self.context.deadline is None else min(until, self.context.deadline)

    def extend(self, seconds: float) -> None:
        """It lasts so long from now on."""
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            self._alarm.cancel()
        self._seconds, self._until = seconds, loop.time() + seconds
        self._alarm = loop.call_at(self._until, self._lapse)

    def end(self, why: str, outcome: Frames | RemoteError | None) -> None:
        """It is over: with a reply, with an error, or because the request is not here any more (None)."""
        if self.over:
            return
        self.over = why
        if self._alarm is not None:
            self._alarm.cancel()
        if self.reply.done():
            return
        if isinstance(outcome, RemoteError):
            self.reply.set_exception(outcome)
        elif outcome is not None:
            self.reply.set_result(outcome)
        else:
            self.reply.cancel()

    def _lapse(self) -> None:
        what, fact = "the lease lapsed", f"its worker said nothing for {self._seconds:g} s"
        self.end(what, RemoteError(500, f"{what}: {fact} (no :done, :failed or :extend)"))
