"""taskiq's results: the result of a task is the reply of its request.

A reply has a frame with the result, as JSON, empty if the task has set none, and, if the task has said any, a second
one with its last progress.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, Protocol, TypeVar

from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.serializers import JSONSerializer

from titanic.aio import Client
from titanic.errors import CallerError, InvalidRequest, RequestFailed, UnknownRequest
from titanic.protocol.progress import MOST_PROGRESS
from titanic.taskiq.listener import RESULT, Held
from titanic.taskiq.task_keys import task_key

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
        """In the worker: what the acknowledgement that follows replies. What cannot travel becomes an error."""
        if self._broker.held(task_id) is None:
            what, fact = f"the result of task {task_id} cannot be set", "its request is not in hand here, or has ended"
            raise CallerError(what, fact, "leave ack_type at when_saved: the acknowledgement is the reply")
        try:
            RESULT.set((task_id, self._dump(result)))
        except Exception as error:
            said = InvalidRequest(f"the result cannot travel: {type(error).__name__}: {error}")
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
        raise UnknownRequest(f"task {task_id} has no result", "", "ask is_result_ready before")

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """In the worker: what `titanic show` has while the task runs, and what is kept with its result; 1 KB at
        most."""
        held = self._broker.held(task_id)
        if held is None:
            raise CallerError(f"task {task_id} has no progress", "its request is not in hand here, or has ended")
        said = json.dumps(progress.model_dump(mode="json"))
        if len(json.dumps(said)) > MOST_PROGRESS - 64:
            raise CallerError(f"the progress of task {task_id} has {len(said)} characters", "", "say less: 900 at most")
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
        again = 0
        while again == len(uuids) or again == 0:
            keys = [task_key(self._broker.service, task_id, number) for number in range(again, again + KEYS)]
            found, of_these = await self._broker.client.find(keys)
            uuids |= {key: found[key] for key in keys if key in found}
            states |= of_these
            again += KEYS
        if not uuids:
            raise UnknownTask(f"there is no request of task {task_id}", "it was not sent, or long ago")
        if not states:
            raise UnknownRequest(f"the request of task {task_id} was closed", "", "send the task again")
        return [(uuid, states[uuid]) for uuid in reversed([*uuids.values()]) if uuid in states]

    def _dump(self, result: TaskiqResult[Any]) -> bytes:
        return self._serializer.dumpb(result.model_dump(mode="json"))


class UnknownTask(UnknownRequest):
    """No request was submitted with this task id, as far as is remembered."""


def _progress(said: str | bytes) -> TaskProgress[Any] | None:
    return TaskProgress[Any].model_validate_json(said) if said else None
