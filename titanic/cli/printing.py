"""How results are shown: tables for people, JSON for programs, bodies as they are, progress."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import click

from titanic.errors import TitanicError
from titanic.util.text import duration, how_to_install, printable


def say(message: object, detail: Sequence[bytes] = (), program: str = "") -> None:
    """A line for people on stderr, and below it what a worker said."""
    context = click.get_current_context(silent=True)
    name = program or getattr(context and context.find_root().command, "program", "titanic")
    click.echo(f"{name}: {printable(str(message)).removeprefix('titanic: ')}", err=True)
    if text := as_text(detail):
        click.echo(text, err=True)


def as_text(frames: Iterable[bytes]) -> str:
    """Frames as lines of text, whatever they hold."""
    return printable("\n".join(frame.decode(errors="replace").strip("\n") for frame in frames).strip("\n"))


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, indent=2 if sys.stdout.isatty() else None))


def print_done(document: Any, text: str, as_json: bool) -> None:
    """The result of a change on stdout: as JSON, or as a line."""
    if as_json:
        print_json(document)
    else:
        click.echo(printable(text))


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


def print_json_list(documents: Iterable[Any]) -> None:
    """A JSON list on stdout, each of its members as it comes."""
    indent = 2 if sys.stdout.isatty() else None
    click.echo("[", nl=False)
    for number, document in enumerate(documents):
        click.echo((", " if number else "") + json.dumps(document, indent=indent), nl=False)
    click.echo("]")


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table without frames; columns named in `right` are aligned right."""
    print_long_table(titles, [list(rows)], right=right)


def print_long_table(
    titles: Sequence[str], parts: Iterable[Sequence[Sequence[str]]], *, right: Sequence[str] = ()
) -> None:
    """A table that is printed part by part: in a later part, a column may be wider."""
    widths = [len(title) for title in titles]

    def line(row: Sequence[str]) -> str:
        columns = zip(row, widths, titles, strict=True)
        return "  ".join(cell.rjust(n) if title in right else cell.ljust(n) for cell, n, title in columns).rstrip()

    has_titles = False
    for part in chain(filter(None, parts), [[]]):
        rows = [[_cell(text) for text in row] for row in part]
        widths = [max(width, *(len(row[at]) for row in rows), 0) for at, width in enumerate(widths)]
        if not has_titles:
            click.echo(click.style(line(titles), bold=True))
            has_titles = True
        for row in rows:
            click.echo(line(row))


def _cell(text: str) -> str:
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def age(microseconds: int) -> str:
    """How long ago a time since the epoch was."""
    return duration(max(0.0, time.time() - microseconds / 1e6))


def until(microseconds: int) -> str:
    """How soon a time since the epoch will be."""
    return duration(max(0.0, microseconds / 1e6 - time.time()))


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


def pyplot(extra: str) -> Any:
    """matplotlib's pyplot. Raises TitanicError, which names the extra that installs it."""
    try:
        import matplotlib

        matplotlib.use("agg")  # no screen is needed
        from matplotlib import pyplot as found
    except ImportError as error:
        advice = how_to_install(extra)
        raise TitanicError("plots need matplotlib", str(error), advice) from None
    return found


class Bar:
    """A progress bar for a `with` block, shown if stderr is a terminal."""

    def __init__(self, what: str, *, beside_output: bool = False) -> None:
        """`what` is being done. `beside_output`: results are printed meanwhile, which on a terminal say enough."""
        self._what = what
        self._progress: Any = None
        if sys.stderr is None or not sys.stderr.isatty() or (beside_output and sys.stdout.isatty()):
            return
        from rich.console import Console  # not before it is wanted: others start faster
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[far]}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(what, total=None, far="")

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def count(self, done: int, total: int = 0) -> None:
        """Show how much is done, as `update` does."""
        self.update(self._what, done, total)

    def update(self, what: str, done: int, total: int = 0) -> None:
        """Show how much is done, of how much in total; 0: the total is unknown."""
        if self._progress is not None:
            far = f"{100 * min(done, total) // total} %" if total else f"{done:,}"
            self._progress.update(self._task, description=what, completed=done, total=total or None, far=far)
