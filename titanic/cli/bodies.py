"""The frames of a request, from the command line or from standard input."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios
from collections.abc import Sequence
from typing import IO

import click

from titanic.cli.options import option

STDIN = b"-"
"""The BODY that stands for standard input."""

body_argument = click.argument("body", nargs=-1, type=os.fsencode)
stdin_flag = option(
    "--stdin",
    "from_stdin",
    is_flag=True,
    help="Read the body from standard input, as a BODY of - does. A body that is just - can only come so.",
)


def frames(body: Sequence[bytes], from_stdin: bool) -> Sequence[bytes]:
    """What was given, with standard input in its place."""
    if from_stdin:
        return (_read(),)
    if STDIN not in body:
        return body
    if body.count(STDIN) > 1:
        raise click.UsageError("- is there more than once; standard input can only be one of the frames")
    told = _read()
    return [told if frame == STDIN else frame for frame in body]


def check_unread(body: Sequence[bytes]) -> None:
    """Refuse to submit an empty body when somebody most probably wants to submit what he has piped. What stays open
    and empty, such as the standard input of a command by ssh, is not waited for."""
    if not body and _waits(sys.stdin):
        what, fact = "there is no BODY", "standard input, which has bytes, is not read without being told"
        raise click.UsageError(f"{what}; {fact}; add - to submit it, or '' for an empty body")


def _read() -> bytes:
    if sys.stdin is None:
        raise click.UsageError("there is no standard input")
    return sys.stdin.buffer.read()


def _waits(file: IO[str] | None) -> bool:
    """Whether bytes can be read from a file or pipe now."""
    try:
        number = -1 if file is None else file.fileno()
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            return os.lseek(number, 0, os.SEEK_CUR) < status.st_size
        if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            return any(fcntl.ioctl(number, termios.FIONREAD, bytes(4)))
    except (OSError, ValueError):  # it is none of the system's
        pass
    return False
