"""The poll loop: it runs any number of channels in one thread and sleeps until the next deadline.

The loop uses only the methods of `Channel`. Other threads reach the loop's thread with `call`; that and `stop` are the
only methods that they may use.

It can also run inside another loop, which waits in its place and calls `turn` when `descriptor` is readable, or after
the time that `turn` returned.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable
from threading import get_ident
from typing import Any, Generic, TypeVar

import zmq

from broker.core.mdp import Action
from broker.core.timers import Timers
from broker.io.sockets import Socket

log = logging.getLogger(__name__)

Owner = TypeVar("Owner")

_get: Any = zmq.backend.Socket.get
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)

TURNS = 4
"""How often channels get a turn in one round, because of what other channels did, before the sockets are polled
again."""

BEHIND = 16
"""Calls that may wait."""


class Channel:
    """A core and the sockets it speaks through. By default it has none, and nothing to do.

    Each is flushed in every round, and ticked and flushed again when it is due. Of many channels that are alike, a
    worker's connections for example, most are idle most of the time: these have `rests = True` and are skipped until
    there is input, their deadline comes, or `Loop.touch` is called.
    """

    rests = False

    def sockets(self) -> Iterable[Socket]:
        """The sockets to poll for input. The loop asks again when `changed` is true."""
        return ()

    def changed(self) -> bool:
        """Return whether `sockets` would return others than at the last call."""
        return False

    def drain(self, now: float) -> bool:
        """Take in what has arrived. Return whether there may be more."""
        return False

    def tick(self, now: float) -> None:
        """Let the core do what is due."""

    def flush(self, now: float) -> None:
        """Send the core's output, and pass on its events."""

    def next_deadline(self) -> float | None:
        """Return when `tick` is due; None: at no time."""
        return None

    def close(self) -> None:
        """Close the sockets."""


