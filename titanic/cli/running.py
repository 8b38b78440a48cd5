"""What commands have in common while they run: status lines, stop signals, exit codes.

Exit code 0 means success.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

import click

from titanic import logs

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PENDING = 3
"""The request has not ended yet."""
EXIT_UNKNOWN = 4
"""No such request: an unknown UUID."""
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141
"""The reader of the output has gone, as in `| head`."""


def is_about_missing(error: BaseException | None) -> bool:
    """Whether an error comes from a file that is not there: that is wrong usage, whatever the command."""
    while error is not None:
        if isinstance(error, FileNotFoundError):
            return True
        error = error.__cause__
    return False


LAST_WORDS = 5.0
"""Seconds that a command has for its last messages when it must end at once."""


def say(text: str, event: str) -> None:
    """A line on stderr about the command itself; `event` is its fixed word in JSON."""
    click.echo(logs.line(text, event), err=True, nl=False)


class StopSignal:
    """The end of a command, which signals ask for. `code` is its exit code."""

    def __init__(self, stop: Callable[[], None], at_once: Callable[[], None] | None = None) -> None:
        """From now on the first SIGTERM or SIGINT is reported and calls `stop`, the second calls `at_once`.

        `at_once` makes the command return. The process exits when the command has not returned after LAST_WORDS
        seconds, at a third signal, or at the second one without an `at_once`.
        """
        self.code = 0
        self._stop = stop
        self._at_once = at_once
        self._asked = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._asked += 1
        if self._asked == 1:
            with contextlib.suppress(OSError):
                os.write(2, logs.line("stopping", "stopping").encode())  # sys.stderr may be in the middle of a write
            self._stop()
            return
        self.code = 128 + number
        if self._asked > 2 or self._at_once is None:
            os._exit(self.code)
        end = threading.Timer(LAST_WORDS, os._exit, [self.code])
        end.daemon = True
        end.start()
        self._at_once()
