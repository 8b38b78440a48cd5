"""Idempotent services (Guide, chapter 4): a wrapper around any handler, and the stamps that its clients need."""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count

from broker.client import Body, body_frames
from broker.core.mdp import Frames
from broker.errors import RemoteError
from broker.handlers import Handler, HandlerThreads, Reply, execute
from broker.patterns.idempotent.core import Replies, ReplyStore, Stamp, Superseded, open_stamp

PATIENCE = 1.0
"""Seconds for which a request still waits after the same one was asked again."""

MOST_THREADS = 10_000


class Stamps:
    """Puts a client's name and the request's number in front of a body. Threads may share it.

        stamps = Stamps()
        client.call("pay", *stamps("account 7", "100"))

    What a client sends again by itself keeps its stamp.
    """

    def __init__(self, client: Body | None = None, first: int = 1) -> None:
        """`client`: the same for all lives of a program that continues its numbers with `first`; else a random one."""
        self.client = (client.encode() if isinstance(client, str) else client) or secrets.token_hex(16).encode()
        self._numbers = count(first)

    def __call__(self, *body: Body) -> Frames:
        """The frames of a new request."""
        return [self.client, b"%d" % next(self._numbers), *body_frames(body)]


@dataclass(slots=True, eq=False)
class _Execution:
    """A request that is being executed, and what has come of it."""

    changed: threading.Condition
    parts: list[Frames] = field(default_factory=list)
    """Of the reply; the last one is its end when it has `ended` without an `error`."""
    ended: bool = False
    error: BaseException | None = None
    asked: int = 0
    """How often it was asked for again."""

    def add(self, part: Frames) -> None:
        """A part of the reply has come."""
        with self.changed:
            self.parts.append(part)
            self.changed.notify_all()


class Idempotent:
    """A handler that calls another one once for each stamp, for all of a worker's threads.

        Worker("pay", Idempotent(pay), endpoint, jobs=4)

    `handler` gets the body without the stamp, and may return or yield what handlers do. What it raises goes to the
    client, and is not kept. A request without a stamp is refused with the status 400.

    `handler` runs in a thread of its own. While it runs, the last of the requests that ask for the same waits, and the
    earlier ones end: otherwise they would take all jobs of a worker when its handler hangs.
    """

    def __init__(self, handler: Handler, store: ReplyStore | None = None, *, patience: float = PATIENCE) -> None:
        """`store`: where replies are kept; by default in memory, bounded. `patience`: seconds for which a
        request still waits after the same one was asked again; then it gets the status 409 (from a Server: unless its
        own client may be the one that asked again)."""
        self.duplicates = 0
        """Requests that were not executed, because one like them was."""
        self._handler = handler
        self._store = store if store is not None else Replies()
        self._patience = patience
        self._running: dict[Stamp, _Execution] = {}
        self._lock = threading.Lock()
        self._threads = HandlerThreads(MOST_THREADS)
        weakref.finalize(self, self._threads.end)

    def __call__(self, frames: Frames) -> Generator[Reply, None, Reply]:
        """Execute a request, or give back what it was answered. A generator, as handlers may be."""
        opened = open_stamp(frames)
        if opened is None:
            raise RemoteError(400, "an idempotent service needs a client, a number and a body, one frame each")
        stamp, body = opened
        with self._lock:
            execution = self._running.get(stamp)
            parts = None if execution else self._store.get(stamp, time.monotonic())
            if execution is not None or parts is not None:
                self.duplicates += 1
            if execution is not None:
                execution.asked += 1
                execution.changed.notify_all()
            elif parts is None:
                execution = self._begin(stamp, body)
            turn = execution.asked if execution is not None else 0
        if parts is None:
            assert execution is not None
            parts = yield from self._follow(execution, turn)
        else:
            yield from parts[:-1]
        return parts[-1]

    def _follow(self, execution: _Execution, turn: int) -> Generator[Reply, None, list[Frames]]:
        """Pass on the parts as they come, as long as no duplicate has waited for them too long."""
        passed, ended = 0, False
        leave_at: float | None = None
        while not ended:
            with self._lock:
                while not execution.ended and len(execution.parts) == passed:
                    if leave_at is None and execution.asked != turn:
                        leave_at = time.monotonic() + self._patience
                    left = None if leave_at is None else leave_at - time.monotonic()
                    if left is not None and left <= 0:
                        raise Superseded
                    execution.changed.wait(left)
                ended = execution.ended
                parts = execution.parts[passed : -1 if ended and execution.error is None else None]
            yield from parts
            passed += len(parts)
        if execution.error is not None:
            raise execution.error
        return execution.parts

    def _begin(self, stamp: Stamp, body: Frames) -> _Execution:
        execution = _Execution(threading.Condition(self._lock))
        if not self._threads.call(self._execute, stamp, body, execution):
            raise RemoteError(500, "the worker cannot start a thread; try again later")
        self._running[stamp] = execution
        return execution

    def _execute(self, stamp: Stamp, body: Frames, execution: _Execution) -> None:
        """Runs in a thread of its own."""
        last: list[Frames] = []
        error: BaseException | None = None
        try:
            last = [execute(self._handler, body, execution.add)]
        except BaseException as raised:  # SystemExit too: the waiting request raises it
            error = raised
        with self._lock:
            self._threads.done()
            execution.parts += last
            if error is None:
                try:
                    self._store.put(stamp, execution.parts, time.monotonic())
                except BaseException as raised:  # from the user's own store
                    error = raised
            execution.error, execution.ended = error, True
            del self._running[stamp]
            execution.changed.notify_all()
