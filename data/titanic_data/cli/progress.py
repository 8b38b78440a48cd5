"""A progress bar on a terminal's stderr, and nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """So many of so many are done."""

    def __init__(self, what: str) -> None:
        console = Console(stderr=True)
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=None)

    def tell(self, done: int, total: int | None) -> None:
        """Show it."""
        self._progress.update(self._task, completed=done, total=total)

    def run(self) -> Progress:
        """The context in which it is seen."""
        return self._progress


@contextmanager
def bar(what: str) -> Iterator[Bar]:
    """A bar that is seen in the block."""
    one = Bar(what)
    with one.run():
        yield one
