"""Simple and Paranoid Pirate without sockets (Guide, chapter 4; RFC 6, PPP): their messages, and the queue.

`''` is an empty frame and `[…]` the client's address stack. Simple workers are REQ sockets, paranoid ones DEALER
sockets; simple peers send no heartbeats.

    message                      paranoid          simple
    READY      worker → queue    01                '' 01
    REQUEST    queue → worker    […] '' body…      '' […] '' body…
    REPLY      worker → queue    […] '' body…      '' […] '' body…
    HEARTBEAT  both ways         02                –

A worker is silent while it works: the Guide's queue takes any message of a worker for "I am free", and the Guide's
worker, which does one thing at a time, cannot send any then. So a busy worker is never declared dead.

Each request goes to the least recently used worker. `TRANSITIONS` says what a worker's messages do:
`welcome` puts a worker at the end of those that are ready. An unknown worker that sends a heartbeat or a reply has
registered at an earlier queue: so a queue may be restarted and need not know its workers. A dead worker's request is
not sent to another worker: the client, a Lazy Pirate, asks again. A simple worker that is ready is believed to be there
until the transport cannot find it, one that has a request is unknown until it answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Any, NamedTuple

from broker.config import check, check_heartbeats
from broker.core.mdp import Command, Core, Frames, Peer, WorkerDialect
from broker.core.timers import Timers, earliest
from broker.patterns.request_reply.core import open_envelope

READY, HEARTBEAT = b"\1", b"\2"


class PirateDialect(WorkerDialect):
    """How one kind of pirate frames its messages, seen from both sides."""

    usual_interval = 1.0

    def __init__(self, name: str, prefix: tuple[bytes, ...], *, heartbeats: bool) -> None:
        codes = {Command.READY: READY, Command.FINAL: b""}
        if heartbeats:
            codes[Command.HEARTBEAT] = HEARTBEAT
        super().__init__(name, prefix, codes, silent_when_busy=True)
        self.heartbeats = heartbeats
        self.prefix = list(prefix)

    def encode(self, command: Command, rest: Sequence[bytes] = ()) -> Frames:
        """A worker's message. READY has no place for a service; a reply is its envelope and a frame at least."""
        signal = self._codes[command][-1]
        if signal:
            return [*self.prefix, signal]
        no_body = not rest or (rest[-1] == b"" and open_envelope(list(rest)) is None)
        return [*self.prefix, *rest, *([b""] if no_body else [])]

    def parse(self, frames: Frames) -> tuple[Command, Frames] | None:
        """A message from a queue: HEARTBEAT or REQUEST; None when it is neither."""
        rest = frames[len(self.prefix) :]
        if not rest or frames[: len(self.prefix)] != self.prefix:
            return None
        return (Command.HEARTBEAT, []) if self.heartbeats and rest == [HEARTBEAT] else (Command.REQUEST, rest)

    def parse_worker(self, frames: Frames) -> tuple[Command, Frames] | None:
        """A message from a worker: READY, HEARTBEAT or a reply (FINAL) with its envelope; None: none of them."""
        rest = frames[len(self.prefix) :]
        if frames[: len(self.prefix)] != self.prefix:
            return None
        if len(rest) == 1:
            command = self.commands.get(rest[0])
            return (command, []) if rest[0] and command else None
        return (Command.FINAL, rest) if rest and rest[0] and open_envelope(rest) else None

    def open_request(self, rest: Frames) -> tuple[Frames, Frames]:
        """The client's address stack with its `''`, which may be missing (RFC 6), and the body."""
        return open_envelope(rest) or ([], rest)


PARANOID = PirateDialect("paranoid", (), heartbeats=True)
SIMPLE = PirateDialect("simple", (b"",), heartbeats=False)


CLIENT, WORKER = "client", "worker"
"""The sides."""


class At(NamedTuple):
    """A peer: its side, and its identity there."""

    side: str
    identity: bytes


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """What a pirate queue allows and how long it waits. Times are seconds."""

    heartbeat_interval: float = 1.0
    """Workers get a HEARTBEAT this often; simple ones none."""
    liveness: int = 3
    """A worker is gone when nothing came from it for this many intervals."""
    request_expiry: float = 60.0
    """A request that no worker took for this long is dropped: its client has long asked again, or left."""
    max_waiting: int = 10_000
    """Requests waiting for a worker; more are dropped, and their clients ask again."""
    max_workers: int = 10_000
    """Workers; what more of them say is ignored."""

    def __post_init__(self) -> None:
        check_heartbeats(self.heartbeat_interval, self.liveness)
        check(self.request_expiry > 0, f"request_expiry is {self.request_expiry}; it must be more than 0")
        check(self.max_waiting > 0, f"max_waiting is {self.max_waiting}; it must be 1 or more")
        check(self.max_workers > 0, f"max_workers is {self.max_workers}; it must be 1 or more")

    def __reduce__(self) -> tuple[Any, ...]:  # a compiled frozen class cannot be filled after it was created
        return type(self), astuple(self)


class PirateState(Enum):
    """Where a worker stands; one that has no state is unknown."""

    READY = "ready"
    BUSY = "busy"


class _Waiting(NamedTuple):
    arrived: float
    frames: Frames


