"""The worker of a pool: its one connection to the broker, and the links to the children that execute its requests.

A request goes to the child with the most free places. One that finds none is given back, since the broker does not know
in time of a child that died, leaves or is silent. A request that is to run alone waits for a child without others, or
for an extra one, and meanwhile the child gets nothing else.

A child's end is reported to the broker (LOST): any of its requests may be the cause, or none if the pool killed it.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, NamedTuple

import msgspec

from broker import (
    MAX_SLOTS,
    Channel,
    Curve,
    Delivery,
    Job,
    LeadRegistration,
    WorkerBase,
    WorkerConfig,
    WorkerRegistration,
)
from titanic.pool.child_messages import (
    CHUNK,
    BeginJob,
    CancelJob,
    ChildBeat,
    JobFinal,
    JobPart,
    JobProgress,
    MessageReader,
    ToChild,
    ToParent,
    encode,
)
from titanic.pool.core import MAX_EXTRA, ChildConfig, Declaration, PoolConfig
from titanic.util.text import counted, duration

SILENT = 1.0
"""Seconds without a sign of life after which a child that has requests gets nothing more, until it gives one."""

IDLE_SILENT = 4.0
"""The same for a child without requests, which gives them less often."""

MOST_CHUNKS = 16
"""Of these, before others have their turn."""

Post = Callable[..., None]
"""Gets the number of a child, and what is to be said of it to the pool's core. Any thread may call it."""


class HeldJob(NamedTuple):
    """A request that a child has, or that waits for one."""

    channel: WorkerRegistration
    job: Job
    delivery: Delivery


