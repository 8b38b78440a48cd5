"""A connection that sends an answer in one piece.

uvicorn writes the head of an answer and then its body, and each is a system call, a packet, and something to read for
the other side. Here what is small waits for what follows it, until the end of the loop's turn at most.
"""

from __future__ import annotations

import asyncio
from typing import Any

SMALL = 16 << 10
"""Bytes that are sent together with others. More gain nothing from it, and would be copied."""


class JoiningTransport(asyncio.Transport):
    """A transport, with all that uvicorn asks of one."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held = b""
        """What waits for more."""
        self.is_closing = transport.is_closing  # type: ignore[method-assign]  # is called for each request

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it, or have it wait for the next."""
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
        """Let nothing wait."""
        if self._held:
            held, self._held = self._held, b""
            if not self.is_closing():
                self._transport.write(held)

    def close(self) -> None:
        """Close it when all is sent."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close it at once."""
        self._held = b""
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known about the connection."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Receive nothing for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on receiving."""
        self._transport.resume_reading()
