"""A page asks several things; what the visitor may not see is left out and told."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from titanic.errors import Forbidden

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Missing:
    """What the visitor may not see, and why: the permission that it needs."""

    what: str
    why: str


async def unless_forbidden(what: str, asked: Awaitable[T]) -> T | Missing:
    """What was asked for, or that the visitor may not see it. `what` it is, for the page."""
    try:
        return await asked
    except Forbidden as error:
        return Missing(what, str(error))
