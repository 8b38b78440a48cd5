"""Durations, sizes and rates as people write them: 90s, 64MiB, 10/s."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
BYTES = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1 << (10 * power) for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}

MAX_SECONDS = 1e8
"""Three years: longer durations overflow a clock somewhere."""

MAX_SIZE = 1 << 44

MIN_RATE, MAX_RATE = 0.1 / 3600, 100_000.0
"""Per second."""


def read_duration(value: object, *, least: float, most: float) -> float:
    """Seconds, written as a number with an optional unit: 90, 250ms, 1.5h, 30d. Raises ValueError."""
    text = str(value).strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        seconds = float(number) * SECONDS[text[len(number) :]]
    except (ValueError, KeyError):
        seconds = float("nan")
    if not least <= seconds <= most:
        longest = f"{most / SECONDS['d']:.0f} days" if most > SECONDS["d"] else f"{most:g} s"
        advice = "write seconds, or a unit: 250ms, 90s, 5m, 1.5h, 30d"
        raise ValueError(f"{value!r} is not a time from {least:g} s to {longest}; {advice}")
    return seconds


def read_size(value: object, *, least: int, most: int) -> int:
    """Bytes, written as a number with an optional unit: 500, 64MiB, 1.5GB. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).lower())
    if match is None or match[2] not in BYTES:
        raise ValueError(f"{value!r} is not a size; write it like 500, 64MiB or 1.5GB")
    count = int(float(match[1]) * BYTES[match[2]])
    if not least <= count <= most:
        raise ValueError(f"{value} is not a size from {write_size(least)} to {write_size(most)}")
    return count


def read_rate(text: str) -> float:
    """How often per second, written as a number and a unit of time: 10/s, 600/m, 5/h. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)/([smh])", text.lower())
    rate = float(match[1]) / SECONDS[match[2]] if match is not None else 0.0
    if not MIN_RATE <= rate <= MAX_RATE:
        raise ValueError(f"{text!r} is not a rate from 0.1/h to 100000/s; write it like 10/s, 600/m or 5/h")
    return rate


def write_rate(rate: float) -> str:
    """A rate per second as `read_rate` reads it: 10/s, 30/m, 5/h."""
    unit = "s" if rate >= 1 else "m" if rate * 60 >= 1 else "h"
    return f"{rate * SECONDS[unit]:.6f}".rstrip("0").rstrip(".") + f"/{unit}"


def _read_count(text: str) -> int:
    return read_size(text, least=1, most=MAX_SIZE)


READ_LIMIT: Mapping[str, Callable[[str], float]] = {
    **dict.fromkeys(("waiting", "bytes", "running"), _read_count),
    "rate": read_rate,
}
"""The limits of a service that all its servers share, and how they are read."""


def write_size(count: int) -> str:
    """A number of bytes as `read_size` reads it, in the largest unit that leaves it whole: 64KiB."""
    power = next((power for power in range(4, 0, -1) if count and count % (1 << 10 * power) == 0), 0)
    return f"{count >> 10 * power}{('', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
