"""The event loop on which the `async def` tasks of this process run, whichever thread has them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from broker import DELIVERY
from titanic.jobs.ending import Cancelled


class EventLoop:
    """One loop for all, so that they can share sessions and connections. It has a thread, from the first task on."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._nested: EventLoop | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine returns; this thread waits for it. It is cancelled when nobody wants its reply any more:
        raises Cancelled then."""
        if threading.get_ident() == self._thread:
            # In memory, a task that awaits another one executes it here: this loop stands still meanwhile.
            self._nested = self._nested or EventLoop()
            return self._nested.run(coroutine)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running())  # with this thread's context
        delivery = DELIVERY.get()
        if delivery is not None:
            delivery.on_cancel(partial(_cancel, future))
        try:
            return future.result()
        except CancelledError:
            raise Cancelled from None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._loop.run_forever, name="event loop", daemon=True)
                thread.start()
                self._thread = thread.ident or 0
            return self._loop


def _cancel(future: Future[Any]) -> None:
    future.cancel()


EVENT_LOOP = EventLoop()
