"""Progress of long work: on a terminal's stderr, and nothing elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """A bar that is seen in its block, if stderr is a terminal."""

    def __init__(self, what: str, *, beside_output: bool = False) -> None:
        """`what` is being done. `beside_output`: results are printed meanwhile, which on a terminal say enough."""
        self._progress: Progress | None = None
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

    def tell(self, what: str, done: int, total: int = 0) -> None:
        """So much of so much is done; 0 in all: nobody knows how much there is."""
        if self._progress is not None:
            far = f"{100 * min(done, total) // total} %" if total else f"{done:,}"
            self._progress.update(self._task, description=what, completed=done, total=total or None, far=far)
