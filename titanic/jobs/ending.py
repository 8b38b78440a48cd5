"""How a handler says how its request has ended: raise one of these.

An error reply is `MDPE01`, `NNN text`, detail…; the first frame of the detail can be a word for the queue, which does
not keep it:

    titanic:fatal            it has failed for good
    titanic:retry=SECONDS    try it again then
    titanic:again=SECONDS    the same, and this was no attempt
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta

from broker import RemoteError, UsageError

FATAL = b"titanic:fatal"
RETRY = b"titanic:retry="
AGAIN = b"titanic:again="

MOST_SECONDS = 10 * 366 * 86_400.0
"""The longest time until the next attempt."""


class Failed(RemoteError):
    """The request has failed for good: it is not tried again. `detail` is kept with it."""

    def __init__(self, text: str, *detail: bytes | str) -> None:
        super().__init__(500, text, [FATAL, *_frames(detail)])


class Retry(RemoteError):
    """Try the request again, `after` so long: seconds or a timedelta; None: after the usual pause.

    It counts as a failed attempt: after the last one the request has failed. With `count=False` it does not count: for
    work that has to wait for something. Then `after` is needed.
    """

    def __init__(
        self, text: str = "", *detail: bytes | str, after: float | timedelta | None = None, count: bool = True
    ) -> None:
        if isinstance(after, timedelta):
            after = after.total_seconds()
        if after is None and not count:
            raise UsageError("Retry(count=False) needs after=: what counts as no attempt has no usual pause")
        if after is not None and (math.isnan(after) or not 0 <= after <= MOST_SECONDS):
            raise UsageError(f"after is {after}; it must be from 0 seconds to ten years")
        word = [] if after is None else [(RETRY if count else AGAIN) + b"%.3f" % after]
        super().__init__(500, text or "to be tried again", [*word, *_frames(detail)])


class Cancelled(RemoteError):
    """Nobody wants the reply any more: the handler gives up."""

    def __init__(self, text: str = "cancelled") -> None:
        super().__init__(500, text)


def _frames(detail: Iterable[bytes | str]) -> list[bytes]:
    return [frame.encode(errors="replace") if isinstance(frame, str) else frame for frame in detail]
