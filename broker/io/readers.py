"""ZeroMQ's sockets in an asyncio loop.

The descriptor of such a socket becomes readable when something comes to a socket that had nothing, and whatever is done
with the socket may take that in. So ask `has_input` after any use of the sockets.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from broker.io.channel import Pollable

_get: Any = zmq.backend.Socket.get
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


class Readers:
    """Has a loop call a function when something has come to one of some sockets."""

    def __init__(self, loop: AbstractEventLoop, call: Callable[[], object]) -> None:
        self._loop = loop
        self._call = call
        self._files: dict[Pollable, int] = {}
        """The sockets, and their descriptors: closed ones can't be asked for them any more."""

    def set(self, sockets: Iterable[Pollable]) -> None:
        """Look at these from now on, and at no others. Call this as soon as one was closed: its descriptor's number may
        be another file's at any time."""
        now = list(sockets)
        for socket in [socket for socket in self._files if socket not in now]:
            self._loop.remove_reader(self._files.pop(socket))
        for socket in now:
            if socket not in self._files:
                descriptor = self._files[socket] = socket.FD
                self._loop.add_reader(descriptor, self._call)

    def has_input(self) -> bool:
        """Whether something has come of which the loop will not tell."""
        return any(_get(socket, _EVENTS) & _POLLIN for socket in self._files)
