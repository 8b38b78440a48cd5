"""A session and its connection in an asyncio loop. What it decides is in `broker.client.Conversation`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

import zmq

from broker import client
from broker.client import Body, Conversation
from broker.config import ClientConfig
from broker.core.client import ClientSession, EventKind, ReplyEvent
from broker.core.mdp import Frames
from broker.core.timers import earliest
from broker.errors import BrokerError, UsageError
from broker.io.curve import Curve, KeyProbe
from broker.io.sockets import Socket

_get: Any = zmq.backend.Socket.get
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)

TURN = 100
"""Messages taken in before other tasks of the loop get a turn."""


class Answers:
    """The events of one request, for the coroutine that waits for it."""

    __slots__ = ("_arrival", "_events", "_fault", "ended", "ticket")

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.ended = False
        """Whether nothing more comes."""
        self._events: deque[ReplyEvent] = deque()
        self._fault: BrokerError | None = None
        self._arrival: asyncio.Future[None] | None = None

    def put(self, event: ReplyEvent) -> None:
        """Add an event."""
        self.ended = event.kind is not EventKind.PARTIAL
        self._events.append(event)
        self._wake()

    def fail(self, fault: BrokerError) -> None:
        """End with an error."""
        self._fault = fault
        self._wake()

    async def next(self) -> ReplyEvent:
        """The next event."""
        while not self._events:
            if self._fault is not None:
                raise type(self._fault)(*self._fault.args)  # each has its own: an exception keeps where it was raised
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self._events.popleft()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class Exchange(Conversation):
    """Requests from any number of coroutines of one loop; one at a time if the session is not correlated."""

    watchful = True
    spread = True

    def __init__(
        self, endpoint: str | Sequence[str], config: ClientConfig, curve: Curve | None, *, correlated: bool
    ) -> None:
        super().__init__(endpoint, ClientSession(config, correlated=correlated), curve)
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, Answers] = {}
        self._readers = WaitingReaders(self._loop, self._run)
        self._watched_probe: KeyProbe | None = None
        """The probe that has the watched sockets."""
        self._due = False
        """Whether `_run` will be called in the loop's next round."""
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = 0.0  # uvloop does not say it of an alarm that is due at once
        self._diagnosis: asyncio.Task[None] | None = None
        """Finds out why no answer comes."""

    def close(self) -> None:
        """Close the connection. Call this in the loop. Waiting coroutines get a UsageError."""
        super().close()
        self._fail(UsageError("the client is closed"))
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if not self._loop.is_closed():
            self._readers.set(())

    async def call(self, service: bytes, body: Iterable[Body], timeout: float | None, retries: int | None) -> Frames:
        """The whole reply. Raises TimedOut, RemoteError or KeyRefused."""
        answers = self._begin(service, body, timeout, retries)
        try:
            frames, done = await self._part(answers)
            while not done:
                part, done = await self._part(answers)
                frames = frames + part
            return frames
        finally:
            self._end(answers)

    async def stream(
        self, service: bytes, body: Iterable[Body], timeout: float | None, retries: int | None
    ) -> AsyncGenerator[Frames, None]:
        """The reply part by part; the last one is left out when it is empty."""
        answers = self._begin(service, body, timeout, retries)
        try:
            done = False
            while not done:
                part, done = await self._part(answers)
                if part or not done:
                    yield part
        finally:
            self._end(answers)

    async def no_answer(self, *, sent: bool) -> BrokerError:
        """Return what to raise for a request without an answer."""
        if self._diagnosis is None or self._diagnosis.done():
            self._diagnosis = self._loop.create_task(self._diagnose(asyncio.to_thread))
        await asyncio.shield(self._diagnosis)
        return self._silence(sent=sent)

    def _begin(self, service: bytes, body: Iterable[Body], timeout: float | None, retries: int | None) -> Answers:
        answers = Answers(self._ask(service, body, timeout, retries))
        self._answers[answers.ticket] = answers
        self._arrange()
        return answers

    def _end(self, answers: Answers) -> None:
        """Forget the request of a coroutine that ended."""
        self._answers.pop(answers.ticket, None)
        if not answers.ended and not self._closed:
            self._session.cancel(answers.ticket)
            self._flush()
            self._arrange()

    async def _part(self, answers: Answers) -> tuple[Frames, bool]:
        """A part of the reply, and whether it is the last one."""
        event = await answers.next()
        if event.kind is EventKind.GAVE_UP:
            raise await self.no_answer(sent=event.sent)
        return self._body_of(event), event.kind is not EventKind.PARTIAL

    def _run(self) -> None:
        """Take in what has come, and do what is due."""
        self._due = False
        if self._closed:
            return
        try:
            self._move(time.monotonic(), TURN)
        except BrokerError as fault:
            self._fail(fault)
        for event in self._session.take_events():
            if (answers := self._answers.get(event.ticket)) is not None:
                answers.put(event)
        self._arrange()

    def _ring(self) -> None:
        """A deadline has passed."""
        self._alarm = None
        self._run()

    def _arrange(self) -> None:
        """Schedule `_run` for when it has something to do."""
        now = time.monotonic()
        first = self._deadline(now)
        if self._session.has_other_endpoints and len(self._session):  # of a program that stands still nothing comes
            first = earliest(first, now + client.LONGEST_POLL / 1000)
        probe = self._probe
        if self._dealer.changed() or probe is not self._watched_probe or (probe is not None and probe.changed()):
            self._watched_probe = probe
            self._readers.set([*self._dealer.sockets(), *(probe.sockets() if probe is not None else ())])
        if not self._due and self._readers.has_input():
            self._due = True
            self._loop.call_soon(self._run)
        if first is not None:
            wait = max(0.0, first - now)
            when = self._loop.time() + wait
            if self._alarm is None or self._alarm_at > when:
                if self._alarm is not None:
                    self._alarm.cancel()
                self._alarm_at = when
                self._alarm = self._loop.call_later(wait, self._ring)

    def _fail(self, fault: BrokerError) -> None:
        """End all requests with an error."""
        answers, self._answers = self._answers, {}
        for one in answers.values():
            one.ended = True
            one.fail(fault)
            self._session.cancel(one.ticket)


class WaitingReaders:
    """Has an asyncio loop call a function when one of some ZeroMQ sockets has input.

    The descriptor of such a socket becomes readable when something arrives at a socket that had nothing, and any use of
    the socket may consume that. So call `has_input` after any use of the sockets.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        self._loop = loop
        self._call = call
        self._files: dict[Socket, int] = {}
        """The sockets, and their descriptors: closed ones can't be asked for them any more."""

    def set(self, sockets: Iterable[Socket]) -> None:
        """Watch these sockets and no others. Call this as soon as one was closed: its descriptor's number may be
        another file's at any time."""
        now = list(sockets)
        for socket in [socket for socket in self._files if socket not in now]:
            self._loop.remove_reader(self._files.pop(socket))
        for socket in now:
            if socket not in self._files:
                descriptor = socket.FD
                try:
                    self._loop.add_reader(descriptor, self._call)
                except NotImplementedError:
                    what = f"{type(self._loop).__name__} cannot watch sockets of ZeroMQ"
                    raise UsageError(f"{what}; run asyncio with SelectorEventLoop, also on Windows") from None
                self._files[socket] = descriptor

    def has_input(self) -> bool:
        """Return whether there is input that the loop will not report."""
        return any(_get(socket, _EVENTS) & _POLLIN for socket in self._files)
