"""How far a worker is with a request: what it says of it, a JSON object of at most 1 KiB, and what others are told."""

from __future__ import annotations

from typing import Any, TypedDict

from broker import read_json

MOST_PROGRESS = 1024
"""Bytes of what a worker says."""


class Progress(TypedDict):
    """`done` of `of`, in the worker's own unit; `of` is null when it is not known how much there is."""

    done: float
    of: float | None
    text: str


def read_progress(said: bytes) -> Progress | None:
    """What a worker says; None when it makes no sense."""
    try:
        document = read_json(said, MOST_PROGRESS)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    done, of, text = _number(document.get("done")), _number(document.get("of")), document.get("text", "")
    if done is None or (of is None and document.get("of") is not None) or not isinstance(text, str):
        return None
    return Progress(done=done, of=of, text=text)


def _number(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value
