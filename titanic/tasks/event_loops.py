"""asyncio for an app's tasks: the event loop that runs `async def` tasks, and one client for each loop that submits."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, cast

from broker import DELIVERY, finish
from titanic.aio import Client
from titanic.jobs.context import Cancelled
from titanic.tasks.ticket import Reach


class EventLoop:
    """One loop for all, so that they can share sessions and connections. It has a thread, from the first task on."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._nested: EventLoop | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine returns; this thread waits for its end. It is cancelled when its reply is no longer
        wanted: raises Cancelled then."""
        if threading.get_ident() == self._thread:
            # In memory, a task that awaits another one executes it here: this loop stands still meanwhile.
            self._nested = self._nested or EventLoop()
            return self._nested.run(coroutine)
        delivery, loop = DELIVERY.get(), self._running()
        ended: Future[Any] = Future()  # one of asyncio ends as soon as it is cancelled, before its coroutine does

        async def execute() -> None:
            task = cast("asyncio.Task[None]", asyncio.current_task())
            if delivery is not None:
                delivery.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))
            try:
                ended.set_result(await coroutine)
            except BaseException as error:
                ended.set_exception(error)

        asyncio.run_coroutine_threadsafe(execute(), loop)  # with this thread's context
        try:
            return ended.result()
        except asyncio.CancelledError as error:
            if delivery is not None and delivery.is_cancelled:
                raise Cancelled from None
            raise CancelledError("what it awaited was cancelled").with_traceback(error.__traceback__) from None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(self._loop,), name="event loop", daemon=True)
                thread.start()
                self._thread = thread.ident or 0
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while not loop.is_closed():
        with suppress(BaseException):  # SystemExit in a task comes out here, too: it must not end the others
            loop.run_forever()


EVENT_LOOP = EventLoop()


class LoopClients:
    """Makes a client when a loop has none yet."""

    def __init__(self, reach: Callable[[], Reach]) -> None:
        self._reach = reach
        self._clients: dict[asyncio.AbstractEventLoop, Client] = {}
        self._ends: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}
        self._process = os.getpid()
        self._guard = threading.Lock()

    @property
    def client(self) -> Client:
        """That of the loop that runs here."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        return client if client is not None and self._process == os.getpid() else self._new(loop)

    def _new(self, loop: asyncio.AbstractEventLoop) -> Client:
        with self._guard:
            if self._process != os.getpid():  # what a fork has inherited is its parent's
                self._process, self._clients, self._ends = os.getpid(), {}, {}
            for other in [other for other in self._clients if other.is_closed()]:
                self._drop(other)
            endpoint, timeout, curve = self._reach()
            client = self._clients[loop] = Client(endpoint, timeout=timeout, key=curve)
            end = self._ends[loop] = self._end(loop)
        finish(anext(end))
        return client

    async def _end(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """A loop that ends, as with `asyncio.run`, closes generators that have started: this one notices that."""
        try:
            yield
        finally:
            self._drop(loop)

    def _drop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ends.pop(loop, None)
        if (client := self._clients.pop(loop, None)) is not None:
            client.disconnect()