class Poller(Generic[Owner]):
    """Finds which of many sockets have input. Each has an owner; the owner of a plain file is None.

    `zmq_poll` checks every socket at every call: 130 µs for three hundred, as a Titanic apart from its broker has. Here
    the kernel is asked, and only the sockets that it reports are checked: 0.3 µs, however many there are. The price is
    a rule of ZMQ_FD that is easily broken: it becomes readable when something arrives at a socket that had nothing, and
    any use of the socket may consume that. So check each socket with `has_input` after it was used, before you wait for
    it again.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._closed = False
        self._sockets: dict[Owner, dict[Socket, int]] = {}
        """With their file descriptors: a closed socket cannot report its own."""
        self._events: dict[Socket, int] = {}
        """The last events of each."""

    @property
    def descriptor(self) -> int:
        """A file that is readable while some socket may have input: for a loop that waits for more than that."""
        return self._selector.fileno()  # epoll and kqueue have one

    def watch(self, descriptor: int, owner: Owner | None, ready: dict[int, int] | None, events: int) -> None:
        """Wait for events of a descriptor that is not a ZeroMQ socket, and put them into `ready`, if that is given."""
        if self._closed:
            return
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, (owner, ready))
        else:
            self._selector.register(descriptor, events, (owner, ready))

    def unwatch(self, descriptor: int) -> None:
        """Stop waiting; call this before closing the descriptor."""
        if not self._closed and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def set(self, owner: Owner, sockets: Iterable[Socket]) -> None:
        """Set the sockets of an owner. Call `has_input` next, as after any use of them."""
        before, now = self._sockets.get(owner, {}), list(sockets)
        for socket in [socket for socket in before if socket not in now]:
            descriptor = before.pop(socket)
            del self._events[socket]
            key = self._selector.get_map().get(descriptor)
            if key is not None and key.data[0] is owner:  # else it was closed, and the number is another's by now
                self._selector.unregister(descriptor)
        for socket in now:
            if socket not in before:
                descriptor = before[socket] = socket.FD
                self._events[socket] = 0
                if descriptor in self._selector.get_map():  # of a socket that was closed
                    self._selector.unregister(descriptor)
                self._selector.register(descriptor, selectors.EVENT_READ, (owner, None))
        self._sockets[owner] = before

    def has_input(self, owner: Owner) -> bool:
        """Return whether one of its sockets has a message, or has become writable or unwritable: its connection came or
        went. If not, `wait` reports when that happens."""
        for socket in self._sockets.get(owner, ()):
            events = _get(socket, _EVENTS)
            if events & _POLLIN:
                if events & _POLLOUT:  # else what was known stays: its loss is reported when there are no more messages
                    self._events[socket] = _POLLOUT
                return True
            if events != self._events[socket]:
                self._events[socket] = events
                return True
        return False

    def wait(self, seconds: float | None) -> list[Owner | None]:
        """Wait `seconds` at most (None: without limit) for owners that may have input, or None for a file."""
        found = []
        for key, events in self._selector.select(seconds):
            owner, ready = key.data
            if ready is not None:
                ready[key.fd] = ready.get(key.fd, 0) | events
            found.append(owner)
        return found

    def close(self) -> None:
        """Forget all sockets."""
        self._closed = True
        self._selector.close()


Call = tuple[Action, tuple[Any, ...]]
"""A function, and its arguments."""


class Loop:
    """Runs channels until `stop`."""

    def __init__(self) -> None:
        self._channels: list[Channel] = []
        self._restless: dict[Channel, float | None] = {}
        """With their deadlines after the last round."""
        self._touched: dict[Channel, None] = {}
        self._resting: Timers[Any] = Timers()
        """Their deadlines."""
        self._changed: dict[Channel, None] = {}
        """Channels with changed `sockets`."""
        self._served: dict[Channel, None] = {}
        """Resting channels that had a turn in this round."""
        self._unread: dict[Channel, None] = {}
        """Channels with input that no poll reports."""
        self._poller: Poller[Channel] = Poller()
        self._calls: deque[Call] = deque()
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        self._guard = threading.RLock()  # a signal handler may come in while its own thread holds it
        self._signalled = False  # a wake-up byte is on its way: one is enough
        self._running = False  # stays true after the end
        self._closed = False  # the pipe is gone, and its number may be another file's by now
        self._stopping = False
        self._thread = 0  # of `run`
        self._poller.watch(self._wake_read, None, None, selectors.EVENT_READ)

    def add(self, channel: Channel) -> None:
        """Run a channel, from the loop's thread or before the loop runs."""
        self._channels.append(channel)
        if channel.rests:
            self._touched[channel] = None
        else:
            self._restless[channel] = 0.0
        self._changed[channel] = None

    def remove(self, channel: Channel) -> None:
        """Close a channel and stop running it. Call this in the loop's thread."""
        self._channels.remove(channel)
        for known in (self._restless, self._touched, self._changed, self._unread, self._served):
            known.pop(channel, None)
        self._resting.cancel(channel)
        self._poller.set(channel, ())
        channel.close()

    def touch(self, channel: Channel) -> None:
        """Give a resting channel a turn: something was done to it. Call this in the loop's thread."""
        self._touched[channel] = None

    def drain_again(self, channel: Channel) -> None:
        """Drain a channel in the next round: it has input that no poll reports. Call this in the loop's thread."""
        self._unread[channel] = None

    def watch(self, descriptor: int, channel: Channel, ready: dict[int, int], events: int) -> None:
        """Drain the channel at these events of a descriptor (those of `selectors`), which are put into `ready`."""
        if self._thread and get_ident() != self._thread:  # not every poll notices a change while it waits
            self.call(self._poller.watch, descriptor, channel, ready, events)
        else:
            self._poller.watch(descriptor, channel, ready, events)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching; call this before closing the descriptor."""
        self._poller.unwatch(descriptor)

    def call(self, function: Action, *args: Any) -> None:
        """Call a function in the loop's thread, soon. Any thread may use this. An exception is logged, and the loop
        goes on."""
        self._calls.append((function, args))
        if get_ident() == self._thread:
            return  # it reads calls before it waits
        with self._guard:
            if not self._signalled and not self._closed:
                self._signalled = True
                os.write(self._wake_write, b"!")

    def perform(self, function: Action, *args: Any) -> None:
        """Call a function at once in the loop's thread, from any other thread soon."""
        if get_ident() == self._thread:
            function(*args)
        else:
            self.call(function, *args)

    @property
    def ended(self) -> bool:
        """Whether it has run and runs no more."""
        return self._closed

    @property
    def behind(self) -> bool:
        """Whether many calls wait for the loop's thread, which is busy. Any thread may read this."""
        return len(self._calls) > BEHIND

    def stop(self) -> None:
        """End `run` after the present round, or close a loop that never ran. Any thread may call this."""
        self.call(self._set_stopping)
        self.close_unless_running()

    def close_unless_running(self) -> None:
        """Close the channels of a loop that never ran; a later `run` returns at once."""
        if self.begin():
            self.close()  # without the guard: a channel may wait for a thread of its own, which may be in `call`

    def run(self) -> None:
        """Run until `stop`, then close all channels."""
        if not self.begin():
            return
        # A signal that comes just before a poll, or to another thread, does not interrupt it: the wake-up pipe does.
        here = threading.current_thread() is threading.main_thread()
        before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False) if here else -1
        self._thread = get_ident()
        try:
            while not self._stopping:
                self._round()
        finally:
            self._thread = 0
            if here:
                signal.set_wakeup_fd(before)
            self.close()

    # -- in another loop -------------------------------------------------------------------------------------

    @property
    def descriptor(self) -> int:
        """A file that is readable when there is something to do."""
        return self._poller.descriptor

    def begin(self) -> bool:
        """Claim the loop, to run or close it. Return False if it was claimed before."""
        with self._guard:
            before, self._running = self._running, True
            return not before

    def turn(self) -> float | None:
        """Do what can be done now. Return the seconds until there is more to do, even without input; None: at no
        time."""
        self._thread = get_ident()
        try:
            self._round(waits=False)
        finally:
            self._thread = 0
        return 0.0 if self._changed or self._unread or self._touched or self._calls else self._timeout()

    @property
    def stopping(self) -> bool:
        """Whether it is to be closed now."""
        return self._stopping

    def close(self) -> None:
        """Close all channels, after the last turn."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._poller.close()
        for channel in self._channels:
            channel.close()

    def _set_stopping(self) -> None:
        self._stopping = True

    def _round(self, *, waits: bool = True) -> None:
        """Poll once, and do everything that can be done now."""
        for channel in self._changed:
            self._poller.set(channel, channel.sockets())
            if self._poller.has_input(channel):
                self._unread[channel] = None
        self._changed = {}
        inputs, self._unread = self._unread, {}
        at_once = inputs or self._touched or self._calls or not waits
        for owner in self._poller.wait(0 if at_once else self._timeout()):
            if owner is not None:
                inputs[owner] = None
                continue
            with self._guard:
                os.read(self._wake_read, 64)
                self._signalled = False
        now = time.monotonic()
        for channel in inputs:
            if channel.drain(now):
                self._unread[channel] = None
            if channel.rests:
                self._touched[channel] = None
        if (wake_at := self._resting.wake_at) is not None and wake_at <= now:
            self._touched.update(dict.fromkeys(self._resting.due(now)))
        for _ in range(TURNS):
            self._take_turns(now)
            if not self._calls and not self._touched:
                break
        served, self._served = self._served, {}
        for channel in (*served, *self._restless):  # no poll reports what has come while a channel had its turn
            if channel.changed():
                self._changed[channel] = None
            elif channel not in self._unread and self._poller.has_input(channel):
                self._unread[channel] = None

    def _take_turns(self, now: float) -> None:
        """Run the functions of `call`, then give the channels a turn, resting ones first: what they make others send
        goes out at once."""
        for _ in range(len(self._calls)):
            function, args = self._calls.popleft()
            try:
                function(*args)
            except Exception:
                log.exception("a bug in this program: a call failed; the event loop continues")
        touched, self._touched = self._touched, {}
        for channel in touched:
            deadline = self._serve(channel, now)
            if deadline is None:
                self._resting.cancel(channel)
            else:
                self._resting.set(channel, deadline)
            self._served[channel] = None
        for channel in list(self._restless):  # one may add another, or remove it
            if channel in self._restless:
                self._restless[channel] = self._serve(channel, now)

    @staticmethod
    def _serve(channel: Channel, now: float) -> float | None:
        """Flush a channel and do what is due. Return its next deadline."""
        channel.flush(now)
        deadline = channel.next_deadline()
        if deadline is not None and deadline <= now:
            channel.tick(now)
            channel.flush(now)
            deadline = channel.next_deadline()
        return deadline

    def _timeout(self) -> float | None:
        """Return the seconds to the next deadline. The kernel waits a little longer, for whole milliseconds."""
        first = self._resting.wake_at
        for when in self._restless.values():
            if when is not None and (first is None or when < first):
                first = when
        return None if first is None else max(0.0, first - time.monotonic())
