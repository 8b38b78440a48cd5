"""JSON from outside: one reader, so that nothing in a document surprises the code behind it."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_SIZE = 64 << 20
"""Bytes of a document."""

MAX_DEPTH = 64
"""Levels of lists and objects in each other."""

MAX_DIGITS = 300
"""Digits of a whole number: fewer than the largest float has."""


def read_json(text: bytes | bytearray | str, max_size: int = MAX_SIZE) -> Any:
    """Read a JSON document.

    Raises ValueError unless it is JSON in UTF-8, `max_size` bytes or less, MAX_DEPTH levels or less, its numbers are
    finite, and no half of a surrogate pair stands alone in its strings.
    """
    if len(text) > max_size:
        raise ValueError(f"it has {len(text)} bytes; at most {max_size} are read")
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        document = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep() from None
    if text.count("[") + text.count("{") > MAX_DEPTH:  # mostly there are fewer
        _check_depth(document)
    if "\\" in text:
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a string contains an unpaired surrogate") from None
    return document


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has {len(text)} digits; at most {MAX_DIGITS} are read")
    return int(text)


def _fraction(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"a number is too large: {text[:40]}")
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON; a number must be finite")


_DECODER = json.JSONDecoder(parse_float=_fraction, parse_int=_whole, parse_constant=_no_number)


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(MAX_DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, (dict, list))]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested too deeply; at most {MAX_DEPTH} levels are read")
