"""Lines of TCP between processes, all carried by one thread: each can be cut, stalled, deaf or down.

    cut      connections break (RST); new ones can be made
    stalled  nothing comes through, either way; connections stay, and new ones seem to be made
    deaf     what is said arrives, but no answer comes back
    down     connections break, and new ones are refused

`Heard` notes when the far end of some lines was silent for long.
"""

from __future__ import annotations

import queue
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

_CHUNK = 1 << 16
_MOST = 1 << 18
"""Bytes that one direction of a connection holds; then nothing more is read."""
_ABORT = struct.pack("ii", 1, 0)
STATES = ("up", "deaf", "stalled", "down")
"""The best one first."""


class _Way:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, target: socket.socket, *, answers: bool) -> None:
        self.source = source
        self.target = target
        self.answers = answers
        self.held = bytearray()


class Heard:
    """When the far end of one or several lines was heard."""

    def __init__(self, long: float) -> None:
        """`long`: seconds of silence that are noted."""
        self._long = long
        self.last = time.monotonic()
        self.silences: list[tuple[float, float]] = []

    def answered(self) -> None:
        now = time.monotonic()
        if now - self.last > self._long:
            self.silences.append((self.last, now))
        self.last = now


class Line:
    """From `port`, where others connect, to `target`, a port too; both on the loopback."""

    def __init__(self, lines: Lines, target: int, heard: Heard | None) -> None:
        self.target = target
        self.heard = heard
        self.state = "up"
        self.port = 0
        self._lines = lines
        self._asked: dict[str, str] = {}
        self._listener: socket.socket | None = None
        self._pairs: dict[socket.socket, tuple[_Way, _Way]] = {}
        lines.do(self._listen)

    # -- what others ask; it is done when they return ----------------------------------------------------------

    def set(self, state: str, who: str = "") -> None:
        """Somebody wants the line to be in one of STATES. Of what several want, it is in the worst."""
        self._asked[who] = state
        worst = max(self._asked.values(), key=STATES.index)
        self._lines.do(lambda: self._set(worst))

    def cut(self) -> None:
        """Break the connections that there are."""
        self._lines.do(self._cut)

    # -- in the thread ----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._lines.watch(listener, selectors.EVENT_READ if self.state != "stalled" else 0, self._accept)

    def _set(self, state: str) -> None:
        self.state = state
        if state == "down":
            if self._listener is not None:
                self._lines.watch(self._listener, 0, None)
                self._listener.close()
                self._listener = None
            self._cut()
        elif self._listener is None:
            self._listen()
        else:  # a connection that nobody takes waits in the kernel, and seems to be made
            self._lines.watch(self._listener, selectors.EVENT_READ if state != "stalled" else 0, self._accept)
        for one in [*self._pairs]:
            self._watch(one)

    def _cut(self) -> None:
        for one in [*self._pairs]:
            self._end(one, abort=True)

    def _accept(self, _: int) -> None:
        if self._listener is None:
            return  # it was closed since somebody was seen to come
        with suppress(OSError):
            here, _address = self._listener.accept()
            here.setblocking(False)
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there = socket.socket()
            there.setblocking(False)
            there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there.connect_ex(("127.0.0.1", self.target))
            ways = _Way(here, there, answers=False), _Way(there, here, answers=True)
            self._pairs[here], self._pairs[there] = ways, (ways[1], ways[0])
            self._watch(here)
            self._watch(there)

    def _watch(self, one: socket.socket) -> None:
        """Look at a connection's end for what may be read and written now."""
        pair = self._pairs.get(one)
        if pair is None:
            return
        out, back = pair
        events = 0
        if self._passes(out) and len(out.held) < _MOST:
            events |= selectors.EVENT_READ
        if self._passes(back) and back.held:
            events |= selectors.EVENT_WRITE
        self._lines.watch(one, events, lambda mask: self._ready(one, mask))

    def _passes(self, way: _Way) -> bool:
        return self.state == "up" or (self.state == "deaf" and not way.answers)

    def _ready(self, one: socket.socket, mask: int) -> None:
        pair = self._pairs.get(one)
        if pair is None:
            return
        out, back = pair
        try:
            if mask & selectors.EVENT_READ:
                data = one.recv(_CHUNK)
                if not data:
                    self._end(one, abort=False)
                    return
                out.held += data
                if out.answers and self.heard is not None:
                    self.heard.answered()
                self._send(out)
            if mask & selectors.EVENT_WRITE:
                self._send(back)
        except BlockingIOError:
            pass
        except OSError:
            self._end(one, abort=True)
            return
        self._watch(one)
        self._watch(out.target)

    def _send(self, way: _Way) -> None:
        if way.held:
            with suppress(BlockingIOError):
                del way.held[: way.target.send(way.held)]

    def _end(self, one: socket.socket, *, abort: bool) -> None:
        pair = self._pairs.get(one)
        if pair is None:
            return
        for way in pair:
            if not abort:
                with suppress(OSError):
                    self._send(way)
            end = way.source
            self._lines.watch(end, 0, None)
            self._pairs.pop(end, None)
            if abort:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            end.close()


class Lines:
    """The thread that carries them."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self._all: list[Line] = []
        self._watched: dict[socket.socket, int] = {}
        self._asked: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self.selector.register(self._woken, selectors.EVENT_READ, self._listen)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)
        self._thread.start()

    def add(self, target: int, heard: Heard | None = None) -> Line:
        """A new line to a port, which is up."""
        self._all.append(Line(self, target, heard))
        return self._all[-1]

    def do(self, what: Callable[[], None]) -> None:
        """Have something done in the thread."""
        done = threading.Event()
        self._asked.put((what, done))
        self._wake.send(b".")
        assert done.wait(30), "the lines' thread stands still"

    def watch(self, one: socket.socket, events: int, call: Callable[[int], None] | None) -> None:
        """From now on, look at a socket for these events only."""
        before = self._watched.get(one, 0)
        if events == before:
            return
        if not events:
            self.selector.unregister(one)
            del self._watched[one]
        elif before:
            self.selector.modify(one, events, call)
            self._watched[one] = events
        else:
            self.selector.register(one, events, call)
            self._watched[one] = events

    def close(self) -> None:
        for line in self._all:
            line.set("down", "the end")
        self._over = True
        self.do(lambda: None)
        self._thread.join()
        self.selector.close()
        self._wake.close()
        self._woken.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self, _: int) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        while not self._asked.empty():
            what, done = self._asked.get()
            what()
            done.set()

    def _run(self) -> None:
        while not self._over:
            for key, mask in self.selector.select():
                key.data(mask)
