"""Frames of bodies and replies as pages show them: JSON, text, a picture, or bytes. Nothing in them is ever a part of
the page: text is escaped, and only pictures of pixels are given to the browser as such."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from titanic.util.text import printable

MOST = 65536
"""Bytes of a body, and of a reply, that are looked at."""

MOST_FRAMES = 20
"""Frames that are shown of each."""

DEEPEST = 20
"""How deep JSON may be nested that is laid out: what is deeper would be mostly indentation."""

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
"""What JSON is made of."""

WIDTH = 16
"""Bytes in a line of a dump."""

PICTURES = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
)
"""Kinds of pictures that cannot have a script in them: how they begin, where, and their type."""


class Content(NamedTuple):
    """A frame. `kind`: json, text, image, hex or empty. `text` is what is shown of it, for an image its data: URI."""

    kind: str
    text: str
    size: int
    cut: bool = False
    """Whether there is more of it than is shown."""


class Contents(NamedTuple):
    """A body or a reply. `more`: frames that are not shown."""

    frames: list[Content]
    size: int
    more: int


def contents(frames: Sequence[bytes], count: int, size: int) -> Contents:
    """How to show frames of which there are `count`, with `size` bytes together; the given ones may be fewer, and the
    last of them may be cut."""
    got = sum(map(len, frames))
    shown = [content(frame, cut=got < size and at == len(frames) - 1) for at, frame in enumerate(frames[:MOST_FRAMES])]
    return Contents(shown, size, count - len(shown))


def content(frame: bytes, *, cut: bool = False) -> Content:
    """How to show one frame."""
    if not frame:
        return Content("empty", "", 0, cut)
    kind = next((kind for magic, at, kind in PICTURES if frame[at : at + len(magic)] == magic), None)
    if kind is not None and not cut:
        return Content("image", f"data:{kind};base64,{base64.b64encode(frame).decode()}", len(frame))
    text = _text(frame, cut)
    if text is None:
        return Content("hex", dump(frame), len(frame), cut)
    laid_out = None if cut else _laid_out(text)
    if laid_out is not None:
        return Content("json", laid_out, len(frame))
    return Content("text", printable(text), len(frame), cut)


def dump(frame: bytes) -> str:
    """Bytes as people read them: where, in hexadecimal digits, and as far as they are ASCII."""
    lines = []
    for at in range(0, len(frame), WIDTH):
        part = frame[at : at + WIDTH]
        ascii_ = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:06x}  {part.hex(' '):<{3 * WIDTH}} {ascii_}")
    return "\n".join(lines)


def _text(frame: bytes, cut: bool) -> str | None:
    """The frame as text; None when it is none."""
    try:
        text = frame.decode()
    except UnicodeDecodeError as error:
        if not (cut and error.start >= len(frame) - 3):  # the cut went through a character
            return None
        text = frame[: error.start].decode()
    strange = sum(not one.isprintable() and one not in "\n\r\t\x1b" for one in text)
    return text.replace("\r\n", "\n") if strange * 20 <= len(text) else None


def _laid_out(text: str) -> str | None:
    """A JSON object or array, laid out; None when it is none, or is nested too deep. Numbers, names and texts stay as
    they were written: parsed and written again, 1.10 would be 1.1, and only one of two members with a name would be
    left."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth, before = 0, ""
    for token in TOKEN.findall(text):
        closes, opened = token in ("]", "}"), before in ("[", "{")
        depth -= closes
        if (closes and not opened) or (not closes and (opened or before == ",")):
            parts.append("\n" + "  " * depth)
        depth += token in ("[", "{")
        if depth > DEEPEST:
            return None
        parts.append(": " if token == ":" else token)
        before = token
    return printable("".join(parts))
