"""Tasks of a Django project: its settings, the `tasks.py` of its apps, and its connections to databases."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, MutableMapping
from io import BytesIO
from pathlib import Path
from typing import Any, ParamSpec

import django
from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db import connections, transaction
from django.http import HttpResponse
from django.utils.html import format_html
from django.utils.module_loading import autodiscover_modules

from broker import Handler
from titanic.errors import CallerError
from titanic.pool.loading import import_fault
from titanic.schedules import Schedule
from titanic.tasks import Submission, Tasks
from titanic.tasks.task import Definition

P = ParamSpec("P")

log = logging.getLogger(__name__)

SETTINGS = "DJANGO_SETTINGS_MODULE"
NAMED = re.compile(rf"""["']{SETTINGS}["']\s*,\s*["']([\w.]+)["']""")
"""How a project's manage.py names its settings."""


def setup() -> None:
    """Set Django up unless that is done: with DJANGO_SETTINGS_MODULE, or the settings that the manage.py in this
    directory names. Raises CallerError."""
    if apps.ready:
        return
    if not settings.configured and SETTINGS not in os.environ:
        manage = Path("manage.py").absolute()
        found = NAMED.search(manage.read_text(errors="replace")) if manage.is_file() else None
        if found is None:
            fact = f"{SETTINGS} is not set, and {manage} is missing or names none"
            raise CallerError("Django has no settings", fact, "set it, or run this in the project's directory")
        os.environ[SETTINGS] = found[1]
    try:
        django.setup()
    except Exception as error:
        raise import_fault(f"the Django project of {os.environ.get(SETTINGS, 'settings.configure')}", error) from error


class JobHandler:
    """Handles requests as another handler does. Connections to databases that are broken, or older than CONN_MAX_AGE,
    are closed before and after each, as for requests to the web server."""

    def __init__(self, handler: Handler, definition: Definition | None) -> None:
        """`definition`: the task's; None: it is no task's."""
        self._handler = handler
        self._is_async = definition is not None and definition.is_async

    def __call__(self, frames: list[bytes]) -> Any:
        own = self._run(close_connections)
        try:
            return self._handler(frames)
        finally:
            self._run(close_connections, own)

    def _run(self, function: Callable[..., list[str]], *args: object) -> list[str]:
        if not self._is_async:
            return function(*args)
        from titanic.tasks.event_loops import EVENT_LOOP

        # Django has one thread for what coroutines do with databases.
        opened: list[str] = EVENT_LOOP.run(sync_to_async(function)(*args))
        return opened


def close_connections(own: Collection[str] | None = None) -> list[str]:
    """Close connections to databases that are broken or too old. Return the databases with an open transaction, such as
    that of a test.

    `own`: those that had one before. Any other transaction was left open by a task: it is rolled back, or later tasks
    would go on in it.
    """
    opened = []
    for connection in connections.all(initialized_only=True):
        alias = connection.alias
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        elif own is None or alias in own:
            opened.append(alias)
        else:
            log.warning("a task has left a transaction of database '%s' open; it is rolled back", alias)
            connection.close()
            del connections[alias]
    return opened


class DjangoTasks(Tasks):
    """The tasks of a Django project.

        # mysite/queue.py, which imports no models
        app = DjangoTasks("tcp://127.0.0.1:5555", name="mysite")

    `titanic worker mysite.queue:app` sets Django up, imports the `tasks.py` of each of INSTALLED_APPS, and executes the
    tasks there.
    """

    _discovered = False

    def discover(self) -> None:
        """Set Django up, and import the `tasks.py` of its apps. Raises CallerError."""
        if not self._discovered:
            setup()
            try:
                autodiscover_modules("tasks")
            except Exception as error:
                raise import_fault("the tasks.py of INSTALLED_APPS", error) from error
            self._discovered = True

    @property
    def handlers(self) -> dict[str, Handler]:
        """What a worker does for each service, after `discover`."""
        self.discover()
        return {name: JobHandler(handler, self.definitions.get(name)) for name, handler in super().handlers.items()}

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules of its tasks, after `discover`."""
        self.discover()
        return super().schedules


def submit_on_commit(task: Submission[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Submit a task when the transaction of the default database is committed; at once outside of one. It is not
    submitted after a rollback.

    Raises InvalidArguments at once when the arguments do not fit. What `submit` raises, such as TimedOut, comes out of
    the outermost `atomic` block, after the commit.
    """
    task.definition.values.write(args, kwargs)
    transaction.on_commit(lambda: task.submit(*args, **kwargs))


def request_link(uuid: str) -> str:
    """A link to a request's page in the web console, for a ModelAdmin: at TITANIC_CONSOLE of the settings, by default
    that of `titanic dev`. Empty without a UUID."""
    console = getattr(settings, "TITANIC_CONSOLE", "http://127.0.0.1:8080").rstrip("/")
    return format_html('<a href="{}/requests/{}">{}</a>', console, uuid, uuid[:8]) if uuid else ""


async def login(scope: MutableMapping[str, Any]) -> str | None:
    """The name of the user that has signed in to the project, or None. For `titanic.web.Gateway`."""
    from django.contrib.auth import aget_user  # only projects with a web console need these
    from django.contrib.sessions.middleware import SessionMiddleware

    request = ASGIRequest(scope, BytesIO())
    SessionMiddleware(HttpResponse).process_request(request)
    return (await aget_user(request)).get_username() or None
