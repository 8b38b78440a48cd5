"""Django in this process, with a database, and tasks of its framework."""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.db import connections

try:
    from django.tasks import TaskContext, task
except ImportError:
    from django_tasks import TaskContext, task

from titanic import Failed, Retry, current

BACKEND = "titanic.django.TitanicBackend"
CALLS: list[str] = []
DATABASE = Path(tempfile.gettempdir(), f"titanic-django-{os.getpid()}.sqlite3")
"""A file: connections to databases in memory stay open."""
CONTINUE = threading.Event()


def configure() -> None:
    """Set Django up once in a process."""
    if settings.configured:
        return
    atexit.register(DATABASE.unlink, missing_ok=True)
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(DATABASE)}},
        ALLOWED_HOSTS=["*"],
        USE_TZ=True,
        TIME_ZONE="Europe/Berlin",
        TASKS={"default": {"BACKEND": BACKEND, "QUEUES": []}},
        LOGGING_CONFIG=None,
    )
    django.setup()


configure()


def query() -> bool:
    """Ask the database; whether this thread was connected before."""
    connection = connections["default"]
    before = connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return before


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task(queue_name="slow", priority=50)
async def add_async(a: int, b: int = 1) -> int:
    return a + b


@task(takes_context=True)
def context(context: Any, word: str) -> list[Any]:
    assert isinstance(context, TaskContext)
    return [context.task_result.id == current().uuid, context.attempt, word, context.task_result.task.name]


@task
def fails(kind: str) -> None:
    CALLS.append(kind)
    if kind == "exit":
        raise SystemExit("this task exits")
    if kind == "failed":
        raise Failed("for good")
    if kind == "retry" and current().attempt == 1:
        raise Retry(after=0)
    if kind in ("value", "import"):
        raise {"value": ValueError, "import": ImportError}[kind](f"no {kind}")


@task
def returns_what_cannot_be_sent() -> Any:
    return object()


@task
def waits(word: str) -> str:
    CALLS.append(word)
    assert CONTINUE.wait(60)
    return word


@task
def asks_the_database() -> bool:
    return query()


def no_task() -> None: ...
