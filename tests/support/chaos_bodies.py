"""What clients submit under chaos, and what the only right reply to it is.

A body begins with its name, `CLIENT-ROUND-NUMBER.KIND`, and all the rest of it follows from the name. So does a reply,
but for the execution that gave it, which it begins with.
"""

from __future__ import annotations

import zlib

KINDS = ("plain", "flaky", "slow", "cancel", "later")
WEIGHTS = (90, 3, 2, 3, 2)


def _padding(name: str, most: int) -> bytes:
    """Some bytes that nobody else has."""
    number = zlib.crc32(name.encode())
    return (b"%08x" % number) * (number % (most // 8))


def body_of(name: str) -> bytes:
    return name.encode() + b" " + _padding(name, 400)


def name_of(body: bytes) -> str | None:
    """The name that a body has; None if that is not the body of any name."""
    name = body.partition(b" ")[0].decode(errors="replace")
    return name if body == body_of(name) else None


def kind_of(name: str) -> str:
    return name.rpartition(".")[2]


def reply_of(execution: str, name: str) -> list[bytes]:
    return [execution.encode(), name.encode() + b" " + _padding("reply " + name, 300)]


def execution_of(frames: list[bytes], name: str) -> str | None:
    """The execution that a reply to `name` says it comes from; None if it is not a whole, right one."""
    execution = frames[0].decode(errors="replace") if frames else ""
    return execution if frames == reply_of(execution, name) else None
