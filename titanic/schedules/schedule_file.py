"""Schedules in a TOML file, a table for each; keys above the tables count for all of them.

tz = "Europe/Berlin"

[nightly]
service = "backup"
cron = "30 2 * * *"
missed = "once"
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker import KeyPath, NotToml, TomlFile
from titanic.errors import InvalidSchedule, TitanicError
from titanic.protocol.messages import SUBMIT_KINDS, Submit, read
from titanic.protocol.submit_options import MOST_SECONDS, NEVER, encode
from titanic.schedules.schedule import Schedule
from titanic.util.text import quoted
from titanic.util.units import read_duration

OPTIONS = {name.replace("_", "-"): kind for name, kind in SUBMIT_KINDS.items()}
"""Those of `Client.submit`."""

KEYS = ("service", "body", "body-file", "cron", "every", "tz", "missed", *OPTIONS)

DURATIONS = ("every", *(name for name, kind in OPTIONS.items() if kind is float))


def read_schedules(path: Path) -> list[Schedule]:
    """The schedules of a file. Raises InvalidSchedule, with file, line and table, and OSError."""
    try:
        file = TomlFile(path)
    except NotToml as error:
        raise InvalidSchedule(str(error)) from error
    shared = {key: value for key, value in file.values.items() if not isinstance(value, dict)}
    tables = {name: table for name, table in file.values.items() if isinstance(table, dict)}
    _check_keys(file, (), shared)
    if not tables:
        raise InvalidSchedule(f"{path}: there are no schedules", "each is a table", "write [NAME] above its keys")
    found = []
    for name, table in tables.items():
        _check_keys(file, (name,), table)
        places: dict[str, KeyPath] = {key: (name, key) for key in table}
        # Intervals have no zone, so what is set for all does not count for them.
        places |= {key: (key,) for key in shared if key not in table and (key != "tz" or "cron" in table)}
        values = {key: _read(file, keys, f"[{name}]: ", (shared | table)[key]) for key, keys in places.items()}
        try:
            found.append(_schedule(name, values, path.parent))
        except InvalidSchedule as error:
            raise _invalid(file, (name,), f"[{name}]: {error}") from None
        except OSError as error:
            where = f"{path}:{file.line(places['body-file'])}: [{name}]"
            raise TitanicError(f"{where}: cannot read {error.filename}", str(error.strerror)) from error
    return found


def _invalid(file: TomlFile, keys: KeyPath, what: str, fact: str = "", advice: str = "") -> InvalidSchedule:
    return InvalidSchedule(f"{file.path}:{file.line(keys)}: {what}", fact, advice)


def _check_keys(file: TomlFile, above: KeyPath, table: Mapping[str, Any]) -> None:
    where = f"[{above[0]}]: " if above else ""
    for key in table:
        if key not in KEYS:
            advice = file.suggestion(key.replace("_", "-"), KEYS, f"there are {', '.join(KEYS)}")
            raise _invalid(file, (*above, key), f"{where}unknown key {key}", "", advice)


def _read(file: TomlFile, keys: KeyPath, where: str, value: Any) -> Any:
    """The value of a key: durations as seconds, a body as its frames."""
    key = str(keys[-1])
    if key == "missed":
        return value
    if key == "body":
        frames = value if isinstance(value, list) else [value]
        wrong, kind = [frame for frame in frames if not isinstance(frame, str)], "a string in quotes"
        value = frames
    elif key in ("service", "body-file", "cron", "tz") or OPTIONS.get(key) is str:
        wrong, kind = [] if isinstance(value, str) else [value], "a string in quotes"
    else:
        wrong, kind = [value], 'a time like 300, "5m" or "1.5h"' if key in DURATIONS else "a number"
        if isinstance(value, str) and key in DURATIONS:
            if value == NEVER and key in ("keep", "keep-body"):
                return value
            with contextlib.suppress(ValueError):
                return read_duration(value, least=0, most=MOST_SECONDS)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    if wrong:
        raise _invalid(file, keys, f"{where}{key} is {quoted(wrong[0])}", "", f"it must be {kind}")
    return value


def _schedule(name: str, values: Mapping[str, Any], folder: Path) -> Schedule:
    if not values.get("service"):
        raise InvalidSchedule("it has no service", "", "write service = and the name of a service")
    if "body" in values and "body-file" in values:
        raise InvalidSchedule("body and body-file cannot be combined")
    options: Any = {key.replace("-", "_"): values[key] for key in OPTIONS if key in values}
    try:
        read(Submit, encode(options).encode())
    except ValueError as error:
        raise InvalidSchedule(re.sub(r"\w_\w", lambda found: found[0].replace("_", "-"), str(error))) from None
    return Schedule(
        name,
        values["service"],
        [(folder / values["body-file"]).read_bytes()] if "body-file" in values else values.get("body", [""]),
        cron=values.get("cron", ""),
        every=values.get("every", 0),
        tz=values.get("tz", "UTC"),
        missed=values.get("missed", "skip"),
        options=options,
    )