class PoolWorker(WorkerBase):
    """Serves what an app declares. `start` it with its first child; it runs in a thread of its own."""

    _handlers: PoolWorker
    _has_children = True

    def __init__(self, app: Declaration, config: PoolConfig, child: ChildConfig, post: Post) -> None:
        self.app = app
        self.stopping = False
        self.extra_wanted = 0
        """Requests that wait to run alone, and extra children that have one. Any thread may read it."""
        self._handlers = self
        self._jobs_each = child.jobs
        self._pool = config
        self._post = post
        self._links: dict[int, ChildLink] = {}
        """By the children's numbers; the least recently used first."""
        self._waiting: deque[HeldJob] = deque()
        """Requests of connections that cannot give one back."""
        self._alone: deque[HeldJob] = deque()
        slots = self._missing = min(config.processes * child.jobs, MAX_SLOTS)
        curve = None if app.curve is None else Curve(*(key.encode() for key in app.curve))
        limits = {name.encode(): limit for name, limit, _ in app.services if limit}
        handlers = {name.encode(): None for name, _, _ in app.services}
        self.only_cancelled = {name.encode() for name, _, on_limit in app.services if on_limit != "kill"}
        """Services of requests that may exceed their limits by any time."""
        self._begin(handlers, app.endpoint, slots, False, WorkerConfig(deploy=child.deploy), curve, limits)

    # -- the pool's thread -----------------------------------------------------------------------------------

    def start(self, number: int, connection: socket.socket, extra: bool) -> None:
        """Serve, with this child at first. Raises EndpointError or UsageError."""
        self._add_child(number, connection, extra)
        self._open()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def add_child(self, number: int, connection: socket.socket, extra: bool) -> None:
        """Have one more child."""
        self._loop.call(self._add_child, number, connection, extra)

    def leave_child(self, number: int) -> None:
        """Give a child nothing more; it ends when its requests are done."""
        self._loop.call(self._leave_child, number)

    def spare(self, number: int) -> None:
        """Note that a child is about to be killed, and that its requests are not to blame."""
        self._loop.call(self._spare, number)

    def child_gone(self, number: int, how: str) -> None:
        """Note that a child has ended."""
        self._loop.call(self._child_gone, number, how)

    def stop(self) -> None:
        """Take no more requests, finish those in hand, and end."""
        if not self.stopping:
            self.stopping = True
            self._loop.call(self._return_waiting)
            self._leave()

    def end(self) -> None:
        """End now, and wait until the broker was notified."""
        self.stopping = True
        self.abandon()
        self._thread.join(1.0)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended

    @property
    def fault(self) -> str:
        """Why it has ended by itself; empty: for no known reason."""
        return "" if self._fault is None else str(self._fault)

    # -- the worker's own thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception:
            self._log_fault()
        finally:
            self._ended = True
            self._post(0)

    def call(self, function: Callable[..., Any], *args: Any) -> bool:
        """Have a child execute a request (`Handlers`)."""
        held = HeldJob(*args)
        if held.job.alone:
            self._alone.append(held)
            self._serve_waiting()
            if held in self._alone:
                held.delivery.on_cancel(partial(self._return_unbegun, held))
        elif (link := self._most_free()) is not None:
            self._links[link.number] = self._links.pop(link.number)
            link.begin(held)
        elif held.channel.session.joint:
            held.channel.give_back(held.job)
        else:
            self._waiting.append(held)
        return True

    def done(self) -> None:
        """Note that one of the calls is done (`Handlers`)."""

    def _most_free(self) -> ChildLink | None:
        best, most = None, 0
        for link in self._links.values():
            if not link.extra and link.free > most:
                best, most = link, link.free
        return best

    def finished(self, held: HeldJob, body: list[bytes], *, recount: bool) -> None:
        """Give a reply back. `recount`: the broker is not to send just one request for its place."""
        if recount:
            self.count_places()
        held.channel.final(held.job, body)
        if self._alone or self._waiting:
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Begin what waits, as far as there are children for it."""
        while self._alone:
            idle = [link for link in self._links.values() if link.free and not link.in_hand and self._spares(link)]
            link = min(idle, key=lambda link: not link.extra, default=None)
            if link is None:
                break
            link.alone = True
            link.begin(self._alone.popleft())
        while self._waiting and (link := self._most_free()) is not None:
            link.begin(self._waiting.popleft())
        self.count_places()

    def _spares(self, link: ChildLink) -> bool:
        """Return whether a child may have a request that runs alone: the last one with free places takes others."""
        others = (other.free for other in self._links.values() if other is not link and not other.extra)
        return link.extra or self._jobs_each == 1 or any(others)

    def count_places(self) -> None:
        """Offer as many slots as there are requests in hand, and places for more. Those that wait to run alone take no
        place."""
        free = sum(link.free for link in self._links.values() if not link.extra)
        in_hand = sum(len(link.in_hand) for link in self._links.values()) + len(self._alone) + len(self._waiting)
        missing = self._jobs - min(in_hand + free, self._jobs + MAX_EXTRA)
        if missing != self._missing:
            self._missing = missing
            for channel in self._channels:
                if isinstance(channel, LeadRegistration):
                    self._note_elsewhere(channel, time.monotonic())
        extra = len(self._alone) + sum(link.extra and link.alone for link in self._links.values())
        if extra != self.extra_wanted:
            self.extra_wanted = extra
            self._post(0)

    def _add_child(self, number: int, connection: socket.socket, extra: bool) -> None:
        link = ChildLink(self, self._pool, number, connection, 1 if extra else self._jobs_each, extra, self._post)
        self._links[number] = link
        self._loop.add(link)
        self._loop.watch(connection.fileno(), link, {}, EVENT_READ)
        self._serve_waiting()
        link.end_if_done()

    def _leave_child(self, number: int) -> None:
        if (link := self._links.get(number)) is not None:
            link.leave()
            self.count_places()

    def _spare(self, number: int) -> None:
        if (link := self._links.get(number)) is not None:
            link.to_blame = set()

    def _child_gone(self, number: int, how: str) -> None:
        link = self._links.get(number)
        if link is None:
            return
        link.read_rest()
        del self._links[number]
        self._loop.remove(link)
        suspects, others = link.blame()
        self.count_places()  # before the broker has them back
        for channel in {held.channel: None for held in (*suspects, *others)}:
            channel.died(
                [held.job for held in suspects if held.channel is channel],
                [held.job for held in others if held.channel is channel],
                len(suspects),
                f"the process {how} while executing the request",
            )
        self._serve_waiting()

    def _return_waiting(self) -> None:
        """Return what no child has started."""
        for held in (*self._alone, *self._waiting):
            self._return_unbegun(held)

    def _return_unbegun(self, held: HeldJob) -> None:
        """Return a request, unless a child has started it."""
        for waiting in (self._alone, self._waiting):
            if held in waiting:
                waiting.remove(held)
                if held.channel.session.joint:
                    held.channel.give_back(held.job)
                else:
                    held.channel.died([], [held.job], 0, "")
                self.count_places()


class ChildLink(Channel):
    """The parent's end of the sockets to a child, in the worker's loop. It never blocks."""

    rests = True

    def __init__(
        self,
        worker: PoolWorker,
        config: PoolConfig,
        number: int,
        connection: socket.socket,
        jobs: int,
        extra: bool,
        post: Post,
    ) -> None:
        self.number = number
        self.extra = extra
        """Whether it is only for requests that run alone."""
        self.in_hand: dict[int, HeldJob] = {}
        self.alone = False
        """Whether it has a request that runs alone."""
        self.leaving = False
        self.silent = False
        self.to_blame: set[int] | None = None
        """Which of the requests in hand are the cause of its end; None: any may be."""
        self._worker = worker
        self._config = config
        self._connection = connection
        self._descriptor = connection.fileno()
        self._jobs = jobs
        self._post = post
        self._numbers = itertools.count(1)
        self._begun = 0
        self._unsent = bytearray()
        self._is_writing = False
        """Whether its socket is polled for room."""
        self._reader: MessageReader[ToParent] = MessageReader(ToParent)  # type: ignore[arg-type]
        self._silent_at = time.monotonic() + IDLE_SILENT
        self._kill_at: dict[int, float] = {}
        """When a request has exceeded its limit by so much that the child is killed."""

    @property
    def free(self) -> int:
        """How many more requests it takes."""
        if self.leaving or self.silent or self.alone:
            return 0
        return self._jobs - len(self.in_hand)

    def begin(self, held: HeldJob) -> None:
        """Have a request executed."""
        number, job = next(self._numbers), held.job
        if not self.in_hand:
            self._silent_at = min(self._silent_at, time.monotonic() + SILENT)
        self.in_hand[number] = held
        self._send(BeginJob(number, job.client, job.service, held.channel.joins_parts, job.body))
        held.delivery.on_cancel(partial(self._cancel, number), again=True)
        self._begun += 1
        if self._begun == 1:
            self._post(self.number, begun=True)
        if self._begun == self._config.max_requests:
            self.leaving = True
            self._post(self.number, leaving=f"has started {counted(self._begun, 'request')}")
            self._worker.count_places()

    def leave(self) -> None:
        """Take nothing more, and end when all is done."""
        self.leaving = True
        self.end_if_done()

    def end_if_done(self) -> None:
        """Have the child end when it has nothing left to do."""
        if self.in_hand:
            return
        if self.extra and not self.leaving:
            self.leaving = True
            self._post(self.number, done=True)
        if self.leaving and not self._unsent:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

    def blame(self) -> tuple[list[HeldJob], list[HeldJob]]:
        """Divide what it has in hand at its end: requests that may be the cause, and others."""
        blamed = self.in_hand.keys() if self.to_blame is None else self.to_blame
        suspects = [held for number, held in self.in_hand.items() if number in blamed]
        return suspects, [held for number, held in self.in_hand.items() if number not in blamed]

    def read_rest(self) -> None:
        """Take in what a child that has ended had said before."""
        self.leaving = True
        with suppress(OSError, msgspec.MsgspecError):
            while data := self._connection.recv(CHUNK):
                for message in self._reader.feed(data):
                    self._take(message)

    # -- a channel -------------------------------------------------------------------------------------------

    def drain(self, now: float) -> bool:
        for _ in range(MOST_CHUNKS):
            try:
                data = self._connection.recv(CHUNK)
                messages = self._reader.feed(data)
            except BlockingIOError:
                break
            except OSError:
                data, messages = b"", []
            except msgspec.MsgspecError:
                data, messages = b"", []
                self._post(self.number, stuck="sent something that is no message")
            if not data:
                self._close_for_reading()
                break
            self._hear(now)
            for message in messages:
                self._take(message)
            if len(data) < CHUNK:
                break
        if self._unsent:
            self._write()
        return False

    def flush(self, now: float) -> None:
        if self._unsent and not self._is_writing:
            self._write()

    def tick(self, now: float) -> None:
        if not self.silent and now >= self._silent_at:
            self.silent = True
            self._worker.count_places()
        late = [number for number, when in self._kill_at.items() if now >= when]
        if late:
            job = self.in_hand[late[0]].job
            text = f"still runs {job.service.decode()} ({job}), {duration(self._config.watchdog)} beyond its limit"
            self._have_killed(late, text)
            self._kill_at.clear()

    def next_deadline(self) -> float | None:
        due = None if self.silent else self._silent_at
        for when in self._kill_at.values():
            due = when if due is None else min(due, when)
        return due

    def close(self) -> None:
        self._worker._loop.unwatch(self._descriptor)
        self._connection.close()

    # -- inside ----------------------------------------------------------------------------------------------

    def _take(self, message: ToParent) -> None:
        """Act on what the child says."""
        if isinstance(message, ChildBeat):
            self._post(self.number, memory=message.memory)
            return
        held = self.in_hand.get(message.number)
        if held is None:
            return
        if isinstance(message, JobFinal):
            del self.in_hand[message.number]
            self._kill_at.pop(message.number, None)
            recount = self.alone or self.leaving or self.silent
            self.alone = False
            self._worker.finished(held, message.body, recount=recount)
            self.end_if_done()
        elif isinstance(message, JobPart):
            held.channel.partial(held.job, message.body)
        elif isinstance(message, JobProgress):
            held.delivery.progress(message.said)

    def _hear(self, now: float) -> None:
        self._silent_at = now + (SILENT if self.in_hand else IDLE_SILENT)
        if self.silent:
            self.silent = False
            self._worker.count_places()

    def _cancel(self, number: int) -> None:
        """The reply to a request is no longer wanted: it was closed, or has exceeded its limit."""
        held = self.in_hand.get(number)
        if held is None:
            return
        if held.delivery.kills:
            self._have_killed([number], f"has {held.job.service.decode()} ({held.job}), which was closed with --kill")
            return
        self._send(CancelJob(number))
        if held.delivery.at_limit and held.job.service not in self._worker.only_cancelled:
            self._kill_at[number] = time.monotonic() + self._config.watchdog

    def _have_killed(self, numbers: Iterable[int], why: str) -> None:
        """Have the child killed because of these requests."""
        if self.to_blame is None:
            self._post(self.number, stuck=why)
        self.to_blame = {*(self.to_blame or ()), *numbers}

    def _send(self, message: ToChild) -> None:
        self._unsent += encode(message)
        self._worker._loop.touch(self)

    def _write(self) -> None:
        with suppress(BlockingIOError):
            try:
                del self._unsent[: self._connection.send(self._unsent)]
            except BrokenPipeError:
                self._unsent.clear()
        if bool(self._unsent) is not self._is_writing:
            self._is_writing = not self._is_writing
            events = EVENT_READ | EVENT_WRITE if self._is_writing else EVENT_READ
            self._worker._loop.watch(self._descriptor, self, {}, events)
        if self.leaving and not self._unsent:
            self.end_if_done()

    def _close_for_reading(self) -> None:
        """The child has closed its side: it is about to end."""
        self._worker._loop.unwatch(self._descriptor)
        self.leaving = True
        self._worker.count_places()
