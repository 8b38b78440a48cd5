"""Which of many sockets have input.

`zmq_poll` looks at every socket whenever it is called: 130 µs for three hundred, which a Titanic apart from its
broker has. Here the kernel is asked (epoll), and only those are looked at of which it tells: 0.3 µs, however many
there are. The price is a rule of ZMQ_FD that is easily broken: it becomes readable when something arrives at a socket
that had nothing, and whatever is done with the socket may take that in. So each socket is to be looked at with
`has_input` after it was used, before anybody waits for it again.
"""

from __future__ import annotations

import select
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import zmq

Socket = zmq.Socket[bytes]
Owner = TypeVar("Owner")

_get: Any = zmq.backend.Socket.get
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


class Poller(Generic[Owner]):
    """Sockets of owners, and plain files (None is their owner)."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._owners: dict[int, Owner | None] = {}
        self._sockets: dict[Owner, dict[Socket, int]] = {}
        """With their file descriptors: those of closed sockets can't be asked for any more."""
        self._events: dict[Socket, int] = {}
        """What was last seen of each."""

    def add_file(self, descriptor: int) -> None:
        """Wait for this file, too."""
        self._owners[descriptor] = None
        self._epoll.register(descriptor, select.EPOLLIN)

    def set(self, owner: Owner, sockets: Iterable[Socket]) -> None:
        """The owner has these sockets now, and no others. Ask `has_input`, as after any use of them."""
        before, now = self._sockets.get(owner, {}), list(sockets)
        for socket in [socket for socket in before if socket not in now]:
            descriptor = before.pop(socket)
            del self._events[socket]
            if self._owners.get(descriptor) is not owner:
                continue  # it was closed, and the number is another's by now
            del self._owners[descriptor]
            with suppress(OSError):  # it was closed, and the kernel has forgotten it
                self._epoll.unregister(descriptor)
        for socket in now:
            if socket not in before:
                descriptor = before[socket] = socket.FD
                self._events[socket] = 0
                self._owners[descriptor] = owner
                self._epoll.register(descriptor, select.EPOLLIN)
        self._sockets[owner] = before

    def has_input(self, owner: Owner) -> bool:
        """Whether there is a message at one of its sockets, or one can be written to now, or cannot any more: its
        connection has come or gone. If not, `wait` will tell when that happens."""
        for socket in self._sockets.get(owner, ()):
            events = _get(socket, _EVENTS)
            if events & _POLLIN:
                return True
            if events != self._events[socket]:
                self._events[socket] = events
                return True
        return False

    def wait(self, milliseconds: int | None) -> list[Owner | None]:
        """Owners that may have input now, or None for a file, after so many milliseconds at most (None: any time)."""
        owners = self._owners
        events = self._epoll.poll(None if milliseconds is None else milliseconds / 1000)
        return [owners[descriptor] for descriptor, _ in events if descriptor in owners]

    def close(self) -> None:
        """Forget all of them."""
        self._epoll.close()
