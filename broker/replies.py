"""A handler's reply on its way out: its frames, how large they may be, and what is said of a handler that failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from broker.core.mdp import Frames, error_body
from broker.errors import RemoteError
from broker.io.sockets import MOST_BODY_FRAMES

MOST_TEXT = 4096
"""Characters of an exception's text that go into the error reply."""

_NAMELESS = error_body(500, "the handler failed")


class TooLarge(Exception):
    """A reply that the broker would not take; the text says what to do."""


class Measure:
    """What may be sent for one request.

    A broker ends the connection of a worker that sends more than it takes, without an answer, and gives the request to
    the next worker: so the size is checked here.
    """

    def __init__(self, most: int, *, joined: bool) -> None:
        """`most`: bytes in one message; `joined`: whether all parts go out in one, as in MDP 0.1."""
        self._most = most
        self._joined = joined
        self._frames = self._bytes = 0

    def part(self, frames: Frames) -> Frames:
        """A part of the reply, which comes back; raises TooLarge."""
        self._check(frames, "all parts of the reply have" if self._joined else "a part of the reply has")
        return frames

    def last(self, frames: Frames) -> Frames:
        """The reply, or the last part of it."""
        self._check(frames, "the reply has")
        return frames

    def _check(self, frames: Frames, what: str) -> None:
        count, size = len(frames), sum(map(len, frames))
        if self._joined:
            count, size = self._frames, self._bytes = self._frames + count, self._bytes + size
        if count > MOST_BODY_FRAMES:
            raise TooLarge(f"{what} {count} frames; at most {MOST_BODY_FRAMES} can be sent at once; {self._advice()}")
        if size > self._most:
            advice = f"{self._advice()}, or raise max_reply of the worker and max_body of its broker"
            raise TooLarge(f"{what} {size} bytes; this worker sends at most {self._most} at once; {advice}")

    def _advice(self) -> str:
        return "send less (MDP 0.1 has no parts)" if self._joined else "send it in (smaller) parts"


def as_frames(value: Any) -> Frames:
    """What a handler returned, as body frames: one at least, None and an empty list are an empty one."""
    if value is None:
        return [b""]
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return [_frame(value)]
    if isinstance(value, Iterable) and not isinstance(value, (Mapping, Set)):
        return [_frame(frame) for frame in value] or [b""]
    raise TypeError(f"a reply is bytes, text, a list of them or None, not {type(value).__name__}")


def error_frames(error: RemoteError) -> Frames:
    """The error reply that a handler has chosen."""
    return error_body(error.status, error.text, *(as_frames(error.detail) if error.detail else ()))


def failure(error: BaseException) -> Frames:
    """The error reply for an exception of a handler. Never raises, whatever the exception does when it is looked at."""
    try:
        return error_body(500, f"{type(error).__name__}: {error}"[:MOST_TEXT])
    except BaseException:
        try:
            return error_body(500, type(error).__name__)
        except BaseException:
            return _NAMELESS


def _frame(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a frame of a reply is bytes or text, not {type(value).__name__}")
