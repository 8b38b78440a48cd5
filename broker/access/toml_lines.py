"""The lines of a TOML document's keys, and of the texts in its lists: `tomllib` does not tell them.

A valid document is a row of statements, each of which is TOML by itself. One ends where a line ends outside of texts
and brackets, so one pass finds all of them, however long the document is.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

Keys = tuple[str | int, ...]
"""The way to a value: ("users", "shop", "submit", 2)."""

_TOKEN = re.compile(
    r'''"""(?:\\[\s\S]|[^\\])*?"{3,5}|\'\'\'[\s\S]*?'{3,5}'''  # texts of several lines; quotes may end them, too
    r"""|"(?:\\.|[^"\\\n])*"|'[^'\n]*'"""
    r"|#[^\n]*|[\[\]{}\n]"
)


def lines_of(text: str) -> dict[Keys, int]:
    """The line, from 1, of all keys, tables and texts in lists of a valid document."""
    found: dict[Keys, int] = {}
    table: Keys = ()
    for line, statement, texts in _statements(text):
        try:
            parsed = tomllib.loads(statement)
        except RecursionError:  # as deep as can be, and the stack is deeper now
            continue
        if statement.lstrip().startswith("["):
            table = next(iter(_paths(parsed)), ())
            _note(found, table, line)
            continue
        for path in _paths(parsed):
            _note(found, (*table, *path), line)
        value: Any = parsed
        path = ()
        while isinstance(value, dict) and len(value) == 1:
            ((key, value),) = value.items()
            path = (*path, key)
        if isinstance(value, list) and len(value) == len(texts):
            found.update({(*table, *path, number): where for number, where in enumerate(texts)})
    return found


def _note(found: dict[Keys, int], path: Keys, line: int) -> None:
    for length in range(1, len(path) + 1):
        found.setdefault(path[:length], line)


def _statements(text: str) -> Iterator[tuple[int, str, list[int]]]:
    """Each statement with its line, and the lines of the texts that are directly in its list."""
    depth = begin = 0
    line = first = 1
    texts: list[int] = []
    for match in _TOKEN.finditer(text + "\n"):
        token = match[0]
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        elif token[0] in "\"'" and depth == 1:
            texts.append(line)
        line += token.count("\n")
        if token == "\n" and depth == 0:
            statement = text[begin : match.start()]
            if not re.match(r"\s*(#|$)", statement):
                yield first, statement, texts
            begin, first, texts = match.end(), line, []


def _paths(table: dict[str, Any], above: Keys = ()) -> Iterator[Keys]:
    """The ways to all that has no table below it."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _paths(value, (*above, key))
        else:
            yield (*above, key)
