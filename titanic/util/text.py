"""Text for people: untrusted text made printable, counts, durations, values in messages, install commands, URLs of
databases."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from reprlib import Repr
from typing import Any
from urllib.parse import unquote

from titanic.util.units import write_rate, write_size


def printable(text: str) -> str:
    """Text that a terminal only shows: control characters are escaped."""
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)


def one_line(text: str, most: int) -> str:
    """Printable text as one line of about `most` characters."""
    line = " ".join(printable(text[: most + 1]).split())
    return line if len(text) <= most else line[:most] + "…"


def error_summary(reason: str) -> str:
    """The text of an error without the details that workers append: a task's exception as JSON, and its traceback."""
    return re.split(r"titanic:error=|Traceback \(most recent call last\):", reason, maxsplit=1)[0].strip() or reason


def counted(count: int, noun: str) -> str:
    """A number of things: 1 frame, 2 frames."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """A duration for people: 250 ms, 1.5 s, 90 s, 5 min, 3 h, 2 days."""
    if 0 < seconds < 0.001:
        return "< 1 ms"
    if seconds == 0:
        return "0 s"
    for limit, factor, unit in ((1, 1000, "ms"), (120, 1, "s"), (7200, 1 / 60, "min"), (172_800, 1 / 3600, "h")):
        if seconds < limit:
            number = f"{seconds * factor:.1f}" if unit == "s" and seconds < 10 else f"{seconds * factor:.0f}"
            return f"{number.removesuffix('.0')} {unit}"
    return f"{seconds / 86_400:,.0f} days"


def limit_texts(row: Mapping[str, Any], now: float) -> list[str]:
    """The limits of a service in the statistics, for people: running ≤ 4 (set by ann, 5 min ago; configured: 8)."""
    was_set, texts = row.get("limits_set") or {}, []
    for name, value in row.get("limits", {}).items():
        if value is not None:
            source = limit_source(name, was_set, now)
            texts.append(f"{name} ≤ {limit_value(name, value)}{source and f' ({source})'}")
    return texts


def limit_source(name: str, was_set: Mapping[str, Any], now: float) -> str:
    """Who set a limit, when, and which one it replaces; empty if it is the configured one."""
    if was_set.get(name) is None:
        return ""
    by = f"by {was_set['by']}, " if was_set["by"] else ""
    ago = duration(max(0.0, now - was_set["at"] / 1e6))
    return f"set {by}{ago} ago; configured: {limit_value(name, was_set['configured'][name])}"


def limit_value(name: str, value: float | None) -> str:
    """A limit as READ_LIMIT reads it, if there is one."""
    if value is None:
        return "no limit"
    return write_rate(value) if name == "rate" else write_size(int(value)) if name == "bytes" else str(value)


_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 100


def quoted(value: object) -> str:
    """A value as `repr` shows it, shortened in the middle."""
    return _repr.repr(value)


def how_to_install(extra: str) -> str:
    """The command that installs what an extra of titanic-queue names: it works in a checkout, in a virtual environment
    and where a package of the system has Titanic, though no index has titanic-queue."""
    from importlib.metadata import PackageNotFoundError, requires  # brings much, and is for errors only

    try:
        found = requires("titanic-queue") or []
    except PackageNotFoundError:
        found = []
    wanted = [one.partition(";")[0].strip() for one in found if re.search(rf"extra == ['\"]{extra}['\"]", one)]
    packages = [f"'{one}'" for one in wanted if not one.startswith("titanic-queue")]
    return f"{sys.executable} -m pip install {' '.join(packages or [f'titanic-queue[{extra}]'])}"


def is_url(place: object) -> bool:
    """Whether it is the URL of a database, and not a directory."""
    return str(place).startswith(("postgresql://", "postgres://"))


def is_like_url(place: object) -> bool:
    """Whether this is meant as such a URL, even if it is invalid: it is not a likely name of a directory."""
    return str(place).lower().startswith(("postgresql:", "postgres:"))


def has_password(url: str) -> bool:
    """Whether there is a password in it, or may be. As libpq sees it: ? and # are letters of a password as others."""
    rest = url.partition("://")[2]
    path, _, query = rest.partition("?")
    user, at, _ = rest.partition("@")
    if "/" in user:  # of a password, or before an @ of the query
        user, at, _ = path.rpartition("@")
    return bool(at and ":" in user) or "password" in unquote(query).lower()


_MOST_PID = 10
"""Digits of the number of a process."""


def read_process(name: str) -> tuple[str, int | None]:
    """Return host and pid of a process that is named HOST:PID; empty and None for any other name."""
    host, _, pid = name.rpartition(":")
    is_named = pid.isascii() and pid.isdigit() and len(pid) <= _MOST_PID
    return (host, int(pid)) if is_named else ("", None)
