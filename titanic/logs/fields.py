"""The fields that a line of the log may have besides its text."""

from __future__ import annotations

import logging
from typing import Any

FIELDS = ("event", "uuid", "service")
MOST = 200
"""Characters of a field: a name may be anything."""


def event(name: str, *, uuid: bytes = b"", service: bytes = b"") -> dict[str, Any]:
    """What to pass as `extra` to a logging call."""
    fields = {"event": name, "uuid": uuid.hex(), "service": service.decode(errors="replace")[:MOST]}
    return {name: value for name, value in fields.items() if value}


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """The fields that a record has."""
    return {name: str(vars(record)[name]) for name in FIELDS if name in vars(record)}
