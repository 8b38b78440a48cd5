"""Titanic as broker and result backend for taskiq: its messages are requests of one service."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqMessage, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.serializers import JSONSerializer

from broker import DEFAULT_ENDPOINT, Key, Worker
from titanic.aio import Client
from titanic.client.request_queue import Found
from titanic.errors import CallerError, InvalidRequest, RequestFailed, UnknownRequest
from titanic.jobs.context import Failed, RequestContext, Retry, Unready, current
from titanic.protocol.messages import SUBMIT_KINDS
from titanic.protocol.submit_options import NEVER, Span, SubmitOptions
from titanic.protocol.tsp import MOST_PROGRESS
from titanic.util.text import quoted

RETRIES, REQUEUES = "_retries", "X-Taskiq-requeue"
"""Labels by which taskiq counts how often it has sent a task again, under the same task id."""

MOST_FOUND = 10_000
"""Task ids that a process remembers of tasks that were found, because they are unique."""


def task_key(service: str, task_id: str, again: int) -> str:
    """The idempotency key of a task that taskiq sends for the first time (`again` is 0), or once more."""
    return f"taskiq:{service}:{task_id}" + (f":{again}" if again else "")


def sent_again(labels: Mapping[str, Any]) -> int:
    """How often taskiq has sent a task again."""
    return sum(int(_number(labels, name, int)) for name in (RETRIES, REQUEUES) if name in labels)


def options_of(labels: Mapping[str, Any]) -> SubmitOptions:
    """Raises InvalidRequest for a label that is no number."""
    options: Any = {name: _number(labels, name, kind) for name, kind in SUBMIT_KINDS.items() if name in labels}
    typed: SubmitOptions = options
    return typed


def _number(labels: Mapping[str, Any], name: str, kind: type) -> Any:
    if name in ("keep", "keep_body") and labels[name] == NEVER:
        return NEVER
    try:
        return kind(labels[name])
    except (ValueError, TypeError):
        raise InvalidRequest(f"the label {name} is {quoted(labels[name])}; it must be a number") from None


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


class TaskListener:
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
        """Accept nothing more; what taskiq has not started goes to other workers."""
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
            raise Failed(f"this is not a taskiq message: {type(error).__name__}: {error}") from None
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


R = TypeVar("R")

KEYS = 16
"""Keys that are asked for at once: the first sending of a task, and so many times that taskiq sent it again."""


class Requests(Protocol):
    """What results want of a broker."""

    service: str

    @property
    def client(self) -> Client:
        """The client of this loop."""

    def held(self, task_id: str) -> Held | None:
        """What this process has in hand of a task."""

    @property
    def found(self) -> Mapping[str, str]:
        """The requests of tasks that this process sent in vain, because an earlier one was unique."""


class TitanicResultBackend(AsyncResultBackend[R]):
    """The results of one broker's tasks. `TitanicBroker` has one unless it is given another."""

    def __init__(
        self, broker: Requests, *, keep_results: bool = True, serializer: TaskiqSerializer | None = None
    ) -> None:
        """`keep_results`: False: the request is closed when its result has been read."""
        self._broker = broker
        self._keep = keep_results
        self._serializer = serializer or JSONSerializer()

    async def uuid(self, task_id: str) -> str:
        """The UUID of a task's request, for `titanic show` and the like; of the last one, if taskiq has sent it again.
        Raises UnknownRequest."""
        uuid, _ = (await self._requests(task_id))[0]
        return uuid

    async def set_result(self, task_id: str, result: TaskiqResult[R]) -> None:
        """In the worker: what the acknowledgement that follows replies. What cannot be sent becomes an error."""
        if self._broker.held(task_id) is None:
            what, fact = f"the result of task {task_id} cannot be set", "its request is not running here, or has ended"
            raise CallerError(what, fact, "leave ack_type at when_saved: the acknowledgement is the reply")
        try:
            RESULT.set((task_id, self._dump(result)))
        except Exception as error:
            said = InvalidRequest(f"the result cannot be sent: {type(error).__name__}: {error}")
            failed: TaskiqResult[Any] = TaskiqResult(
                is_err=True, return_value=None, execution_time=result.execution_time, error=said
            )
            RESULT.set((task_id, self._dump(failed)))
            raise

    async def is_result_ready(self, task_id: str) -> bool:
        """Whether there is a result, or never will be. Raises UnknownRequest when it was closed."""
        async for _ in self._replies(task_id):
            return True
        return False

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[R]:
        """The result; an error if the request has failed or expired. Raises UnknownRequest when there is none."""
        async for reply in self._replies(task_id):
            if not self._keep:
                await self._broker.client.close(*[uuid for uuid, _ in await self._requests(task_id)])
            if isinstance(reply, RequestFailed):
                return TaskiqResult[Any](is_err=True, return_value=None, execution_time=0, error=reply)
            return TaskiqResult[Any].model_validate(self._serializer.loadb(reply[0]))
        raise UnknownRequest(f"task {task_id} has no result", "", "call is_result_ready first")

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """In the worker: what `titanic show` has while the task runs, and what is kept with its result; 1 KB at
        most."""
        held = self._broker.held(task_id)
        if held is None:
            raise CallerError(f"task {task_id} has no progress", "its request is not running here, or has ended")
        said = json.dumps(progress.model_dump(mode="json"))
        if len(json.dumps(said)) > MOST_PROGRESS - 64:
            raise CallerError(f"the progress of task {task_id} has {len(said)} characters", "", "use at most 900")
        held.progress = said.encode()
        held.request.progress(0, text=said)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """What the task has said last; None: nothing."""
        if (held := self._broker.held(task_id)) is not None:
            return _progress(held.progress)
        for uuid, state in await self._requests(task_id):
            if state == "done":
                reply = await self._broker.client.reply(uuid) or []
                said: str | bytes = reply[1] if len(reply) > 1 else b""
            else:
                progress = (await self._broker.client.show(uuid)).get("progress")
                said = progress["text"] if progress else ""
            if said:
                return _progress(said)
        return None

    async def _replies(self, task_id: str) -> AsyncGenerator[list[bytes] | RequestFailed, None]:
        """Results, the last one first: a task that taskiq sends again may have set one before."""
        try:
            requests = await self._requests(task_id)
        except UnknownTask:  # it may come later, from a scheduler
            return
        for uuid, state in requests:
            if state not in ("done", "failed", "expired", "cancelled"):
                continue
            try:
                reply = await self._broker.client.reply(uuid)
            except RequestFailed as failed:
                yield failed
            else:
                if reply is not None and reply[0]:
                    yield reply

    async def _requests(self, task_id: str) -> list[tuple[str, str]]:
        """The requests of a task that are not closed, and their states; what taskiq has sent last comes first."""
        uuids: dict[str, str] = {}
        states: dict[str, str] = {}
        if (earlier := self._broker.found.get(task_id)) is not None:  # which taskiq may have sent again
            row = await self._broker.client.show(earlier)
            uuids[row["key"]], states[earlier] = earlier, row["state"]
            task_id = row["key"].removeprefix(task_key(self._broker.service, "", 0))
        again = 0
        while again == len(uuids) or again == 0:
            keys = [task_key(self._broker.service, task_id, number) for number in range(again, again + KEYS)]
            found, of_these = await self._broker.client.find(keys)
            uuids |= {key: found[key] for key in keys if key in found}
            states |= of_these
            again += KEYS
        if not uuids:
            raise UnknownTask(f"task {task_id} has no request", "it was never sent, or was sent too long ago")
        if not states:
            raise UnknownRequest(f"the request of task {task_id} was closed", "", "send the task again")
        return [(uuid, states[uuid]) for uuid in reversed([*uuids.values()]) if uuid in states]

    def _dump(self, result: TaskiqResult[Any]) -> bytes:
        return self._serializer.dumpb(result.model_dump(mode="json"))


