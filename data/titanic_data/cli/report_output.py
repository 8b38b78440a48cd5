"""The answer of a report as a table, as JSON, or as a picture (with matplotlib, from the extra `spark`)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import click

from titanic.cli.printing import print_table, pyplot

Rows = Sequence[dict[str, Any]]
Picture = Callable[[Any, Rows], Any]
"""Draws rows with matplotlib's pyplot."""
TIMES = {"second": "%Y-%m-%d %H:%M:%S", "minute": "%Y-%m-%d %H:%M", "hour": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d"}
"""How the beginning of a period is written."""
PICTURES = (".png", ".svg", ".pdf")


def print_answer(answer: Any, by: str, as_json: bool) -> None:
    """Print an Arrow table with periods of the length `by`: as a table, or as a JSON list of objects."""
    rows = answer.to_pylist()
    if as_json:
        click.echo(json.dumps(rows, default=lambda value: value.isoformat() if isinstance(value, date) else str(value)))
        return
    names = answer.column_names
    print_table(
        [name.upper() for name in names],
        [[_cell(row[name], by if name == by else "second") for name in names] for row in rows],
        right=[name.upper() for name in names if not isinstance(rows and rows[0][name], (str, date))],
    )


def _cell(value: Any, length: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:{TIMES[length]}}" if isinstance(value, datetime) else str(value)


def draw(name: str, rows: Rows, path: Path) -> None:
    """Draw the answer of a report; the suffix of the file says what kind of picture it is."""
    plotter = pyplot("spark")
    picture = _PICTURES[name](plotter, rows)
    picture.savefig(path)
    plotter.close(picture)


def _latency(plotter: Any, rows: Rows) -> Any:
    picture, panes = plotter.subplots(1, 3, figsize=(15, 5), layout="constrained", sharey=True)
    titles = {"waiting": "Waiting", "running": "Running", "fetched": "Until fetched"}
    for axes, (span, title) in zip(panes, titles.items(), strict=True):
        for service, some in _by_service(rows).items():
            hours = _times(some)
            (line,) = axes.plot(hours, [row[f"{span}_p50"] for row in some], marker=".", label=f"{service}, p50")
            tails = [row[f"{span}_p99"] for row in some]
            axes.plot(hours, tails, linestyle=":", color=line.get_color(), label=f"{service}, p99")
        axes.set(title=title, yscale="log")
        _finish(axes)
    panes[0].set_ylabel("seconds")
    return picture


def _lines(column: str, title: str, label: str) -> Picture:
    def make(plotter: Any, rows: Rows) -> Any:
        picture, axes = plotter.subplots(figsize=(10, 5), layout="constrained")
        for service, some in _by_service(rows).items():
            hours = _times(some)
            axes.plot(hours, [row[column] for row in some], drawstyle="steps-post", label=service)
        axes.set(title=title, ylabel=label)
        axes.set_ylim(bottom=0)
        _finish(axes)
        return picture

    return make


def _bars(column: str, title: str, label: str, *names: str) -> Picture:
    def make(plotter: Any, rows: Rows) -> Any:
        some = rows[:30]
        picture, axes = plotter.subplots(figsize=(10, 1.5 + 0.3 * len(some)), layout="constrained")
        texts = [", ".join(str(row[name]) for name in names if row[name] != "") for row in some]
        axes.barh(range(len(some)), [row[column] for row in some])
        axes.set_yticks(range(len(some)), texts)
        axes.invert_yaxis()
        axes.set(title=title, xlabel=label)
        axes.grid(visible=True, axis="x", alpha=0.3)
        return picture

    return make


_PICTURES: dict[str, Picture] = {
    "latency": _latency,
    "throughput": _lines("closed", "Throughput", "closed requests"),
    "backlog": _lines("backlog", "Backlog", "requests that have not ended"),
    "failures": _bars("requests", "Failures", "requests", "service", "status", "reason"),
    "retries": _bars("requests", "Attempts", "requests", "service", "attempts"),
    "breaches": _bars("share", "Service levels missed", "share of requests", "service", "within"),
    "duplicates": _bars("executed_again", "Executed again despite a key", "requests", "service"),
    "bodies": _bars("bytes", "Largest requests", "bytes", "service", "request_id"),
}


def _times(rows: Rows) -> list[Any]:
    """The beginnings of the periods."""
    return [next(value for value in row.values() if isinstance(value, datetime)) for row in rows]


def _by_service(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    services: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        services[row["service"]].append(row)
    return services


def _finish(axes: Any) -> None:
    axes.grid(visible=True, alpha=0.3)
    axes.tick_params(axis="x", rotation=30)
    if axes.has_data():
        axes.legend(fontsize="small")
