"""Text that came from somebody else, made fit to be shown; counts and values in messages."""

from __future__ import annotations

from reprlib import Repr


def printable(text: str) -> str:
    """Text that a terminal only shows: control characters are escaped."""
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)


def one_line(text: str, most: int) -> str:
    """Printable text as one line of about `most` characters."""
    line = " ".join(printable(text[: most + 1]).split())
    return line if len(text) <= most else line[:most] + "…"


def counted(count: int, noun: str) -> str:
    """A number of things: 1 frame, 2 frames."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 100


def quoted(value: object) -> str:
    """A value as `repr` shows it, shortened in the middle."""
    return _repr.repr(value)
