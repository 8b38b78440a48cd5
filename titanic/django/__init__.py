"""Tasks in a Django project. titanic/COOKBOOK.md has a project that uses them.

    DjangoTasks        an app that sets Django up in its workers             project.py
    submit_on_commit   submit a task when the transaction is committed       project.py
    request_link       the page of a request, for a ModelAdmin               project.py
    login              the signed-in user, for a mounted `titanic.web`       project.py
    TitanicBackend     a backend for Django's own tasks framework            backend.py

`titanic worker titanic.django:default` runs the tasks of the backend TASKS["default"] in the settings, and so for each
other name there.
"""

from __future__ import annotations

from typing import Any

from titanic.django.project import DjangoTasks, login, request_link, setup, submit_on_commit
from titanic.errors import CallerError

__all__ = ["DjangoTasks", "login", "request_link", "setup", "submit_on_commit"]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        from titanic.django.backend import TitanicBackend, app_of  # needs a tasks framework: only when used
    except ModuleNotFoundError as error:
        what, fact = "TitanicBackend cannot be used", f"there is no module {error.name}"
        raise CallerError(what, fact, "use Django 6, or pip install django-tasks") from error
    return TitanicBackend if name == "TitanicBackend" else app_of(name)
