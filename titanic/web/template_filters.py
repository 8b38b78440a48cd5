"""Numbers, time spans and times as text: the filters of the templates."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

from markupsafe import Markup

from titanic.util.text import duration, one_line, printable

NONE = "–"


def number(value: float | None) -> str:
    """1234567 as 1,234,567; a dash for None."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def rate(value: float | None) -> str:
    """A rate per second: 0, 0.03, 4.2, 1,200."""
    if value is None:
        return NONE
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def span(seconds: float | None) -> str:
    """A duration; a dash if it is unknown."""
    return NONE if seconds is None else duration(seconds)


def size(count: float | None) -> str:
    """A number of bytes: 512 B, 1.5 MiB."""
    if count is None:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def percent(part: float, whole: float) -> str:
    """A percentage: 0 %, < 1 %, 42 %; 100 % only when part and whole are equal."""
    if not whole or not part:
        return "0 %"
    share = 100 * part / whole
    return "< 1 %" if share < 1 else f"{min(share, 99) if part < whole else share:.0f} %"


def ago(microseconds: int, now: float | None = None) -> str:
    """How long ago a time was: 5 min."""
    return span(max(0.0, (time.time() if now is None else now) - microseconds / 1e6))


def when(microseconds: int | None) -> Markup:
    """A time in UTC; app.js converts it to the time zone of the reader."""
    if not microseconds:
        return Markup(NONE)
    try:
        moment = datetime.fromtimestamp(microseconds / 1e6, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("far away")
    machine, people = moment.isoformat(timespec="milliseconds"), moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}">{}</time>').format(machine, people)


def since(microseconds: int | None) -> Markup:
    """How long ago a time was; app.js adds the time as a tooltip."""
    if not microseconds:
        return Markup(NONE)
    try:
        machine = datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return Markup("far away")
    return Markup('<time datetime="{}" data-ago>{}</time>').format(machine, ago(microseconds))


def counted(count: float, noun: str, nouns: str = "") -> str:
    """A number of things: 1 request, 2,000 requests."""
    return f"{number(count)} {noun if count == 1 else nouns or noun + 's'}"


def short(text: str, most: int = 120) -> str:
    """Untrusted text as one line of at most so many characters."""
    return one_line(text, most)


def sentence(text: str) -> str:
    """An error text as a sentence, with a capital letter and a full stop."""
    text = text.strip()
    end = "." if text and text[-1] not in ".?!" else ""
    return f"{text[:1].upper()}{text[1:]}{end}"


def service_url(name: str) -> str:
    """The URL of a service's page."""
    if {".", ".."} & set(name.split("/")) or not name:  # browsers resolve these as folders
        return "/services/?" + urlencode({"name": name})
    return "/services/" + quote(name)


FILTERS: Mapping[str, Callable[..., str]] = {
    "number": number,
    "rate": rate,
    "span": span,
    "size": size,
    "percent": percent,
    "ago": ago,
    "when": when,
    "since": since,
    "counted": counted,
    "sentence": sentence,
    "short": short,
    "printable": printable,
    "service_url": service_url,
}
