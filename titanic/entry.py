"""Where the command line begins. It imports nothing large before a Ctrl-C is handled: imports would be broken off."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from importlib import import_module
from types import FrameType, ModuleType, TracebackType

INTERRUPTED = 130

AGAIN = 0.01
"""Seconds after which a Ctrl-C that was lost is raised again."""


def leave(number: int, frame: FrameType | None) -> None:
    """Exit at once. Nothing is started yet that would have to be ended."""
    os._exit(INTERRUPTED)


def interruptible() -> None:
    """From now on a Ctrl-C raises KeyboardInterrupt, and none is lost.

    Python drops an exception that is raised while something is freed, and pyzmq runs the handlers of signals whenever
    it frees a frame. Cython prints it as uncaught, and then Python reports that it was dropped.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.excepthook = _print
    sys.unraisablehook = _insist


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if kind is not KeyboardInterrupt:
        sys.__excepthook__(kind, error, trace)


def _insist(lost: sys.UnraisableHookArgs) -> None:
    """Raise it again, a moment later."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    while True:
        try:
            signal.signal(signal.SIGALRM, _raise_again)
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        except KeyboardInterrupt:  # another one, or this one already: here it would be lost, too
            continue


def _raise_again(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def load(module: str) -> ModuleType:
    """Import a module without garbage collection: imported objects stay, and scanning them again and again takes a
    tenth of the time. They are not scanned later either."""
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def start(module: str, program: str) -> None:
    """Run the `main` of a module. A Ctrl-C ends it without a word, unless a command has an answer to it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Python takes its handlers away before it has ended: then a signal would be the end, and not the exit code.
        atexit.register(signal.signal, number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    try:
        load(module).main(prog_name=program)
    except KeyboardInterrupt:  # outside of the command, which has an answer to it: Python would end by the signal
        sys.exit(INTERRUPTED)
    finally:
        # Python remembers that a Ctrl-C ended an `exec` of a text, as dataclasses do, and `python -m` would end by the
        # signal whatever the exit code is. The next text makes it forget.
        exec("")


def main() -> None:
    """The command `titanic`."""
    start("titanic.cli", "titanic")
