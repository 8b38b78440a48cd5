"""taskiq's own tests, with Titanic in the place of its broker in memory. They come with its source distribution:

    pip download --no-deps --no-binary taskiq taskiq==0.13.0 && tar xzf taskiq-0.13.0.tar.gz && cd taskiq-0.13.0
    PYTHONPATH=…/titanic/tests:…/titanic pytest -p support.taskiq_suite \
        tests/brokers tests/depends tests/receiver tests/middlewares/test_task_retry.py tests/test_requeue.py \
        tests/test_retry_task.py

A plugin of pytest: all that goes through a broker goes through a server and a worker, which run in the test's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
import taskiq
from support.serving import serving
from taskiq import BrokerMessage
from taskiq.brokers import inmemory_broker
from taskiq.events import TaskiqEvents
from taskiq.receiver import Receiver
from taskiq.utils import maybe_awaitable

from titanic import Server
from titanic.taskiq import TitanicBroker

IN_MEMORY = {
    "test_cannot_listen": "it can",
    "test_inmemory_broker_raises_unknown_task_error": "a sender need not have a task that workers have",
    "test_inline_awaits": "await_inplace",
    "test_wait_all": "wait_all",
    "test_wait_result_error": "takes a result out of a dict of the backend",
    "test_wait_result_no_result": "takes a result out of a dict of the backend",
    "test_progress_tracker_validation_error[state0-1]": "its exception cannot be made anew from JSON",
    "test_per_task_exc_types_matching[SmartRetryMiddleware]": "wants the retry at once, in spite of its delay of 5 s",
    "test_per_task_exc_types_override_global[SmartRetryMiddleware]": "the same",
    "test_retry_of_custom_exc_types_of_smart_middleware": "the same",
}
"""Tests of what only a broker in memory can do, or leaves out."""

RUNNING: list[Server] = []
MADE: list[ServedBroker] = []


class ServedBroker(TitanicBroker):
    """As taskiq's broker in memory: client and worker in one. It begins to listen with the first message."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(RUNNING[0].endpoints[0], f"tests.{len(MADE)}")
        MADE.append(self)
        settings = {"max_async_tasks": 30} | {
            {"cast_types": "validate_params"}.get(name, name): value
            for name, value in settings.items()
            if name in ("max_async_tasks", "propagate_exceptions", "cast_types")
        }
        self.receiver = Receiver(
            self, executor=ThreadPoolExecutor(4), run_startup=False, wait_tasks_timeout=1, **settings
        )
        self._running_tasks: set[object] = set()
        self._finish = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def kick(self, message: BrokerMessage) -> None:
        assert not self._finish.is_set(), "nothing is sent after the end"
        if self._listening is None:
            self._listening = asyncio.create_task(self.receiver.listen(self._finish))
        await super().kick(message)

    async def startup(self) -> None:
        for event in (TaskiqEvents.CLIENT_STARTUP, TaskiqEvents.WORKER_STARTUP):
            for handler in self.event_handlers[event]:
                await maybe_awaitable(handler(self.state))
        for middleware in self.middlewares:
            await maybe_awaitable(middleware.startup())

    async def shutdown(self) -> None:
        self._finish.set()
        if self._listening is not None:
            with suppress(asyncio.CancelledError):
                await self._listening
        self.is_worker_process = True
        await super().shutdown()
        for handler in self.event_handlers[TaskiqEvents.CLIENT_SHUTDOWN]:
            await maybe_awaitable(handler(self.state))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if item.name not in IN_MEMORY]
    for item in items:
        if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
            item.obj = then_shut_down(item.obj)


def then_shut_down(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test after which the brokers that it made are shut down. A fixture cannot do that: anyio executes a test in the
    context in which the first async fixture was set up, so the test would not see the context variables that its own
    fixtures set."""

    @wraps(test)
    async def both(*args: Any, **kwargs: Any) -> None:
        before = len(MADE)
        try:
            await test(*args, **kwargs)
        finally:
            for broker in MADE[before:]:
                await broker.shutdown()

    return both


@pytest.fixture(scope="session", autouse=True)
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with serving(Path(tmp_path_factory.mktemp("served"))) as server:
        RUNNING.append(server)
        yield


taskiq.InMemoryBroker = inmemory_broker.InMemoryBroker = ServedBroker  # type: ignore[misc, assignment]
