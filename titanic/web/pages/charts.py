"""Charts as SVG, drawn here: no script, and no style that the CSP would have to allow. Colours come from app.css."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

WIDTH, HEIGHT = 440, 190
LEFT, RIGHT, TOP, BOTTOM = 2, 4, 24, 24

Values = Sequence[float | None]


class Line(NamedTuple):
    """A line of a chart, with its name; None where nothing is known."""

    name: str
    values: Values


def chart(title: str, lines: Sequence[Line], tell: Callable[[float], str], length: float = 3600) -> Markup:
    """The lines over the last `length` seconds. `tell` says a value in words. Without values it is empty."""
    known = [value for line in lines for value in line.values if value is not None]
    if len(known) < 2:
        return Markup("")
    top = nice(max(known))
    summary = "; ".join(_summary(line, tell) for line in lines)
    parts = [Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        WIDTH, HEIGHT, f"{title}, the last {length / 60:.0f} minutes. {summary}"
    )]  # fmt: skip
    for share in (0, 0.5, 1):
        y = _y(top * share, top)
        parts.append(Markup('<path class="grid-line" d="M{} {:.1f}H{}"/>').format(LEFT, y, WIDTH - RIGHT))
        if share:  # what 0 is, is plain
            parts.append(Markup('<text x="{}" y="{:.1f}">{}</text>').format(LEFT, y - 5, tell(top * share)))
    for half, anchor in enumerate(("start", "middle", "end")):
        x = LEFT + (WIDTH - LEFT - RIGHT) * half / 2
        text = f"{length * (2 - half) / 120:.3g} min ago" if half < 2 else "now"
        svg = '<text x="{:.0f}" y="{}" text-anchor="{}">{}</text>'
        parts.append(Markup(svg).format(x, HEIGHT - 5, anchor, text))
    for number, line in enumerate(lines, 1):
        parts.append(Markup('<path class="line s{}" d="{}"/>').format(number, _path(line.values, top)))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts) + legend(lines, tell)


def legend(lines: Sequence[Line], tell: Callable[[float], str]) -> Markup:
    """What each line is, with its last value."""
    rows = (
        Markup('<li><svg viewBox="0 0 28 8" aria-hidden="true"><path class="s{}" d="M0 4h28"/></svg>{}</li>').format(
            number, _last(line, tell)
        )
        for number, line in enumerate(lines, 1)
    )
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(rows))


def spark(values: Values, what: str) -> Markup:
    """A small line without axes; empty when fewer than two values are known."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup("")
    top = max(known) or 1
    step = 96 / (len(values) - 1)
    points = [(n * step, 22 - 20 * value / top) for n, value in enumerate(values) if value is not None]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    label = f"{what}: {known[0]:,.0f} at first, {max(known):,.0f} at most, {known[-1]:,.0f} now"
    svg = '<svg class="spark" viewBox="0 0 96 24" role="img" aria-label="{}"><path class="line s1" d="{}"/></svg>'
    return Markup(svg).format(label, path)


def nice(most: float) -> float:
    """A round number that is not below: the end of an axis."""
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


def _last(line: Line, tell: Callable[[float], str]) -> str:
    value = next((value for value in reversed(line.values) if value is not None), None)
    return f"{line.name}: {'not known' if value is None else tell(value)}"


def _summary(line: Line, tell: Callable[[float], str]) -> str:
    known = [value for value in line.values if value is not None]
    return f"{_last(line, tell)}, at most {tell(max(known))}" if known else _last(line, tell)
