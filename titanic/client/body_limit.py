"""What the broker takes, asked for before a large body is sent.

A frame of more than 2 MiB, and twice the broker's `max_body`, ends the connection at the transport: no answer comes,
and whoever sent it would believe that nobody is there. What is smaller and too large all the same is answered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import broker
from titanic.errors import InvalidRequest

Body = bytes | str

LARGE = 1 << 20
"""Bytes of a body up to which the broker is not asked."""


class Limits:
    """What one broker says of itself. Others than this project's need not say anything."""

    def __init__(self, client: broker.Client) -> None:
        self._client = client
        self._document: dict[str, Any] | None = None
        """What `mmi.broker` answered; empty when it is not of this project."""

    def is_ours(self, timeout: float | None = None, retries: int | None = None) -> bool:
        """Whether the broker is one of this project. Raises broker.TimedOut."""
        if self._document is None:
            self._document = self._ask(timeout, retries)
        return bool(self._document)

    def check(self, body: Sequence[Body]) -> None:
        """Raise InvalidRequest for a body that the broker would not take. When nobody answers, that is found out by
        sending it."""
        size = sum(map(frame_size, body))
        if size <= LARGE or not self._passes(size):
            return
        self._document = None  # it may have been started anew, with another limit
        if most := self._passes(size):
            raise InvalidRequest(
                f"body has {size} bytes",
                f"the broker at {self._client.endpoint} takes at most {most}",
                "send it in parts, or start the broker with a larger --max-body",
            )

    def _passes(self, size: int) -> int:
        """The most that the broker takes, if it is less than that, else 0."""
        try:
            if not self.is_ours(retries=0):
                return 0
        except broker.TimedOut:
            return 0
        return self.most if size > self.most else 0

    @property
    def most(self) -> int:
        """The most that the broker takes, if that is known by now, else 0."""
        limits = (self._document or {}).get("limits")
        most = limits.get("max_body") if isinstance(limits, dict) else None
        return most if isinstance(most, int) else 0

    def _ask(self, timeout: float | None, retries: int | None) -> dict[str, Any]:
        try:
            (frame,) = self._client.call(b"mmi.broker", b"", timeout=timeout, retries=retries)
            document = json.loads(frame)
        except (broker.RemoteError, ValueError):  # 501, or something else
            return {}
        return document if isinstance(document, dict) else {}


def frame_size(frame: Any) -> int:
    """Bytes of a frame. What is none is found out by sending it, too."""
    if isinstance(frame, str):
        return len(frame.encode())
    return len(frame) if isinstance(frame, (bytes, bytearray, memoryview)) else 0
