"""A broker for taskiq: its messages are requests of one service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from broker import DEFAULT_ENDPOINT, Key
from titanic.aio import Client
from titanic.errors import CallerError
from titanic.protocol.submit_options import Span, SubmitOptions
from titanic.taskiq.listener import Held, Listener
from titanic.taskiq.result_backend import TitanicResultBackend
from titanic.taskiq.task_keys import options_of, sent_again, task_key

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
        self._listeners: list[Listener] = []

    @property
    def client(self) -> Client:
        """Its client, made when it is first asked for, until `shutdown`."""
        if self._client is None:
            self._client = Client(self._endpoint, timeout=self._timeout, key=self._key, server_key=self._server_key)
        return self._client

    async def kick(self, message: BrokerMessage) -> None:
        """Have a task executed; it is on disk when this returns. The same task id is executed once, but for what taskiq
        itself sends again."""
        key = task_key(self.service, message.task_id, sent_again(message.labels))
        options: SubmitOptions = {**self._options, **options_of(message.labels), "key": key}
        await self.client.submit(self.service, message.message, **options)

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """The tasks for this process. While one is in hand no other worker gets it."""
        listener = Listener(self.formatter.loads, self.find_task, asyncio.get_running_loop())
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
