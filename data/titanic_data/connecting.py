"""A client that waits for an absent queue as long as its user has said."""

from __future__ import annotations

import math

from titanic import Client

ANSWER = 5.0
"""Seconds that an answer may take before the message is sent again."""


def connect(endpoint: str, seconds: float) -> Client:
    """A client whose tries take `seconds` in all."""
    tries = max(1, math.ceil(seconds / ANSWER))
    return Client(endpoint, timeout=max(seconds / tries, 0.1), retries=tries - 1)
