"""The headers of a request, in one pass: what stands before each handler reads several."""

from __future__ import annotations

from starlette.types import Scope

FIELDS = "titanic.fields"
"""Where a scope keeps them."""


def fields(scope: Scope) -> dict[bytes, bytes]:
    """The headers by name, in small letters as ASGI has them; of those that are there more than once, the first."""
    found: dict[bytes, bytes] | None = scope.get(FIELDS)
    if found is None:
        given = scope["headers"]
        found = dict(given)
        if len(found) != len(given):
            found = dict(reversed(given))
        scope[FIELDS] = found
    return found


def field(scope: Scope, name: bytes, otherwise: str = "") -> str:
    """The header of this name."""
    value = fields(scope).get(name)
    return otherwise if value is None else value.decode("latin-1")


def several(scope: Scope, name: bytes) -> bool:
    """Whether a header is there more than once."""
    given = scope["headers"]
    return len(fields(scope)) != len(given) and sum(name == one for one, _ in given) > 1
