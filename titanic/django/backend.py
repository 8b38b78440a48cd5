"""A backend for Django's tasks framework: `django.tasks` of Django 6, or the package django-tasks for Django 5.

A task is a request for the service NAME.QUEUE, and its result is that request:

    arguments   path of the task, args, kwargs, and `Using`
    reply       the value that it returns
    priority    -100 to 100 become 0 to 9; 0 becomes 4, the default
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import django
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from titanic.django.project import DjangoTasks, setup
from titanic.errors import CallerError, InvalidRequest, RequestFailed, UnknownRequest
from titanic.jobs.context import Cancelled, Failed, Retry, current
from titanic.protocol.answers import BODY_GONE
from titanic.protocol.documents import RequestInfo
from titanic.protocol.submit_options import SharedOptions, SubmitOptions
from titanic.tasks import InvalidArguments, Submission, TaskFailed
from titanic.tasks.task_errors import describe

if django.VERSION >= (6, 0):
    from django.tasks import DEFAULT_TASK_QUEUE_NAME, TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    from django_tasks import DEFAULT_TASK_QUEUE_NAME, TaskContext, TaskResult, TaskResultStatus, task_backends  # type: ignore[no-redef]
    from django_tasks.backends.base import BaseTaskBackend  # type: ignore[no-redef]
    from django_tasks.base import Task, TaskError  # type: ignore[no-redef]
    from django_tasks.exceptions import TaskResultDoesNotExist  # type: ignore[no-redef]
    from django_tasks.signals import task_enqueued, task_finished, task_started  # type: ignore[no-redef]
    from django_tasks.utils import normalize_json  # type: ignore[no-redef]

OF_THE_APP = ("endpoint", "name", "timeout", "key", "server_key")
"""OPTIONS of a backend that are arguments of `Tasks`."""

OF_REQUESTS = tuple(sorted(SharedOptions.__annotations__.keys() - {"delay", "priority", "key_for"}))
"""OPTIONS of a backend that are those of `Client.submit`."""

_APPS: dict[str, DjangoTasks] = {}
"""By their settings. Django makes a backend for each thread, or each request to an ASGI server; they share one app, and
with it the connection."""

_LOCK = threading.Lock()

STATUSES: Mapping[str, TaskResultStatus] = {
    "running": TaskResultStatus.RUNNING,
    "done": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "expired": TaskResultStatus.FAILED,
}
"""By the states of requests; READY for others."""


@dataclass
class Using:
    """How a task was enqueued."""

    priority: int
    queue_name: str
    run_after: datetime | None


def priority_of(priority: int) -> int:
    """The priority of a request for a task's."""
    return (priority + 100) * 9 // 200


