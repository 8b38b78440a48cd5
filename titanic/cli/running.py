"""How commands that run until they are stopped say that they run, log, and stop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

import click

from titanic.version import __version__


def say(text: str) -> None:
    """A line on stderr with the version."""
    click.echo(f"titanic {__version__} {text}", err=True)


def log_to_stderr(level: str) -> None:
    """Let the log begin."""
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def on_signal(stop: Callable[[], None], at_once: Callable[[], None] = lambda: None) -> None:
    """From now on the first SIGTERM or SIGINT is told and calls `stop`, the second calls `at_once` and ends all."""
    asked = False

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked:
            at_once()
            os._exit(128 + number)
        asked = True
        with contextlib.suppress(OSError):
            os.write(2, f"titanic {__version__} stopping\n".encode())  # sys.stderr may be in the middle of a write
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
