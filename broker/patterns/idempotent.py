"""Idempotent services (Guide, chapter 4): a wrapper around any handler, and the stamps that its clients need."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Generator
from itertools import count
from typing import Any

from broker.client import Body, body_frames
from broker.core.mdp import Frames
from broker.errors import RemoteError
from broker.patterns.core.idempotent import Replies, Stamp, Store, open_stamp
from broker.replies import as_frames
from broker.worker import Handler, Reply


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


class Idempotent:
    """A handler that calls another one once for each stamp, for all of a worker's threads.

        Worker("pay", Idempotent(pay), endpoint, jobs=4)

    `handler` gets the body without the stamp, and may return or yield what handlers do. What it raises goes to the
    client, and is not kept. A request without a stamp is refused with the status 400.
    """

    def __init__(self, handler: Handler, store: Store | None = None) -> None:
        """`store`: where replies are kept; by default in memory, bounded."""
        self.duplicates = 0
        """Requests that were answered without being executed."""
        self._handler = handler
        self._store = store if store is not None else Replies()
        self._running: set[Stamp] = set()
        self._changed = threading.Condition()

    def __call__(self, frames: Frames) -> Generator[Reply, None, Reply]:
        """Execute a request, or give back what it was answered. A generator, as handlers may be."""
        opened = open_stamp(frames)
        if opened is None:
            raise RemoteError(400, "an idempotent service wants a client, a number and a body, in a frame each")
        stamp, body = opened
        parts = self._begin(stamp)
        if parts is None:
            parts = []
            try:
                yield from self._execute(stamp, body, parts)
            finally:
                self._end(stamp)
        else:
            yield from parts[:-1]
        return parts[-1]

    def _begin(self, stamp: Stamp) -> list[Frames] | None:
        with self._changed:
            while stamp in self._running:
                self._changed.wait()
            reply = self._store.get(stamp, time.monotonic())
            if reply is None:
                self._running.add(stamp)
            else:
                self.duplicates += 1
            return reply

    def _execute(self, stamp: Stamp, body: Frames, parts: list[Frames]) -> Generator[Reply, None, None]:
        result: Any = self._handler(body)
        while isinstance(result, Generator):
            try:
                part = as_frames(next(result))
            except StopIteration as end:
                result = end.value
            else:
                parts.append(part)
                yield part
        parts.append(as_frames(result))
        with self._changed:
            self._store.put(stamp, parts, time.monotonic())

    def _end(self, stamp: Stamp) -> None:
        with self._changed:
            self._running.discard(stamp)
            self._changed.notify_all()
