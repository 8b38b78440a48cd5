"""How results are shown: tables for people, JSON for programs, bodies as they are; and the exit codes.

0  fine     1  refused or failed     2  usage     3  timed out, still pending     4  unknown UUID
130, 143  ended by Ctrl-C or SIGTERM
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from titanic.text import printable

EXIT_FAILED, EXIT_USAGE, EXIT_PENDING, EXIT_UNKNOWN, EXIT_INTERRUPTED = 1, 2, 3, 4, 130


def say(message: object, detail: Sequence[bytes] = ()) -> None:
    """A line for people on stderr, and below it what a worker had to say."""
    click.echo(f"titanic: {printable(str(message)).removeprefix('titanic: ')}", err=True)
    if text := as_text(detail):
        click.echo(text, err=True)


def as_text(frames: Iterable[bytes]) -> str:
    """Frames as lines of text, whatever they hold."""
    return printable("\n".join(frame.decode(errors="replace").strip("\n") for frame in frames).strip("\n"))


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, indent=2 if sys.stdout.isatty() else None))


def print_body(frames: Sequence[bytes]) -> None:
    """A body on stdout, byte for byte, its frames one after another. On a terminal it gets a line end."""
    data = b"".join(frames)
    stream = sys.stdout.buffer
    stream.write(data)
    if stream.isatty() and not data.endswith(b"\n"):
        stream.write(b"\n")
    stream.flush()


def json_frames(frames: Iterable[bytes]) -> list[Any]:
    """Frames for JSON: text where it is UTF-8, else an object with `base64`."""
    return [_json_frame(frame) for frame in frames]


def _json_frame(frame: bytes) -> Any:
    try:
        return frame.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(frame).decode()}


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table without frames; columns named in `right` are aligned right."""
    lines = [list(titles), *([_cell(text) for text in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(titles))]
    for number, line in enumerate(lines):
        cells = [
            cell.rjust(width) if title in right else cell.ljust(width)
            for cell, width, title in zip(line, widths, titles, strict=True)
        ]
        text = "  ".join(cells).rstrip()
        click.echo(click.style(text, bold=True) if number == 0 else text)


def _cell(text: str) -> str:
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def age(microseconds: int) -> str:
    """How long ago a time since the epoch was."""
    return duration(max(0.0, time.time() - microseconds / 1e6))


def until(microseconds: int) -> str:
    """How soon a time since the epoch will be."""
    return duration(max(0.0, microseconds / 1e6 - time.time()))


def duration(seconds: float) -> str:
    """A time span, short: 250ms, 12s, 5m, 3h, 2d."""
    for limit, factor, unit in ((1, 1000, "ms"), (120, 1, "s"), (7200, 1 / 60, "m"), (172_800, 1 / 3600, "h")):
        if seconds < limit:
            return f"{seconds * factor:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def size(count: float) -> str:
    """A number of bytes, short: 512 B, 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def moment(microseconds: int) -> str:
    """A time since the epoch as local date and time; a dash when there is none."""
    if not microseconds:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(microseconds / 1e6))
