"""A worker for asyncio: its handlers are coroutines, and so are all others in the loop that it shares with them.

The worker's own loop (`broker.io.loop`) has its turns in the asyncio loop, so what speaks to the broker is the same as
in `broker.Worker`. Whatever keeps the asyncio loop from running for longer than the heartbeats last also keeps the
worker silent: the broker gives its requests to others. What computes or blocks belongs into `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from inspect import isasyncgenfunction, iscoroutinefunction
from pathlib import Path
from typing import Any, Self

from broker.config import DEFAULT_ENDPOINT, WorkerConfig
from broker.core.mdp import Callback, Frames, error_body, service_fault
from broker.core.worker import Job
from broker.errors import UsageError
from broker.handlers import DELIVERY, Delivery, Reply, SendPart, as_frames, error_reply
from broker.io.curve import Key, credentials
from broker.io.loop import Loop
from broker.worker_base import WorkerBase, WorkerRegistration

AsyncHandler = Callable[[Frames], Coroutine[Any, Any, Reply] | AsyncGenerator[Reply, None]]
"""An `async def` that gets a request's frames and returns the reply, or yields its parts."""


class Worker(WorkerBase):
    """Serves one service with coroutines, `jobs` of them at a time.

        async def shout(frames: list[bytes]) -> list[bytes]: ...

        async with Worker("shout", shout, jobs=100):
            ...

    or `await Worker("shout", shout).run()`, which ends when something in the loop calls `stop`, a signal handler for
    example: `asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)`.
    """

    def __init__(
        self,
        service: str | bytes,
        handler: AsyncHandler,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        jobs: int = 1,
        everywhere: bool = False,
        config: WorkerConfig | None = None,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """As `broker.Worker`. It may be made outside a loop, and runs in one, once."""
        name = service.encode() if isinstance(service, str) else service
        if fault := service_fault(name):
            raise UsageError(fault)
        if not _is_async(handler):
            what = f"the handler of {name.decode()} is a plain function, which would block the event loop"
            raise UsageError(f"{what}; make it `async def`, or use broker.Worker, which runs it in threads")
        self.service = name
        self._handlers: HandlerTasks = HandlerTasks()
        self._running: asyncio.Task[None] | None = None
        self._begin({name: handler}, endpoint, jobs, everywhere, config, credentials(key, server_key))

    async def run(self) -> None:
        """Serve until `stop`.

        A coroutine that is cancelled here takes its handlers along: they get CancelledError, and the broker gives their
        requests to other workers.
        """
        try:
            await run_loop(self._loop, self.abandon)
        finally:
            self._ended = True
            await self._handlers.end()
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """Take no more requests, let those in hand finish, say good-bye, end `run`; this does not wait for that."""
        self._leave()

    async def __aenter__(self) -> Self:
        self._open()
        self._running = asyncio.create_task(self._run_and_log())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        assert self._running is not None
        try:
            await self._running
        finally:
            self._running = None

    async def _run_and_log(self) -> None:
        try:
            await self.run()
        except Exception:
            self._log_fault()
            raise

    async def _handle(self, channel: WorkerRegistration, job: Job, delivery: Delivery) -> None:
        """Execute a request in a task of its own."""
        task = asyncio.current_task()
        assert task is not None
        DELIVERY.set(delivery)
        measure = self._measure(channel)

        def send(part: Frames) -> None:
            self._loop.call(channel.partial, job, measure.part(part))

        delivery.on_cancel(task.cancel)
        try:
            with delivery.observed():
                body = measure.last(await execute(self._services[job.service], job.body, send))
        except KeyboardInterrupt:  # this program ends
            raise
        except BaseException as error:
            cancelled = (delivery.is_cancelled or self._ended) and isinstance(error, asyncio.CancelledError)
            body = _CANCELLED if cancelled else error_reply(error, job, self._config.max_reply)
        self._loop.call(channel.final, job, body)


_CANCELLED = error_body(500, "cancelled")
"""The reply to a cancelled request, which is not read."""


class HandlerTasks:
    """Runs handlers as `broker.handlers.HandlerThreads` does, in a loop: a task for each call."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> bool:
        """Run a coroutine, from the loop's next round on."""
        task = asyncio.get_running_loop().create_task(function(*args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def done(self) -> None:
        """Note that a call is done: nothing to do here."""

    async def end(self) -> None:
        """Cancel what still runs, and wait for its end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def execute(handler: AsyncHandler, body: Frames, part: SendPart) -> Frames:
    """Await a handler. `part` gets each part of the reply that it yields; return the last one, or the whole."""
    result = handler(body)
    if not isinstance(result, AsyncGenerator):
        return as_frames(await result)
    async with aclosing(result) as parts:
        async for value in parts:
            part(as_frames(value))
    return as_frames(None)


async def run_loop(loop: Loop, abandon: Callback) -> None:
    """Run a loop within the asyncio loop until it is stopped; `abandon` stops it when this is cancelled."""
    if loop.begin():
        rounds = _Rounds(loop)
        try:
            await rounds.over
        except asyncio.CancelledError:
            abandon()
            loop.turn()
            raise
        finally:
            rounds.end()


class _Rounds:
    """The turns of a loop in the asyncio loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._outer = asyncio.get_running_loop()
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = 0.0  # uvloop does not say it of an alarm that is due at once
        self.over: asyncio.Future[None] = self._outer.create_future()
        self._outer.add_reader(loop.descriptor, self._turn)
        self._set_alarm(0.0)

    def end(self) -> None:
        """Close the loop."""
        self._outer.remove_reader(self._loop.descriptor)
        if self._alarm is not None:
            self._alarm.cancel()
        self._loop.close()

    def _turn(self) -> None:
        if self.over.done():
            return
        try:
            wait = self._loop.turn()
        except Exception as fault:
            self.over.set_exception(fault)
            return
        if self._loop.stopping:
            self.over.set_result(None)
        elif wait is not None:
            self._set_alarm(wait)

    def _set_alarm(self, wait: float) -> None:
        """Schedule a turn, then or earlier."""
        when = self._outer.time() + wait
        if self._alarm is not None:
            if self._alarm_at <= when:
                return
            self._alarm.cancel()
        self._alarm_at = when
        self._alarm = self._outer.call_at(when, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._turn()


def _is_async(handler: Any) -> bool:
    """Return whether a handler is an `async def`, or an object that is called as one."""
    return any(iscoroutinefunction(one) or isasyncgenfunction(one) for one in (handler, handler.__call__))
