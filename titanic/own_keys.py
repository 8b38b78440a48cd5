"""The keys that a client makes up, so that what it has to send again is stored once."""

from __future__ import annotations

import secrets
from typing import Any

from titanic.store import MOST_TOGETHER

PREFIX = "~"
"""How they begin."""


class OwnKeys:
    """Keys for the requests of one call, which count for `key_for` seconds.

    They ascend, so that the store writes them next to each other: random ones would make it a third slower.
    """

    def __init__(self, key_for: float) -> None:
        self._key_for = key_for
        self._call = PREFIX + secrets.token_hex(8)
        self._count = 0

    def options(self, requests: int) -> dict[str, Any]:
        """Options of a titanic.submit, for the next so many requests in one message.

        They share a key if they can: one row for all of them.
        """
        keys = [f"{self._call}{self._count + number:08x}" for number in range(requests)]
        self._count += requests
        which = {"key": keys[0]} if requests <= MOST_TOGETHER else {"keys": keys}
        return {**which, "key_for": self._key_for}
