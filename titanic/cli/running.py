"""How commands that run until a signal say that they run, and stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

import click

from titanic import logs

LAST_WORDS = 1.0
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
