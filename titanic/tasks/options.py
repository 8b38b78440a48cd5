"""What can be said of a task where it is declared. What can be said of one call: `SubmitOptions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict, cast

from titanic.protocol.submit_options import Span, SubmitOptions

Errors = type[Exception] | tuple[type[Exception], ...]


class TaskOptions(TypedDict, total=False):
    """The options of `Tasks.task`, which explains them."""

    service: str
    key: Callable[..., str]
    retry_on: Errors
    fatal: Errors
    raises: Errors
    key_for: Span
    ttl: Span
    delay: Span
    priority: int
    max_attempts: int
    limit: Span
    retry_first: Span
    retry_most: Span


_OF_TASKS = ("service", "key", "retry_on", "fatal", "raises")
"""Those that a submission does not have, or that mean something else there."""


def submit_options(options: TaskOptions) -> SubmitOptions:
    """Those of them that each submission has."""
    said: dict[str, Any] = {name: value for name, value in options.items() if name not in _OF_TASKS}
    return cast(SubmitOptions, said)


def as_tuple(errors: Errors) -> tuple[type[Exception], ...]:
    """One class or several, as `isinstance` takes them."""
    return errors if isinstance(errors, tuple) else (errors,)
