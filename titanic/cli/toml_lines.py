"""On which line of a TOML file a key stands. `tomllib` does not tell, but it tells where a statement ends: a file that
is cut off there is still TOML, and one that is cut off anywhere else is not."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

Keys = tuple[str, ...]


def lines_of(text: str) -> dict[Keys, int]:
    """The line, from 1, of every key and table of a document that can be read: ("serve", "bind") → 12."""
    lines = text.split("\n")
    found: dict[Keys, int] = {}
    begin = 0
    for number, line in enumerate(lines, 1):
        if not begin and re.match(r"\s*(#|$)", line):
            continue
        begin = begin or number
        try:
            document = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # in the middle of a list or a long text
        for keys in _keys(document):
            found.setdefault(keys, begin)
        begin = 0
    return found


def line_of_error(text: str, error: tomllib.TOMLDecodeError) -> int:
    """The line at which a document ceased to be TOML."""
    match = re.search(r"at line (\d+)", str(error))
    return int(match[1]) if match else text.rstrip("\n").count("\n") + 1


def _keys(table: dict[str, Any], above: Keys = ()) -> Iterator[Keys]:
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _keys(value, (*above, key))
