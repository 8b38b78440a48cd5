"""The request that a handler is working on, as its worker knows it: kept in a context variable while the handler runs,
in the handler's thread or task.

A queue may give a request a context, of which nothing is known here. It comes with the delivery (`Job.context`), and a
handler can say how far it is, and is told when nobody wants the reply any more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Protocol

MOST_PROGRESS = 1024
"""Bytes of what a handler says about its progress."""


class Teller(Protocol):
    """What brings a handler's progress to its broker."""

    def progress(self, delivery: Delivery) -> None:
        """Send what the handler has said last (`take_progress`), soon. Any thread may ask."""


class Delivery:
    """One delivery of a request to a handler. Any thread may call its methods."""

    is_cancelled = False
    """Whether nobody wants the reply any more: the request was closed, or its time is over."""
    known: object = None
    """What a program has made of the context, so that it is read once."""
    _news: bytes | None = None

    def __init__(self, context: bytes, teller: Teller | None = None, number: int = 0) -> None:
        """`teller`: None: nobody is told about progress. `number`: the worker's, of the job."""
        self.context = context
        """What the queue has said of the request, a JSON object; empty: nothing."""
        self.number = number
        self._teller = teller
        self._callbacks: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """Nobody wants the reply any more."""
        self.is_cancelled = True
        self._call_back()

    def on_cancel(self, function: Callable[[], None]) -> None:
        """Have a function called once when this is cancelled, at once if it is. It is called in the worker's thread,
        and must not wait."""
        self._callbacks.append(function)
        if self.is_cancelled:
            self._call_back()

    def progress(self, text: bytes) -> None:
        """Tell the broker how far it is. What is said faster than it can be sent is replaced by what is said next."""
        if self._teller is None:
            return
        waits, self._news = self._news is not None, text[:MOST_PROGRESS]
        if not waits:
            self._teller.progress(self)

    def take_progress(self) -> bytes | None:
        """What was said last; None: nothing since the last call."""
        text, self._news = self._news, None
        return text

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                function = self._callbacks.pop()
            except IndexError:  # another thread was quicker
                return
            with suppress(Exception):  # whoever wanted to know may be gone; the worker goes on
                function()


DELIVERY: ContextVar[Delivery | None] = ContextVar("DELIVERY", default=None)
"""The delivery that is handled here; None: this is no handler of a worker."""
