"""Schedules in a TOML file, a table for each; keys above the tables count for all of them.

tz = "Europe/Berlin"

[nightly]
service = "backup"
cron = "30 2 * * *"
missed = "once"
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from titanic.errors import InvalidSchedule, TitanicError
from titanic.schedules.schedule import Body, Schedule
from titanic.util.text import quoted

OPTIONS = ("ttl", "delay", "priority", "max-attempts", "limit", "retry-first", "retry-most")
"""Those of `Client.submit`."""

KEYS = ("service", "body", "body-file", "cron", "every", "tz", "missed", *OPTIONS)

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
TIMES = ("every", "ttl", "delay", "limit", "retry-first", "retry-most")


def read_schedules(path: Path) -> list[Schedule]:
    """The schedules of a file. Raises InvalidSchedule, which names the table, and OSError."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSchedule(f"{path}: this is not TOML", str(error)) from error
    shared = {key: value for key, value in document.items() if not isinstance(value, dict)}
    tables = {name: table for name, table in document.items() if isinstance(table, dict)}
    _check_keys(str(path), shared)
    if not tables:
        raise InvalidSchedule(f"{path}: there are no schedules", "each is a table", "write [NAME] above its keys")
    found = []
    for name, table in tables.items():
        where = f"{path}: [{name}]"
        _check_keys(where, table)
        given = dict(table)
        # Intervals have no zone, so what is set for all does not count for them.
        given |= {key: value for key, value in shared.items() if key not in table and (key != "tz" or "cron" in table)}
        try:
            found.append(_schedule(name, given, path.parent))
        except InvalidSchedule as error:
            raise InvalidSchedule(f"{where}: {error}") from None
        except OSError as error:
            raise TitanicError(f"{where}: cannot read {error.filename}", str(error.strerror)) from error
    return found


def _check_keys(where: str, table: Mapping[str, Any]) -> None:
    for key in table:
        if key not in KEYS:
            near = difflib.get_close_matches(key.replace("_", "-"), KEYS, n=1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(KEYS)}"
            raise InvalidSchedule(f"{where}: unknown key {key}", "", advice)


def _schedule(name: str, given: Mapping[str, Any], folder: Path) -> Schedule:
    texts = {key: _text(key, given.get(key, default)) for key, default in (("cron", ""), ("tz", "UTC"))}
    if not given.get("service"):
        raise InvalidSchedule("it has no service", "", "write service = and the name of a service")
    missed: Any = given.get("missed", "skip")
    options: Any = {key.replace("-", "_"): _value(key, given[key]) for key in OPTIONS if key in given}
    return Schedule(
        name,
        _text("service", given["service"]),
        _body(given, folder),
        every=_value("every", given.get("every", 0)),
        missed=missed,
        options=options,
        **texts,
    )


def _body(given: Mapping[str, Any], folder: Path) -> list[Body]:
    if "body-file" in given:
        if "body" in given:
            raise InvalidSchedule("body and body-file exclude each other")
        return [(folder / _text("body-file", given["body-file"])).read_bytes()]
    body = given.get("body", "")
    return [_text("body", frame) for frame in (body if isinstance(body, list) else [body])]


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidSchedule(f"{key} is {quoted(value)}", "", "it must be a text in quotes")
    return value


def _value(key: str, value: Any) -> Any:
    """A number; for a time also a text with a unit, like 90s or 1.5h."""
    text = value.strip() if isinstance(value, str) and key in TIMES else ""
    if text:
        try:
            return float(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else float(text)
        except ValueError:
            pass
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    kind = 'a time like 300, "5m" or "1.5h"' if key in TIMES else "a number"
    raise InvalidSchedule(f"{key} is {quoted(value)}", "", f"it must be {kind}")