class TitanicBackend(BaseTaskBackend):
    """Executes the tasks of a Django project.

        TASKS = {"default": {"BACKEND": "titanic.django.TitanicBackend",
                             "OPTIONS": {"endpoint": "tcp://127.0.0.1:5555", "name": "mysite"}}}

    OPTIONS: `endpoint`, `name` (default django), `timeout`, `key` and `server_key` of `titanic.tasks.Tasks`; `limit`,
    `ttl`, `retry_first`, `retry_most` and `max_attempts` of `Client.submit`. A task that raises is tried again only
    with `max_attempts`. After a worker's death it is tried again in any case.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        known = {*OF_THE_APP, *OF_REQUESTS}
        if unknown := sorted(self.options.keys() - known):
            fact = f"OPTIONS has {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            raise CallerError(f"TASKS[{alias!r}] cannot be used", fact)
        self._retries = "max_attempts" in self.options
        with _LOCK:
            self.app = _APPS.get(f"{alias} {params!r}") or _APPS.setdefault(f"{alias} {params!r}", self._new_app())

    def _new_app(self) -> DjangoTasks:
        """An app with a task for each queue, which executes the tasks of that. Without QUEUES all are one."""
        reach: Any = {name: value for name, value in self.options.items() if name in OF_THE_APP}
        requests: Any = {name: value for name, value in self.options.items() if name in OF_REQUESTS}
        app = DjangoTasks(**{"name": "django", **reach})
        for queue in sorted(self.queues) or [DEFAULT_TASK_QUEUE_NAME]:
            app.task(service=f"{app.name}.{queue}", **requests)(self._execute)
        return app

    def _execute(self, path: str, args: list[Any], kwargs: dict[str, Any], using: Using) -> Any:
        """Handle a request. An ImportError returns it for another worker."""
        return self._run(self._task(path, using), args, kwargs)

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[..., Any]:  # type: ignore[override]
        self.validate_task(task)
        result = self._result(task, "", args, kwargs)
        after = task.run_after
        if after is not None and timezone.is_naive(after):  # USE_TZ is false
            after = timezone.make_aware(after)
        service = task.queue_name if self.queues else DEFAULT_TASK_QUEUE_NAME
        definition = self.app.definitions[f"{self.app.name}.{service}"]
        options: SubmitOptions = {"priority": priority_of(task.priority)}
        if after is not None:
            options["at"] = after
        queue: Submission[..., Any] = Submission(definition, self.app, {**definition.options, **options})
        ticket = queue.submit(
            task.module_path, result.args, result.kwargs, Using(task.priority, task.queue_name, after)
        )
        _change(result, id=ticket.uuid, enqueued_at=timezone.now())
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        client = self.app._connected()
        try:
            info, body, _ = client.look(result_id, None)
            if not body:
                raise UnknownRequest(BODY_GONE)
            definition = self.app.definitions[info["service"]]
            path, args, kwargs, using = definition.values.read(body[0]).args
            result = self._result(self._task(path, using), info["uuid"], args, kwargs)
            _change(result, **self._progress(info))
            if result.status == TaskResultStatus.SUCCESSFUL:
                _change(result, _return_value=definition.read_reply(client.reply(result_id) or []))
            elif result.is_finished:
                client.reply(result_id)  # raises
        except RequestFailed as error:
            failed = TaskFailed(error)
            kind = failed.type or f"{RequestFailed.__module__}.{RequestFailed.__qualname__}"
            result.errors.append(TaskError(exception_class_path=kind, traceback=failed.traceback or str(failed)))
        except (UnknownRequest, InvalidRequest, InvalidArguments, KeyError, ValueError) as error:
            raise TaskResultDoesNotExist(f"there is no task with the result {result_id}: {error}") from error
        return result

    def _task(self, path: str, using: Using) -> Task[..., Any]:
        """The task that was enqueued. Raises ImportError if this process has no such task."""
        found = import_string(path)
        if not isinstance(found, Task):
            raise ImportError(f"{path} is not a task here, but {type(found).__name__}")
        after = using.run_after
        if after is not None and not settings.USE_TZ:
            after = timezone.make_naive(after)
        return found.using(priority=using.priority, queue_name=using.queue_name, run_after=after, backend=self.alias)

    def _result(self, task: Task[..., Any], uuid: str, args: Any, kwargs: Any) -> TaskResult[..., Any]:
        return TaskResult(
            task=task,
            id=uuid,
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def _progress(self, info: RequestInfo) -> dict[str, Any]:
        """What a request's state says of a result."""
        status = STATUSES.get(info["state"], TaskResultStatus.READY)
        started = _moment(info.get("running_since", info["dispatched_at"]))
        is_ended = status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
        worker = info.get("worker", self.app.name)
        return {
            "status": status,
            "enqueued_at": _moment(info["submitted_at"]),
            "started_at": started,
            "last_attempted_at": started,
            "finished_at": _moment(info["finished_at"]) if is_ended else None,
            "worker_ids": [worker] * (info["attempts"] + (status == TaskResultStatus.RUNNING)),
        }

    def _run(self, task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Execute a task in a worker."""
        request = current()
        result = self._result(task, request.uuid, args, kwargs)
        now = timezone.now()
        _change(result, status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now)
        _change(result, enqueued_at=request.submitted, worker_ids=[self.app.name] * request.attempt)
        task_started.send(type(self), task_result=result)
        first = (TaskContext(task_result=result),) if task.takes_context else ()
        try:
            value = normalize_json(task.call(*first, *args, **kwargs))
        except (Retry, Cancelled):
            raise
        except BaseException as error:  # SystemExit, too
            is_retried = self._retries and isinstance(error, Exception) and not isinstance(error, Failed)
            if not is_retried or request.attempt >= request.attempts:
                kind = f"{type(error).__module__}.{type(error).__qualname__}"
                trace = "".join(traceback.format_exception(error))
                result.errors.append(TaskError(exception_class_path=kind, traceback=trace))
                self._finish(result, TaskResultStatus.FAILED)
            if is_retried or isinstance(error, Failed):
                raise
            text, detail = describe(error)
            raise Failed(text, *detail) from error
        _change(result, _return_value=value)
        self._finish(result, TaskResultStatus.SUCCESSFUL)
        return value

    def _finish(self, result: TaskResult[..., Any], status: TaskResultStatus) -> None:
        _change(result, status=status, finished_at=timezone.now())
        task_finished.send(type(self), task_result=result)


def _change(result: TaskResult[..., Any], **values: Any) -> None:
    """Results are frozen for others."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _moment(us: int) -> datetime | None:
    if not us:
        return None
    found = datetime.fromtimestamp(us / 1e6, UTC)
    return found if settings.USE_TZ else timezone.make_naive(found)


def app_of(alias: str) -> DjangoTasks:
    """The app of a backend in TASKS. Raises CallerError, and AttributeError if TASKS has no such name."""
    setup()
    if alias not in task_backends.settings:
        raise AttributeError(f"TASKS has no {alias!r}; it has {', '.join(task_backends.settings)}")
    backend = task_backends[alias]
    if not isinstance(backend, TitanicBackend):
        fact = f"its BACKEND is {type(backend).__module__}.{type(backend).__qualname__}"
        raise CallerError(f"TASKS[{alias!r}] has no worker", fact, "set it to titanic.django.TitanicBackend")
    return backend.app
