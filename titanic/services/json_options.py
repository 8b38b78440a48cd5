"""Options in JSON, as messages have them: an object whose names are known."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from titanic.util import ids
from titanic.util.text import quoted


def read_object(frame: bytes) -> dict[str, Any]:
    """The options in a frame. ValueError says what is wrong."""
    try:
        options = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"options are not JSON: {error}") from None
    if not isinstance(options, dict):
        raise ValueError("options are not a JSON object")
    return options


def check_names(options: dict[str, Any], known: Collection[str]) -> None:
    """Raise ValueError for an option that is not known."""
    for name in options:
        if name not in known:
            raise ValueError(f"unknown option {quoted(name)}; there are {', '.join(known)}")


def read_id(value: Any, fault: str) -> bytes:
    """An id of 32 hexadecimal digits. ValueError says what is wrong: `fault`, and that."""
    found = ids.parse(str(value).encode(errors="replace"))
    if found is None:
        raise ValueError(f"{fault} 32 hexadecimal digits")
    return found
