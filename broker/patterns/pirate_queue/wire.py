"""Simple and Paranoid Pirate on the wire (Guide, chapter 4; RFC 6, PPP): what a queue and its workers say.

`''` is an empty frame and `[…]` the client's address stack. Simple workers are REQ sockets, paranoid ones DEALER
sockets; simple peers send no heartbeats.

    message                      paranoid          simple
    READY      worker → queue    01                '' 01
    REQUEST    queue → worker    […] '' body…      '' […] '' body…
    REPLY      worker → queue    […] '' body…      '' […] '' body…
    HEARTBEAT  both ways         02                –

A worker is silent while it works: the Guide's queue takes any message of a worker for "I am free", and the Guide's
worker, which does one thing at a time, cannot send any then. So a busy worker is never declared dead.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.mdp import Command, Frames, WorkerDialect
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
