"""The worker's side: requests come to a worker of MDP, in its threads, and go to taskiq's loop; taskiq's
acknowledgement is the reply.

A request is in hand from its delivery to its acknowledgement. If the process is killed meanwhile, the broker gives it
to another worker.

The worker is not `broker.aio.Worker`: that would be silent while a task blocks taskiq's loop, so after ten seconds
another process would be given the task, and then the next one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from taskiq import AckableMessage, TaskiqMessage

from broker import Key, Worker
from titanic.jobs.context import RequestContext, current
from titanic.jobs.ending import Failed, Retry, Unready

RESULT: ContextVar[tuple[str, bytes] | None] = ContextVar("RESULT", default=None)
"""The task id and the result that was set last, until it is acknowledged: taskiq does both in the same asyncio task,
one for each message."""


class Held:
    """A request in hand."""

    def __init__(self, data: bytes, task_id: str, request: RequestContext) -> None:
        self.data = data
        self.task_id = task_id
        self.request = request
        self.progress = b""
        """What the task has said last, as it is kept."""
        self.reply: Future[list[bytes]] = Future()

    def release(self) -> None:
        """Let another worker have it."""
        if not self.reply.done():
            self.reply.set_exception(Retry("its worker stops", after=0, count=False))


class Listener:
    """What one `listen` has in hand. Its methods are called in the loop."""

    def __init__(
        self, read: Callable[[bytes], TaskiqMessage], knows: Callable[[str], object], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`read`: makes a message of what was sent; `knows`: is true for the name of a task that can be executed."""
        self._read = read
        self._knows = knows
        self._loop = loop
        self._held: list[Held] = []
        self._arrived: asyncio.Queue[Held] = asyncio.Queue()
        self._worker: Worker | None = None
        self._ending: threading.Thread | None = None

    def start(
        self, service: str, endpoint: str | Sequence[str], jobs: int, key: Key, server_key: str | Path | None
    ) -> None:
        """Be there for requests, for so many at a time."""
        self._worker = Worker(service, self._handle, endpoint, jobs=jobs, key=key, server_key=server_key).start()

    async def next(self) -> AckableMessage:
        """The next request."""
        held = await self._arrived.get()
        return AckableMessage(data=held.data, ack=partial(self._acknowledge, held))

    def held(self, task_id: str) -> Held | None:
        """What is in hand of a task; None: nothing. The last one that came, if there are several."""
        return next((held for held in reversed(self._held) if held.task_id == task_id), None)

    def leave(self) -> None:
        """Take nothing more; what taskiq has not begun goes to other workers."""
        if self._worker is None or self._ending is not None:
            return
        self._ending = threading.Thread(target=self._worker.stop, name="taskiq listener", daemon=True)
        self._ending.start()
        while not self._arrived.empty():
            self._drop(self._arrived.get_nowait())

    async def end(self) -> None:
        """Leave; what is not acknowledged goes to other workers."""
        self.leave()
        for held in [*self._held]:
            self._drop(held)
        if self._ending is not None:
            await asyncio.to_thread(self._ending.join)

    def _handle(self, frames: list[bytes]) -> list[bytes]:
        """Runs in a thread of the worker."""
        try:
            message = self._read(frames[0])
        except Exception as error:
            raise Failed(f"this is no message of taskiq: {type(error).__name__}: {error}") from None
        if not self._knows(message.task_name):
            raise Unready(f"this worker has no task {message.task_name!r}: does it import its module?")
        held = Held(frames[0], message.task_id, current())
        try:
            self._loop.call_soon_threadsafe(self._arrive, held)
        except RuntimeError:  # the loop is closed
            held.release()
        return held.reply.result()

    def _arrive(self, held: Held) -> None:
        if self._ending is not None:
            held.release()
            return
        self._held.append(held)
        self._arrived.put_nowait(held)

    def _drop(self, held: Held) -> None:
        self._held.remove(held)
        held.release()

    def _acknowledge(self, held: Held) -> None:
        result, task_id = b"", held.task_id
        if (said := RESULT.get()) is not None and said[0] == task_id:
            result = said[1]
        RESULT.set(None)
        if held in self._held:  # else it was given away
            self._held.remove(held)
            held.reply.set_result([result, held.progress] if held.progress else [result])
