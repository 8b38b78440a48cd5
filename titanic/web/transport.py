"""A transport that sends an answer in one piece.

uvicorn writes the head of an answer and then its body. Each write is a system call, a packet, and a read for the other
side. Here a small write waits for the next one, until the end of the loop's iteration at most.
"""

from __future__ import annotations

import asyncio
from typing import Any

SMALL = 16 << 10
"""Writes below this size are joined. Larger ones gain nothing from it, and would be copied."""


class JoiningTransport(asyncio.Transport):
    """A transport with the methods that uvicorn uses."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held = b""
        """A write that waits for the next one."""
        self.is_closing = transport.is_closing  # type: ignore[method-assign]  # called for each request

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data, or hold it for the next write."""
        if self._held and len(data) < SMALL:
            data, self._held = self._held + data, b""
            self._transport.write(data)
        elif len(data) < SMALL:
            self._held = bytes(data)
            self._loop.call_soon(self.flush)
        else:
            self.flush()
            self._transport.write(data)

    def flush(self) -> None:
        """Send held data."""
        if self._held:
            held, self._held = self._held, b""
            if not self.is_closing():
                self._transport.write(held)

    def close(self) -> None:
        """Close the connection when all data is sent."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._held = b""
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Pause receiving."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume receiving."""
        self._transport.resume_reading()
