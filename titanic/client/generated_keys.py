"""The keys that a client makes up, so that what it has to send again is stored once."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from titanic.protocol.limits import MOST_TOGETHER

MOST_FORGOTTEN = 10
"""Keys that are told to be forgotten with one message."""

PREFIX = "~"
"""How they begin."""


class OwnKeys:
    """Keys for the requests of one call, which count for `key_for` seconds.

    They ascend, so that the store writes them next to each other: random ones would make it a third slower.

    A message that was sent once, and of which the answer came, can not come again: its key only takes room. The next
    message says so. `needless` has such keys, of this call and of those before.
    """

    def __init__(self, key_for: float, needless: deque[str]) -> None:
        self._key_for = key_for
        self._call = PREFIX + os.urandom(8).hex()
        self._count = 0
        self._unanswered: deque[list[str]] = deque()
        self._needless = needless

    def options(self, requests: int) -> dict[str, Any]:
        """Options of a titanic.submit, for the next so many requests in one message.

        They share a key if they can: one row for all of them.
        """
        keys = [f"{self._call}{self._count + number:08x}" for number in range(requests)]
        self._count += requests
        which: dict[str, Any] = {"keys": keys}
        if requests <= MOST_TOGETHER:
            del keys[1:]
            which = {"key": keys[0]}
        self._unanswered.append(keys)
        if forget := [self._needless.popleft() for _ in range(min(MOST_FORGOTTEN, len(self._needless)))]:
            which["forget"] = forget
        return {**which, "key_for": self._key_for}

    def answered(self, *, once: bool) -> None:
        """The oldest message was answered; `once`: it was certainly not sent again."""
        keys = self._unanswered.popleft()
        if once:
            self._needless += keys
