"""What templates show: numbers, time spans and times as text, and charts as inline SVG.

The CSP allows no inline script or style: the charts' colours come from app.css.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote, urlencode

from markupsafe import Markup

from titanic.util.text import duration, error_summary, one_line, printable

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
        return Markup("out of range")
    machine, people = moment.isoformat(timespec="milliseconds"), moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}">{}</time>').format(machine, people)


def since(microseconds: int | None) -> Markup:
    """How long ago a time was; app.js adds the time as a tooltip."""
    if not microseconds:
        return Markup(NONE)
    try:
        machine = datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return Markup("out of range")
    return Markup('<time datetime="{}" data-ago>{}</time>').format(machine, ago(microseconds))


def counted(count: float, noun: str, nouns: str = "") -> str:
    """A number of things: 1 request, 2,000 requests."""
    return f"{number(count)} {noun if count == 1 else nouns or noun + 's'}"


def short(text: str, most: int = 120) -> str:
    """Untrusted text as one line of at most so many characters."""
    return one_line(text, most)


def ends(name: str, most: int = 60) -> str:
    """A name of about so many characters at most, without its middle: many differ only in the end."""
    return short(name, most) if len(name) <= most else f"{short(name[: most // 2])}…{short(name[-most // 2 :])}"


def sentence(text: str) -> str:
    """An error text as a sentence, with a capital letter and a full stop."""
    text = text.strip()
    end = "." if text and text[-1] not in ".?!:" else ""
    return f"{text[:1].upper()}{text[1:]}{end}"


UNITS = {604_800: "week", 86_400: "day", 3600: "hour", 60: "minute", 1: "second"}


def interval(when: str) -> str:
    """An interval of schedules, such as `every 3600 s`, in words: every hour. A cron expression stays as it is."""
    seconds = int(found[1]) if (found := re.fullmatch(r"every (\d{1,12}) s", when)) else 0
    for one, unit in UNITS.items():
        if seconds and seconds % one == 0:
            return f"every {unit}" if seconds == one else f"every {counted(seconds // one, unit)}"
    return when


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
    "interval": interval,
    "sentence": sentence,
    "summary": error_summary,
    "ends": ends,
    "short": short,
    "printable": printable,
    "service_url": service_url,
}


WIDTH, HEIGHT = 320, 170
LEFT, RIGHT, TOP, BOTTOM = 2, 4, 24, 24

Values = Sequence[float | None]

Format = Callable[[float], str]


class Line(NamedTuple):
    """A named line of a chart; None where the value is unknown."""

    name: str
    values: Values


def chart(title: str, lines: Sequence[Line], text_of: Format) -> Markup:
    """Draw lines over the last hour; empty while no value is known."""
    known = [value for line in lines for value in line.values if value is not None]
    if not known:
        return Markup("")
    top = nice(max(known))
    summary = "; ".join(_summary(line, text_of) for line in lines)
    parts = [Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        WIDTH, HEIGHT, f"{title}, last 60 minutes. {summary}"
    )]  # fmt: skip
    for number, line in enumerate(lines, 1):  # below the labels
        parts.append(Markup('<path class="line s{}" d="{}"/>').format(number, _path(line.values, top)))
    for share in (0, 0.5, 1):
        y = _y(top * share, top)
        parts.append(Markup('<path class="grid-line" d="M{} {:.1f}H{}"/>').format(LEFT, y, WIDTH - RIGHT))
        if share:  # the zero line needs no label
            parts.append(
                Markup('<text x="{}" y="{:.1f}">{}</text>').format(LEFT, y - 5, text_of(top * share).removesuffix(".0"))
            )
    for half, anchor in enumerate(("start", "middle", "end")):
        x = LEFT + (WIDTH - LEFT - RIGHT) * half / 2
        text = f"{60 - 30 * half} min ago" if half < 2 else "now"
        svg = '<text x="{:.0f}" y="{}" text-anchor="{}">{}</text>'
        parts.append(Markup(svg).format(x, HEIGHT - 5, anchor, text))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts) + legend(lines, text_of)


def legend(lines: Sequence[Line], text_of: Format) -> Markup:
    """The name and the last value of each line."""
    rows = (
        Markup('<li><svg viewBox="0 0 28 8" aria-hidden="true"><path class="s{}" d="M0 4h28"/></svg>{}</li>').format(
            number, _last(line, text_of)
        )
        for number, line in enumerate(lines, 1)
    )
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(rows))


def spark(values: Values, name: str, top: float) -> Markup:
    """Draw a small line without axes, `top` high; empty while fewer than two values are known."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup("")
    step = 96 / (len(values) - 1)
    points = [(n * step, 22 - 20 * value / (top or 1)) for n, value in enumerate(values) if value is not None]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    label = f"{name}: first {known[0]:,.0f}, maximum {max(known):,.0f}, now {known[-1]:,.0f}"
    svg = '<svg class="spark" viewBox="0 0 96 24" role="img" aria-label="{}"><path class="line s1" d="{}"/></svg>'
    return Markup(svg).format(label, path)


def bars(counts: Sequence[int], title: str, most: int = 0) -> Markup:
    """Draw the number of failures in each part of a time span as bars. `most`: the height of small ones in a table;
    0: one large chart."""
    small, most = most > 0, most or max(counts, default=0) or 1
    width, height = (4, 24) if small else (20, 60)
    parts = [
        Markup('<rect x="{}" y="{:.1f}" width="{}" height="{:.1f}"/>').format(
            at * width, height - high, width - 1, high
        )
        for at, count in enumerate(counts)
        if (high := count and max(1.5, height * count / most))  # few are seen beside many
    ]
    label = f"{title}: {counted(sum(counts), 'failure')}, maximum {max(counts, default=0):,} per bar"
    head = Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        "bars small" if small else "bars", width * len(counts), height, label
    )
    return head + Markup("").join(parts) + Markup("</svg>")


def nice(most: float) -> float:
    """The smallest round number that is not below: the end of an axis."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= most * (1 - 1e-9))


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _path(values: Values, top: float) -> str:
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values) - 1)
    found: list[str] = []
    pen = "M"
    for n, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        found.append(f"{pen}{LEFT + n * step:.1f} {_y(value, top):.1f}")
        if pen == "M" and values[n + 1 : n + 2] in ([], [None]):
            found.append("m-4 0h8")  # a value without neighbours is a bar
        pen = "L"
    return "".join(found)


def _last(line: Line, text_of: Format) -> str:
    value = next((value for value in reversed(line.values) if value is not None), None)
    return f"{line.name}: {'unknown' if value is None else text_of(value)}"


def _summary(line: Line, text_of: Format) -> str:
    known = [value for value in line.values if value is not None]
    return f"{_last(line, text_of)}, maximum {text_of(max(known))}" if known else _last(line, text_of)
