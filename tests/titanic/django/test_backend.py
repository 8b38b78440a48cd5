"""The backend for Django's tasks framework, with a server and a worker: what each feature flag promises."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone
from support import django_shop as shop
from support.waiting import until

from titanic import Client, Server
from titanic.django.backend import _APPS, TaskResultDoesNotExist, TitanicBackend, app_of, priority_of, task_backends
from titanic.errors import CallerError

pytestmark = pytest.mark.settings(max_attempts=3)


def tasks_of(server: Server, **options: Any) -> dict[str, Any]:
    reach = {"endpoint": server.endpoints[0], "name": "shop", "timeout": 30}
    return {"default": {"BACKEND": shop.BACKEND, "QUEUES": ["default", "slow"], "OPTIONS": reach | options}}


@pytest.fixture
def backend(request: pytest.FixtureRequest, server: Server) -> Iterator[TitanicBackend]:
    """A backend without workers."""
    shop.CALLS.clear()
    shop.CONTINUE.clear()
    with override_settings(TASKS=tasks_of(server, **getattr(request, "param", {}))):
        yield task_backends["default"]
        task_backends["default"].app.client.disconnect()
        _APPS.clear()  # the next server may have the same port


@pytest.fixture
def working(backend: TitanicBackend) -> Iterator[TitanicBackend]:
    with backend.app.worker(jobs=2):
        yield backend
        shop.CONTINUE.set()


def ended(result: Any) -> Any:
    """A result when its task has ended."""

    def finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    until(finished)
    return result


def test_a_task_and_its_result(working: TitanicBackend, client: Client) -> None:
    result = shop.add.enqueue(1, b=3)
    assert (result.status, result.is_finished, result.errors, result.attempts) == ("READY", False, [], 0)
    assert (result.task, result.args, result.kwargs, result.backend) == (shop.add, [1], {"b": 3}, "default")
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    ended(result)
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 4, 1)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert datetime.now(UTC) - result.enqueued_at < timedelta(minutes=5)
    assert client.show(result.id)["service"] == "shop.default"
    # from another thread or process
    found = shop.add.get_result(result.id)
    assert (found.task, found.return_value, found.args, found.kwargs) == (shop.add, 4, [1], {"b": 3})


def test_coroutines(working: TitanicBackend) -> None:
    async def enqueue() -> Any:
        result = await shop.add_async.aenqueue(5)
        await asyncio.to_thread(ended, result)
        await result.arefresh()
        assert result.is_finished
        return await shop.add_async.aget_result(result.id)

    result = asyncio.run(enqueue())
    assert (result.return_value, result.task.queue_name, result.task.priority) == (6, "slow", 50)


def test_the_context(working: TitanicBackend) -> None:
    assert ended(shop.context.enqueue("a")).return_value == [True, 1, "a", "context"]


@pytest.mark.parametrize(
    ("kind", "path", "text"),
    [
        ("value", "builtins.ValueError", "ValueError: no value\n"),
        ("import", "builtins.ImportError", "ImportError: no import\n"),
        ("exit", "builtins.SystemExit", "SystemExit: this task exits\n"),
        ("failed", "titanic.errors.RequestFailed", "for good"),
    ],
)
def test_a_task_that_raises_has_failed(
    working: TitanicBackend, caplog: pytest.LogCaptureFixture, kind: str, path: str, text: str
) -> None:
    result = ended(shop.fails.enqueue(kind))
    assert (result.status, shop.CALLS, result.attempts) == ("FAILED", [kind], 1)
    (error,) = result.errors
    assert error.exception_class_path == path
    assert issubclass(error.exception_class, BaseException)
    assert error.traceback.endswith(text)
    assert kind == "failed" or "in fails" in error.traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    logged = [one for one in caplog.records if one.name in ("django.tasks", "django_tasks") and "FAILED" in one.message]
    assert [one.levelno for one in logged] == [logging.ERROR]


def test_a_value_that_is_no_json(working: TitanicBackend) -> None:
    result = ended(shop.returns_what_cannot_be_sent.enqueue())
    assert (result.status, result.errors[0].exception_class) == ("FAILED", TypeError)
    with pytest.raises(TypeError, match="Unsupported type"):
        shop.add.enqueue(object())


@pytest.mark.parametrize("backend", [{"max_attempts": 2, "retry_first": 0.01}], indirect=True)
def test_attempts(working: TitanicBackend) -> None:
    result = ended(shop.fails.enqueue("value"))
    assert (result.status, shop.CALLS, result.attempts, len(result.errors)) == ("FAILED", ["value"] * 2, 2, 1)
    result = ended(shop.fails.enqueue("exit"))
    assert (result.status, result.attempts) == ("FAILED", 1)


def test_a_task_may_ask_to_be_tried_again(working: TitanicBackend) -> None:
    result = ended(shop.fails.enqueue("retry"))
    assert (result.status, result.attempts, result.return_value) == ("SUCCESSFUL", 2, None)


def test_states(working: TitanicBackend) -> None:
    result = shop.waits.enqueue("a")
    until(lambda: shop.CALLS)
    result.refresh()
    assert (result.status, result.attempts, result.finished_at) == ("RUNNING", 1, None)
    assert result.started_at is not None
    shop.CONTINUE.set()
    assert ended(result).return_value == "a"


def test_a_time_to_start_at(backend: TitanicBackend, client: Client) -> None:
    after = timezone.now() + timedelta(hours=1)
    result = shop.add.using(run_after=after).enqueue(1)
    row = client.show(result.id)
    assert (row["state"], row["not_before"]) == ("delayed", pytest.approx(after.timestamp() * 1e6, abs=1))
    assert shop.add.get_result(result.id).status == "READY"
    assert shop.add.get_result(result.id).task == shop.add.using(run_after=after)
    assert client.show(shop.add.using(run_after=after - timedelta(days=1)).enqueue(1).id)["state"] == "waiting"


def test_without_time_zones(server: Server, client: Client) -> None:
    with override_settings(TASKS=tasks_of(server), USE_TZ=False):
        at = datetime.now(UTC) + timedelta(hours=1)
        after = timezone.make_naive(at)  # in TIME_ZONE
        result = shop.add.using(run_after=after).enqueue(1)
        assert client.show(result.id)["not_before"] == pytest.approx(at.timestamp() * 1e6, abs=1)
        found = shop.add.get_result(result.id)
        assert found.task.run_after == after
        assert timezone.is_naive(found.enqueued_at)


def test_priorities(backend: TitanicBackend, client: Client) -> None:
    assert [priority_of(one) for one in (-100, -99, 0, 1, 50, 99, 100)] == [0, 0, 4, 4, 6, 8, 9]
    low, high = (shop.waits.using(priority=one).enqueue(str(one)) for one in (-100, 100))
    assert [client.show(one.id)["priority"] for one in (low, high)] == [0, 9]
    shop.CONTINUE.set()
    with backend.app.worker(jobs=1):
        assert [ended(one).return_value for one in (low, high)] == ["-100", "100"]
    assert shop.CALLS == ["100", "-100"]
    assert shop.waits.get_result(high.id).task.priority == 100


@pytest.mark.parametrize("uuid", ["123", "0" * 32, "", "ü" * 32])
def test_a_result_that_there_is_not(backend: TitanicBackend, uuid: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        shop.add.get_result(uuid)


@pytest.mark.parametrize("backend", [{"keep_body": "never"}], indirect=True)
def test_a_result_whose_arguments_are_not_kept(working: TitanicBackend, client: Client) -> None:
    result = shop.add.enqueue(1, b=3)
    assert client.wait(result.id, timeout=60) == [b"4"]
    with pytest.raises(TaskResultDoesNotExist, match="its body was deleted because of keep_body"):
        shop.add.get_result(result.id)


def test_what_is_not_a_task_of_the_backend(working: TitanicBackend, client: Client) -> None:
    for uuid in (client.submit("other", "x"), client.submit("shop.default", "x")):
        with pytest.raises(TaskResultDoesNotExist):
            shop.add.get_result(uuid)
    result = ended(shop.add.enqueue(1))
    client.close(result.id)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_worker_without_the_task_returns_it(working: TitanicBackend, client: Client) -> None:
    for path in ("support.django_shop.no_task", "support.django_shop.gone", "os.system"):
        body = f'{{"args": ["{path}", [], {{}}, {{"priority": 0, "queue_name": "default", "run_after": null}}]}}'
        uuid = client.submit("shop.default", body)
        row = until(lambda uuid=uuid: (row := client.show(uuid))["reason"] and row)  # type: ignore[misc]
        assert re.search("ImportError: .*(not a task here|gone)", row["reason"])
        assert row["attempts"] == 0
        client.close(uuid)


def test_any_queue(server: Server) -> None:
    tasks = tasks_of(server)
    tasks["default"]["QUEUES"] = []
    with override_settings(TASKS=tasks), task_backends["default"].app.worker():
        result = ended(shop.add.using(queue_name="whichever").enqueue(2))
        assert (result.return_value, result.task.queue_name) == (3, "whichever")


def test_connections_are_closed(working: TitanicBackend) -> None:
    assert [ended(shop.asks_the_database.enqueue()).return_value for _ in range(4)] == [False] * 4


def test_threads_share_a_client(backend: TitanicBackend) -> None:
    async def in_coroutine() -> Any:
        return task_backends["default"].app

    assert asyncio.run(in_coroutine()) is task_backends["default"].app


def test_settings_that_cannot_be(server: Server) -> None:
    with (
        override_settings(TASKS=tasks_of(server, retries=3)),
        pytest.raises(CallerError, match=r"TASKS\['default'\] cannot be used; OPTIONS has retries; known: endpoint, "),
    ):
        shop.add.enqueue(1)
    dummy = f"{type(task_backends['default']).__mro__[1].__module__.rpartition('.')[0]}.dummy.DummyBackend"
    with override_settings(TASKS={"default": {"BACKEND": dummy}}):
        with pytest.raises(CallerError, match=r"TASKS\['default'\] has no worker; its BACKEND is .*DummyBackend; set "):
            app_of("default")
        with pytest.raises(AttributeError, match="TASKS has no 'other'; it has default"):
            app_of("other")