class UnknownTask(UnknownRequest):
    """No request was submitted with this task id, as far as is remembered."""


def _progress(said: str | bytes) -> TaskProgress[Any] | None:
    return TaskProgress[Any].model_validate_json(said) if said else None


KEY_FOR = 7 * 86_400.0
"""Seconds that a task id is remembered: as long as a server keeps replies."""


class TitanicBroker(AsyncBroker):
    """A broker for an app of taskiq.

        broker = TitanicBroker("tcp://127.0.0.1:5555", service="shop")

        @broker.task
        async def resize(path: str, width: int) -> str: ...

    `taskiq worker MODULE:broker` executes the tasks. A task is acknowledged by its reply, which is its result.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        service: str = "taskiq",
        *,
        jobs: int = 10,
        options: SubmitOptions | None = None,
        keep_results: bool = True,
        timeout: Span = 15.0,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`endpoint`, `timeout`, `key` and `server_key` are those of `titanic.Client`. `jobs`: requests that a process
        of `taskiq worker` has at a time. `options`: those of `Client.submit`, for all tasks; labels of a task of the
        same names go before. `keep_results`: False: a request is closed when its result has been read."""
        super().__init__()
        if options is not None and "key" in options:
            raise CallerError("all tasks would have the same idempotency key", "", "the task's id is its key")
        self.service = service
        self.result_backend = TitanicResultBackend[Any](self, keep_results=keep_results)
        self._jobs = jobs
        self._options: SubmitOptions = {"key_for": KEY_FOR, **(options or {})}
        self._endpoint, self._timeout, self._key, self._server_key = endpoint, timeout, key, server_key
        self._client: Client | None = None
        self._listeners: list[TaskListener] = []
        self.found: dict[str, str] = {}
        """The UUIDs of earlier requests, by the ids of unique tasks that found them; the last ones."""

    @property
    def client(self) -> Client:
        """Its client, made when it is first asked for, until `shutdown`."""
        if self._client is None:
            self._client = Client(self._endpoint, timeout=self._timeout, key=self._key, server_key=self._server_key)
        return self._client

    async def kick(self, message: BrokerMessage) -> None:
        """Have a task executed; it is on disk when this returns. The same task id is executed once, but for what taskiq
        itself sends again. A unique task may be an earlier one, whose result this id then has in this process."""
        again = sent_again(message.labels)
        key = task_key(self.service, message.task_id, again)
        options: Any = {**self._options, **options_of(message.labels), "key": key}
        if again:  # the request that is still running would be found as the unique one
            options = {name: value for name, value in options.items() if not name.startswith("unique")}
        uuid = await self.client.submit(self.service, message.message, **options)
        if isinstance(uuid, Found):
            self.found[message.task_id] = uuid
            while len(self.found) > MOST_FOUND:
                del self.found[next(iter(self.found))]

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """The tasks for this process. While one is in hand no other worker gets it."""
        listener = TaskListener(self.formatter.loads, self.find_task, asyncio.get_running_loop())
        listener.start(self.service, self._endpoint, self._jobs, self._key, self._server_key)
        self._listeners.append(listener)
        try:
            while True:
                yield await listener.next()
        finally:
            listener.leave()

    async def shutdown(self) -> None:
        """Finish: what is not acknowledged goes to other workers."""
        await super().shutdown()
        for listener in self._listeners:
            await listener.end()
        self._listeners.clear()
        if self._client is not None:
            self._client.disconnect()
            self._client = None

    def held(self, task_id: str) -> Held | None:
        """What this process has in hand of a task; None: nothing."""
        found = (listener.held(task_id) for listener in self._listeners)
        return next((held for held in found if held is not None), None)
