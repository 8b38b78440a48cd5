"""Cores, and the peers around them who say and hear raw frames: tests read as transcripts. A broker's:

    broker.said("worker", b"MDPW02", b"\\1", b"echo")       a peer sends a message
    broker.told("worker", b"MDPW02", b"\\5")                the next message for that peer is this one
    broker.told_nothing("worker")                          there is none
    broker.later(2.5)                                      the clock moves, and what is due is done

The invariants are checked after each step.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any
from unittest.mock import ANY

from support.broker_invariants import check

from broker.config import BrokerConfig
from broker.core.broker import BrokerCore
from broker.core.mdp import Core
from broker.core.worker import Job

CLIENT: Any = ANY
"""Stands for the client frame of a worker's REQUEST, which is the broker's business."""


class Clocked:
    """A core, and a clock that only moves when it is told to."""

    now = 100.0
    core: Core
    meets_deadlines = True
    """Whether none may lie in the past. A worker's session says so that something is due at once."""

    def later(self, seconds: float) -> None:
        """Move the clock as a loop would: from one deadline to the next."""
        end = self.now + seconds
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            assert deadline >= self.now - 1e-6 or not self.meets_deadlines, "a deadline was not met"
            self.now = max(self.now, deadline)
            self.core.tick(self.now)
            self.collect()
        self.now = end

    def jump(self, seconds: float) -> None:
        """Move the clock as if the process had stood still: one tick at the end."""
        self.now += seconds
        self.core.tick(self.now)
        self.collect()

    def collect(self) -> None:
        """Called after each tick."""


class SessionTranscript(Clocked):
    """A session with a broker, and the frames on its connections."""

    def __init__(self, session: Any) -> None:
        self.core = self.session = session
        self.session.tick(self.now)
        self.output: list[tuple[Any, list[bytes] | None]] = []

    def told(self, *frames: bytes, connection: int | None = None) -> None:
        self.session.receive(self.session.connection if connection is None else connection, list(frames), self.now)

    def next(self) -> tuple[Any, list[bytes] | None]:
        self.output += self.session.take_output()
        assert self.output, "nothing was said"
        return self.output.pop(0)

    def said(self, *frames: bytes) -> None:
        assert self.next() == (self.session.connection, list(frames))

    def said_nothing(self) -> None:
        self.output += self.session.take_output()
        assert self.output == []

    def closed(self, connection: int) -> None:
        assert self.next() == (connection, None)


class WorkerTranscript(SessionTranscript):
    """A worker's session, and the work that it is given."""

    meets_deadlines = False

    def job(self) -> Job:
        (job,) = self.session.take_jobs()
        return job

    def final(self, job: Job, *body: bytes) -> None:
        self.session.final(job.number, list(body), self.now)


class Transcript(Clocked):
    """One broker, any number of peers, and a clock that only moves when it is told to."""

    def __init__(self, **config: Any) -> None:
        self.now = 1000.0
        self.core = BrokerCore(BrokerConfig(**config), now=self.now)
        self._inboxes: dict[Any, deque[list[bytes]]] = defaultdict(deque)

    def said(self, peer: str, *frames: bytes) -> None:
        self.core.receive(peer, list(frames), self.now)
        self.collect()

    def told(self, peer: str, *frames: bytes) -> list[bytes]:
        """The message, for what `CLIENT` stands for in it."""
        assert self._inboxes[peer], f"{peer} was told nothing"
        message = self._inboxes[peer].popleft()
        assert message == list(frames)
        return message

    def told_nothing(self, *peers: str) -> None:
        for peer in peers or list(self._inboxes):
            assert not self._inboxes[peer], f"{peer} was told {list(self._inboxes[peer])}"

    def heard(self, peer: str) -> list[list[bytes]]:
        """All messages for a peer that were not looked at yet."""
        messages = list(self._inboxes[peer])
        self._inboxes[peer].clear()
        return messages

    def lost(self, peer: str) -> None:
        self.core.lost(peer, self.now)
        self.collect()

    def unsent(self, peer: str, frames: list[bytes]) -> None:
        """This could not be sent: the peer is gone."""
        self.core.lost(peer, self.now, frames)
        self.collect()

    def collect(self) -> None:
        for peer, frames in self.core.take_output():
            assert frames is not None
            assert all(type(frame) is bytes for frame in frames)
            self._inboxes[peer].append(frames)
        check(self.core)

    # -- phrases that most tests begin with ------------------------------------------------------------------

    def worker(self, name: str, service: bytes = b"echo") -> None:
        """A worker of version 0.2 registers."""
        self.said(name, b"MDPW02", b"\1", service)
        self.told(name, b"MDPW02", b"\5")

    def request(self, client: str, *body: bytes, service: bytes = b"echo") -> None:
        """A client of version 0.2 asks."""
        self.said(client, b"MDPC02", b"\1", service, *body)

    def working(self, worker: str, *body: bytes) -> bytes:
        """A worker of version 0.2 was given a request; the client frame."""
        return self.told(worker, b"MDPW02", b"\2", CLIENT, b"", *body)[2]

    def final(self, worker: str, client: bytes, *body: bytes) -> None:
        """A worker of version 0.2 answers."""
        self.said(worker, b"MDPW02", b"\4", client, b"", *body)

    def answered(self, client: str, *body: bytes, service: bytes = b"echo") -> None:
        """A client of version 0.2 has its reply."""
        self.told(client, b"MDPC02", b"\3", service, *body)

    def failed(self, client: str, status: bytes, service: bytes = b"echo") -> bytes:
        """A client of version 0.2 has an error reply; its text."""
        text = self.told(client, b"MDPC02", b"\3", service, b"MDPE01", ANY)[4]
        assert text[:4] == status + b" ", text
        return text
