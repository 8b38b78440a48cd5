"""Requests in all states: support/lived.py."""

from support.lived import lived

__all__ = ["lived"]
