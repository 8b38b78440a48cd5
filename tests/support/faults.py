"""What a test may find that must never be."""

from __future__ import annotations


class Lost(AssertionError):
    """Something acknowledged isn't there."""