class PirateQueueCore(Core):
    """Clients on one side, workers of one kind on the other."""

    def __init__(
        self, config: QueueConfig | None = None, *, dialect: PirateDialect = PARANOID, now: float = 0.0
    ) -> None:
        super().__init__()
        self.config = config or QueueConfig()
        self.dialect = dialect
        self.malformed = 0
        """Messages that were no request, no reply and no signal."""
        self.dropped = 0
        """Requests and replies that were dropped: no room, too late, or the other side is gone."""
        self._workers: dict[bytes, PirateState] = {}
        self._ready: dict[bytes, None] = {}
        """In the order of their last use; a dictionary, as members leave from its middle too."""
        self._silence: Timers[bytes] = Timers()
        self._beat_at = now + self.config.heartbeat_interval
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        """Requests that wait for a worker."""
        return len(self._waiting)

    def count(self, state: PirateState) -> int:
        """Workers in a state."""
        ready = len(self._ready)
        return ready if state is PirateState.READY else len(self._workers) - ready

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        assert isinstance(peer, At)
        side, identity = peer
        if side == CLIENT:
            self._request(identity, frames, now)
        elif (parsed := self.dialect.parse_worker(frames)) is None:
            self.malformed += 1
        elif identity in self._workers or len(self._workers) < self.config.max_workers:
            command, rest = parsed
            if command is Command.FINAL:
                self._output.append((At(CLIENT, rest[0]), rest[1:]))
            act = TRANSITIONS[self._workers.get(identity), command]
            act(self, identity)
            if self.dialect.heartbeats:
                self._silence.set(identity, now + self.config.heartbeat_interval * self.config.liveness)
            self._dispatch()

    def tick(self, now: float) -> None:
        """Forget silent workers, send heartbeats, drop requests that waited too long."""
        for identity in self._silence.due(now):
            self.forget(identity)
        if self.dialect.heartbeats and now >= self._beat_at:
            self._beat_at = now + self.config.heartbeat_interval
            self._output += [(At(WORKER, identity), [HEARTBEAT]) for identity in self._workers]
        while self._waiting and now >= self._waiting[0].arrived + self.config.request_expiry:
            self._waiting.popleft()
            self.dropped += 1

    def next_deadline(self) -> float | None:
        beat_at = self._beat_at if self.dialect.heartbeats and self._workers else None
        expires_at = self._waiting[0].arrived + self.config.request_expiry if self._waiting else None
        return earliest(self._silence.next(), beat_at, expires_at)

    # -- what a shell does with it ---------------------------------------------------------------------------

    def undeliverable(self, peer: Peer, frames: Frames, now: float) -> None:
        """The transport knows that a peer is gone. What a worker should have got goes to the next one."""
        assert isinstance(peer, At)
        side, identity = peer
        if side == CLIENT:
            self.dropped += 1
            return
        self.forget(identity)
        if frames != [HEARTBEAT]:
            self._waiting.appendleft(_Waiting(now, frames[len(self.dialect.prefix) :]))
            self._dispatch()

    def _request(self, client: bytes, frames: Frames, now: float) -> None:
        if open_envelope(frames) is None:  # a worker could not separate its body from its addresses
            self.malformed += 1
        elif len(self._waiting) >= self.config.max_waiting:
            self.dropped += 1
        else:
            self._waiting.append(_Waiting(now, [client, *frames]))
            self._dispatch()

    def _dispatch(self) -> None:
        while self._waiting and self._ready:
            identity = next(iter(self._ready))
            del self._ready[identity]
            if self.dialect.heartbeats:
                self._workers[identity] = PirateState.BUSY
            else:
                del self._workers[identity]  # if it dies now, nothing will report it
            self._output.append((At(WORKER, identity), [*self.dialect.prefix, *self._waiting.popleft().frames]))

    def _welcome(self, identity: bytes) -> None:
        if identity not in self._workers and self.dialect.heartbeats:
            self._output.append((At(WORKER, identity), [HEARTBEAT]))  # so that it knows at once that we are here
        self._workers[identity] = PirateState.READY
        self._ready[identity] = None

    def _keep(self, identity: bytes) -> None:
        """Nothing changes but the time of its last message."""

    def forget(self, identity: bytes) -> None:
        """Forget a worker: it is silent, or its connection has ended."""
        self._workers.pop(identity, None)
        self._ready.pop(identity, None)
        self._silence.cancel(identity)


_welcome, _keep = PirateQueueCore._welcome, PirateQueueCore._keep

TRANSITIONS: dict[tuple[PirateState | None, Command], Callable[[PirateQueueCore, bytes], None]] = {
    (None, Command.READY): _welcome,
    (None, Command.HEARTBEAT): _welcome,
    (None, Command.FINAL): _welcome,
    (PirateState.READY, Command.READY): _keep,
    (PirateState.READY, Command.HEARTBEAT): _keep,
    (PirateState.READY, Command.FINAL): _keep,
    (PirateState.BUSY, Command.READY): _welcome,
    (PirateState.BUSY, Command.HEARTBEAT): _keep,
    (PirateState.BUSY, Command.FINAL): _welcome,
}
"""What becomes of a worker that says something. A reply is forwarded in every state."""
