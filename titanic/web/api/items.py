"""The items of a JSON array, or of lines of JSON, taken out of a body as it comes in. Each stays as it was written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Protocol

from titanic.util.text import quoted
from titanic.web.problems import Problem

_MARK = re.compile(rb'["\[\]{},]')
_IN_TEXT = re.compile(rb'["\\]')
BLANK = b" \t\r\n"


class Items(Protocol):
    """Takes the parts of a body, and gives its items."""

    @property
    def held(self) -> int:
        """Bytes that it has of an item that is not whole yet."""

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The items that are whole now. Raises Problem."""

    def end(self) -> Iterator[bytes]:
        """The last one. Raises Problem when the body breaks off."""


class Lines:
    """One on each line; empty lines are none."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    def feed(self, part: bytes) -> Iterator[bytes]:
        *lines, rest = part.split(b"\n")
        for line in lines:
            self._parts.append(line)
            yield from self.end()
        self._parts.append(rest)
        self._held += len(rest)

    def end(self) -> Iterator[bytes]:
        line = b"".join(self._parts).strip(BLANK)
        self._parts.clear()
        self._held = 0
        if line:
            yield line


class Array:
    """Between the commas of the outermost brackets."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        """How far the buffer has been looked at."""
        self._begun = self._ended = self._in_text = False
        self._depth = 0
        self._several = False

    @property
    def held(self) -> int:
        return len(self._buffer)

    def feed(self, part: bytes) -> Iterator[bytes]:
        self._buffer += part
        if not self._begun and not self._begin():
            return
        while not self._ended and (mark := self._next()):
            if self._in_text:
                self._in_text = mark != b'"'
                self._at += mark == b"\\"  # what follows it is text
            elif mark == b'"':
                self._in_text = True
            elif mark in b"[{":
                self._depth += 1
            elif self._depth:
                self._depth -= mark in b"]}"
            else:
                yield from self._take(mark)
        if self._ended and self._buffer.strip(BLANK):
            raise Problem(400, "something follows the end of the array; send one array, or NDJSON")

    def end(self) -> Iterator[bytes]:
        if not self._ended:
            raise Problem(400, "the body breaks off before the end of the array; send all of it")
        yield from ()

    def _begin(self) -> bool:
        self._buffer = self._buffer.lstrip(BLANK)
        if bytes(self._buffer[:1]) not in (b"", b"["):
            raise Problem(400, "the body is not a JSON array; send one, or NDJSON as application/x-ndjson")
        self._begun = bool(self._buffer)
        del self._buffer[:1]
        return self._begun

    def _next(self) -> bytes:
        found = (_IN_TEXT if self._in_text else _MARK).search(self._buffer, self._at)
        self._at = found.end() if found else max(self._at, len(self._buffer))
        return found[0] if found else b""

    def _take(self, mark: bytes) -> Iterator[bytes]:
        item = bytes(self._buffer[: self._at - 1]).strip(BLANK)
        del self._buffer[: self._at]
        self._at = 0
        self._ended = mark == b"]"
        if item or self._several or not self._ended:  # `[]` has none
            yield item
        self._several = True


def check(item: bytes, number: int) -> None:
    """Raise Problem for what is not JSON. `number`: which item it is, from 0."""
    try:
        _JSON.decode(item.decode())
    except (ValueError, RecursionError) as error:
        given = quoted(item.decode(errors="replace"))
        raise Problem(400, f"item {number} is not JSON: {given}; {_fault(item, error)}") from None


def _fault(item: bytes, error: ValueError | RecursionError) -> str:
    """Where it goes wrong, and what to do."""
    if not item:
        return "there is nothing between two commas; leave one of them out"
    if isinstance(error, UnicodeDecodeError):
        return f"from byte {error.start} on it is not UTF-8; send UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply; send it as text, or submit it alone"
    if isinstance(error, json.JSONDecodeError):
        return f"it goes wrong at character {error.pos}, counted from 0; put texts and names into double quotes"
    return f"{error}; send null, or a text"


def _no_number(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


_JSON = json.JSONDecoder(parse_constant=_no_number, parse_int=len, parse_float=len)
"""Of numbers it is only looked at how they are written: they may have any number of digits."""
