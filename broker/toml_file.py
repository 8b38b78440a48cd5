"""TOML files that people write: their values, the line of every key, and their mistakes as FILE:LINE: TEXT.

`tomllib` reports no lines. But a valid document is a row of statements, each of which is TOML by itself, and a
statement ends where a line ends outside of strings and brackets. So one pass finds all of them, however long the
document is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

KeyPath = tuple[str | int, ...]
"""The path to a value: ("users", "shop", "submit", 2)."""

_TOKEN = re.compile(
    r'''"""(?:\\[\s\S]|[^\\])*?"{3,5}|\'\'\'[\s\S]*?'{3,5}'''  # strings of several lines; quotes may end them, too
    r"""|"(?:\\.|[^"\\\n])*"|'[^'\n]*'"""
    r"|#[^\n]*|[\[\]{}\n]"
)


class Mistake(NamedTuple):
    """A mistake in a file."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class NotToml(ValueError):
    """The file is not TOML. The text is that of its mistake."""

    def __init__(self, path: Path, line: int, text: str) -> None:
        self.mistake = Mistake(path, line, text)
        super().__init__(str(self.mistake))


class TomlFile:
    """A file that is TOML, and the mistakes that its readers find."""

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        """Read the file, unless its content is given. Raises OSError and NotToml."""
        import tomllib  # most commands read no file

        self.path = path
        self._mistakes: dict[Mistake, None] = {}
        self._lines: dict[KeyPath, int] | None = None
        content = path.read_bytes() if content is None else content
        try:
            self.text = content.decode("utf-8-sig").replace("\r\n", "\n")
            self.values = tomllib.loads(self.text)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise NotToml(path, line, "this is not TOML: it is not UTF-8") from error
        except tomllib.TOMLDecodeError as error:
            at = re.search(r" \(at (?:line (\d+).*|end of document)\)$", str(error))
            line = int(at[1]) if at and at[1] else self.text.rstrip("\n").count("\n") + 1
            fact = str(error)[: at.start()] if at else str(error)
            raise NotToml(path, line, f"this is not TOML: {fact}") from error
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists in lists
            raise NotToml(path, 1, f"this TOML cannot be read: {error}") from error

    def line(self, keys: KeyPath) -> int:
        """The line, from 1, of a table, a key or a string in a list; if it has none, of the nearest above it."""
        if self._lines is None:  # not before: it takes four times as long as reading the file
            self._lines = lines_of(self.text)
        while keys and keys not in self._lines:
            keys = keys[:-1]
        return self._lines.get(keys, 1)

    def add_mistake(self, keys: KeyPath, text: str) -> None:
        """Add a mistake, at the line of these keys. A terminal shows it as it is: control characters are escaped."""
        shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
        self._mistakes[Mistake(self.path, self.line(keys), shown)] = None

    def suggestion(self, name: str, known: Iterable[str], otherwise: str) -> str:
        """What may have been meant, else some other advice. Comparing takes long, so it stops after 20 mistakes."""
        near = nearest(name, known) if len(self._mistakes) < 20 else ""
        return f"did you mean {near}?" if near else otherwise

    @property
    def mistakes(self) -> list[Mistake]:
        """Each once, in the order of the lines."""
        return sorted(self._mistakes, key=lambda mistake: mistake.line)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like another one; empty if none is like it."""
    from difflib import get_close_matches  # takes a millisecond or two, and most names are right

    return next(iter(get_close_matches(name[:80], list(known)[:1000], n=1)), "")


def lines_of(text: str) -> dict[KeyPath, int]:
    """The line, from 1, of all keys, tables and strings in lists of a valid document."""
    import tomllib

    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for line, statement, strings in _statements(text):
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
        if isinstance(value, list) and len(value) == len(strings):
            found.update({(*table, *path, number): where for number, where in enumerate(strings)})
    return found


def _note(found: dict[KeyPath, int], path: KeyPath, line: int) -> None:
    for length in range(1, len(path) + 1):
        found.setdefault(path[:length], line)


def _statements(text: str) -> Iterator[tuple[int, str, list[int]]]:
    """Each statement with its line, and the lines of the strings that are directly in its list."""
    depth = begin = 0
    line = first = 1
    strings: list[int] = []
    for match in _TOKEN.finditer(text + "\n"):
        token = match[0]
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        elif token[0] in "\"'" and depth == 1:
            strings.append(line)
        line += token.count("\n")
        if token == "\n" and depth == 0:
            statement = text[begin : match.start()]
            if not re.match(r"\s*(#|$)", statement):
                yield first, statement, strings
            begin, first, strings = match.end(), line, []


def _paths(table: dict[str, Any], above: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths to everything that has no table below it."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _paths(value, (*above, key))
        else:
            yield (*above, key)
