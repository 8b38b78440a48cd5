"""What a message of taskiq is as a request: its idempotency keys, and the options that its labels are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from titanic.errors import InvalidRequest
from titanic.protocol.submit_options import SubmitOptions
from titanic.util.text import quoted

RETRIES, REQUEUES = "_retries", "X-Taskiq-requeue"
"""Labels by which taskiq counts how often it has sent a task again, under the same task id."""

OPTIONS: dict[str, Callable[[Any], float | int]] = {
    "delay": float,
    "limit": float,
    "max_attempts": int,
    "priority": int,
    "retry_first": float,
    "retry_most": float,
    "ttl": float,
}
"""Labels that are options of `Client.submit`."""


def task_key(service: str, task_id: str, again: int) -> str:
    """The idempotency key of a task that taskiq sends for the first time (`again` is 0), or once more."""
    return f"taskiq:{service}:{task_id}" + (f":{again}" if again else "")


def sent_again(labels: Mapping[str, Any]) -> int:
    """How often taskiq has sent a task again."""
    return sum(int(_number(labels, name, int)) for name in (RETRIES, REQUEUES) if name in labels)


def options_of(labels: Mapping[str, Any]) -> SubmitOptions:
    """Raises InvalidRequest for a label that is no number."""
    options: Any = {name: _number(labels, name, kind) for name, kind in OPTIONS.items() if name in labels}
    typed: SubmitOptions = options
    return typed


def _number(labels: Mapping[str, Any], name: str, kind: Callable[[Any], float | int]) -> float | int:
    try:
        return kind(labels[name])
    except (ValueError, TypeError):
        raise InvalidRequest(f"the label {name} is {quoted(labels[name])}; it must be a number") from None
