"""What a worker says about the next attempt, in the first detail frame of its error reply. That frame is not kept.

titanic:fatal            the request has failed for good
titanic:retry=SECONDS    try it again then
titanic:again=SECONDS    the same, and this was no attempt
titanic:unready          this worker cannot execute it, and another version of the worker can, perhaps
"""

from __future__ import annotations

from typing import NamedTuple

from titanic.protocol.submit_options import MOST_SECONDS
from titanic.protocol.tsp import Frames

FATAL = b"titanic:fatal"
RETRY = b"titanic:retry="
AGAIN = b"titanic:again="
UNREADY = b"titanic:unready"

LEAST_PAUSE = 0.01
"""Seconds until an attempt that is to be tried again at once: a worker that says nothing else must not keep the disk
busy."""


class RetryHint(NamedTuple):
    """How an attempt failed. `pause`: seconds until the next one; None: the usual ones. `counts`: as an attempt.
    `unready`: the worker did not begin."""

    detail: Frames
    fatal: bool = False
    pause: float | None = None
    counts: bool = True
    unready: bool = False


def read_retry_hint(detail: Frames) -> RetryHint:
    """What the detail of an error reply says; what makes no sense is detail like any other."""
    word = detail[0] if detail else b""
    if word == FATAL:
        return RetryHint(detail[1:], fatal=True)
    if word == UNREADY:
        return RetryHint(detail[1:], counts=False, unready=True)
    for known in (RETRY, AGAIN):
        if word.startswith(known) and (pause := _pause(word[len(known) :])) is not None:
            return RetryHint(detail[1:], pause=pause, counts=known == RETRY)
    return RetryHint(detail)


def _pause(text: bytes) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return max(LEAST_PAUSE, seconds) if 0 <= seconds <= MOST_SECONDS else None
