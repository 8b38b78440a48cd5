"""Where the command line begins. It imports nothing large before a Ctrl-C is handled: imports would be broken off."""

from __future__ import annotations

import os
import signal
from importlib import import_module
from types import FrameType

INTERRUPTED = 130


def leave(number: int, frame: FrameType | None) -> None:
    """Exit at once. Nothing is started yet that would have to be ended."""
    os._exit(INTERRUPTED)


def start(module: str, program: str) -> None:
    """Run the `main` of a module. Until it runs a command, a Ctrl-C ends it without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    import_module(module).main(prog_name=program)


def main() -> None:
    """The command `titanic`."""
    start("titanic.cli", "titanic")
