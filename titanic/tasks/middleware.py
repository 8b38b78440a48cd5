"""Functions that an app has called around each of its tasks, in the worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Call:
    """A call of a task in a worker. `titanic.current()` is the request."""

    service: str
    name: str
    """Of the function."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Before = Callable[[Call], object]
After = Callable[[Call, Any], object]
OnError = Callable[[Call, BaseException], object]

AnyBefore = TypeVar("AnyBefore", bound=Before)
AnyAfter = TypeVar("AnyAfter", bound=After)
AnyOnError = TypeVar("AnyOnError", bound=OnError)


class Middleware:
    """They are called in the thread, or on the event loop, of the task."""

    def __init__(self) -> None:
        self.before: list[Before] = []
        self.after: list[After] = []
        self.error: list[OnError] = []

    def begins(self, call: Call) -> None:
        """Before the task. What one of them raises, the attempt ends with."""
        for function in self.before:
            function(call)

    def returned(self, call: Call, value: object) -> None:
        """The task is done: what they raise changes nothing, and is logged."""
        for function in reversed(self.after):
            try:
                function(call, value)
            except Exception:
                log.exception("what is called after %s failed", call.service)

    def failed(self, call: Call, error: BaseException) -> None:
        """The attempt has failed: what they raise changes nothing, and is logged."""
        for function in reversed(self.error):
            try:
                function(call, error)
            except Exception:
                log.exception("what is called for an error of %s failed", call.service)
