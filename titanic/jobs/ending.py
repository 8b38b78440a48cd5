"""How a handler says how its request has ended: raise one of these. On the wire it is a word in the detail of an error
reply (`titanic.protocol.endings`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta

from broker import RemoteError, UsageError
from titanic.protocol.endings import AGAIN, FATAL, RETRY, UNREADY
from titanic.protocol.submit_options import MOST_SECONDS


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


class Unready(RemoteError):
    """This worker cannot execute the request, and another version of it can, perhaps: the request is given back, which
    is no attempt. It has failed when no worker was ready for so long as the server's `unready_timeout` says."""

    def __init__(self, text: str, *detail: bytes | str) -> None:
        super().__init__(500, text, [UNREADY, *_frames(detail)])


class Cancelled(RemoteError):
    """Nobody wants the reply any more: the handler gives up."""

    def __init__(self, text: str = "cancelled") -> None:
        super().__init__(500, text)


def _frames(detail: Iterable[bytes | str]) -> list[bytes]:
    return [frame.encode(errors="replace") if isinstance(frame, str) else frame for frame in detail]
