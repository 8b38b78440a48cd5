"""A client that threads share: each has connections of its own, since one thread at a time may use a connection.

They close when their thread ends, or when somebody closes the client.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

from broker import Curve
from titanic.client.calls import Calls


class CallsOfThreads:
    """The `Calls` of each thread that asks for them."""

    def __init__(
        self, endpoint: str | Sequence[str], timeout: float, retries: int, version: str, curve: Curve | None
    ) -> None:
        self._settings = endpoint, timeout, retries, version, curve
        self._local = threading.local()
        self._all: weakref.WeakSet[Calls] = weakref.WeakSet()
        """Those of threads that have not ended: a thread that ends drops its own."""
        self._guard = threading.Lock()
        self._closed = False

    def own(self) -> Calls:
        """Those of the calling thread."""
        try:
            calls: Calls = self._local.calls
        except AttributeError:
            calls = self._local.calls = self._new()
        return calls

    def close(self) -> None:
        """Close all connections. Any thread may ask."""
        with self._guard:
            self._closed = True
            every = list(self._all)
        for calls in every:
            calls.close()

    def _new(self) -> Calls:
        calls = Calls(*self._settings)
        with self._guard:
            self._all.add(calls)
            if self._closed:
                calls.close()  # whoever uses it hears that it is closed
        return calls
