"""A client that threads share: each has connections of its own, since one thread at a time may use a connection.

They close when their thread ends, or when somebody closes the client.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence

from broker import Curve, named
from titanic.client.calls import Calls
from titanic.client.methods import Methods
from titanic.client.wire import BlockingWire


class MethodsOfThreads:
    """The methods for each thread that asks for them, on a wire of its own."""

    def __init__(
        self, endpoint: str | Sequence[str], timeout: float, retries: int, version: str | None, curve: Curve | None
    ) -> None:
        self._settings = endpoint, timeout, retries, version, curve
        self._tries = timeout, retries
        self._several = len(named(endpoint)) > 1
        self._released_keys: deque[str] = deque()
        self._wires: weakref.WeakSet[BlockingWire] = weakref.WeakSet()
        """Those of threads that have not ended: a thread that ends drops its own."""
        self._guard = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Close all connections. Any thread may ask."""
        with self._guard:
            self._closed = True
            wires = list(self._wires)
        for wire in wires:
            wire.close()

    def new(self) -> Methods:
        """For a thread that has none yet. It drops them when it ends."""
        wire = BlockingWire(*self._settings)
        with self._guard:
            self._wires.add(wire)
            if self._closed:
                wire.close()  # whoever uses it hears that it is closed
        return Methods(Calls(wire, *self._tries), self._released_keys, several=self._several)
