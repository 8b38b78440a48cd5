"""Charts as inline SVG, because the CSP allows no inline script or style. Colours come from app.css."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from titanic.web.template_filters import counted

WIDTH, HEIGHT = 440, 190
LEFT, RIGHT, TOP, BOTTOM = 2, 4, 24, 24

Values = Sequence[float | None]

Format = Callable[[float], str]


class Line(NamedTuple):
    """A named line of a chart; None where the value is unknown."""

    name: str
    values: Values


def chart(title: str, lines: Sequence[Line], text_of: Format, length: float = 3600) -> Markup:
    """Draw lines over the last `length` seconds; empty while fewer than two values are known."""
    known = [value for line in lines for value in line.values if value is not None]
    if len(known) < 2:
        return Markup("")
    top = nice(max(known))
    summary = "; ".join(_summary(line, text_of) for line in lines)
    parts = [Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        WIDTH, HEIGHT, f"{title}, last {length / 60:.0f} minutes. {summary}"
    )]  # fmt: skip
    for share in (0, 0.5, 1):
        y = _y(top * share, top)
        parts.append(Markup('<path class="grid-line" d="M{} {:.1f}H{}"/>').format(LEFT, y, WIDTH - RIGHT))
        if share:  # the zero line needs no label
            parts.append(Markup('<text x="{}" y="{:.1f}">{}</text>').format(LEFT, y - 5, text_of(top * share)))
    for half, anchor in enumerate(("start", "middle", "end")):
        x = LEFT + (WIDTH - LEFT - RIGHT) * half / 2
        text = f"{length * (2 - half) / 120:.3g} min ago" if half < 2 else "now"
        svg = '<text x="{:.0f}" y="{}" text-anchor="{}">{}</text>'
        parts.append(Markup(svg).format(x, HEIGHT - 5, anchor, text))
    for number, line in enumerate(lines, 1):
        parts.append(Markup('<path class="line s{}" d="{}"/>').format(number, _path(line.values, top)))
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


def spark(values: Values, name: str) -> Markup:
    """Draw a small line without axes; empty while fewer than two values are known."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup("")
    top = max(known) or 1
    step = 96 / (len(values) - 1)
    points = [(n * step, 22 - 20 * value / top) for n, value in enumerate(values) if value is not None]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    label = f"{name}: first {known[0]:,.0f}, maximum {max(known):,.0f}, now {known[-1]:,.0f}"
    svg = '<svg class="spark" viewBox="0 0 96 24" role="img" aria-label="{}"><path class="line s1" d="{}"/></svg>'
    return Markup(svg).format(label, path)


def bars(counts: Sequence[int], title: str, *, small: bool = True) -> Markup:
    """Draw the number of failures in each part of a time span as bars."""
    most, height = max(counts, default=0) or 1, 24 if small else 60
    width = 4 if small else 20
    parts = [
        Markup('<rect x="{}" y="{:.1f}" width="{}" height="{:.1f}"/>').format(
            at * width, height - height * count / most, width - 1, height * count / most
        )
        for at, count in enumerate(counts)
        if count
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
        if pen == "M":
            found.append("h.1")  # a value without neighbours is a dot
        pen = "L"
    return "".join(found)


def _last(line: Line, text_of: Format) -> str:
    value = next((value for value in reversed(line.values) if value is not None), None)
    return f"{line.name}: {'unknown' if value is None else text_of(value)}"


def _summary(line: Line, text_of: Format) -> str:
    known = [value for value in line.values if value is not None]
    return f"{_last(line, text_of)}, maximum {text_of(max(known))}" if known else _last(line, text_of)
