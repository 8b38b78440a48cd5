"""Channels of a loop: a core that runs in a loop and a thread of its own, and a session on its connection."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Generic, Self, TypeVar

from broker.core.client import ClientSession
from broker.core.mdp import Core, Output
from broker.core.worker import Job, SessionState, WorkerSession
from broker.errors import OutOfSockets
from broker.io.curve import KeyProbe
from broker.io.dealer import Dealer
from broker.io.loop import Channel, Loop
from broker.io.sockets import Socket

AnyCore = TypeVar("AnyCore", bound=Core)
Session = TypeVar("Session", bound=ClientSession | WorkerSession)


class CoreRunner(Channel, Generic[AnyCore]):
    """Runs a core in a loop of its own. As a context manager it is started and stopped."""

    _thread_name = "loop"

    def __init__(self, core: AnyCore, loop: Loop | None = None) -> None:
        """`loop`: of another runner, which runs and stops it."""
        self.core = core
        self.loop = loop or Loop()
        self._thread: threading.Thread | None = None
        self.loop.add(self)

    def run(self) -> None:
        """Serve until `stop`."""
        self.loop.run()

    def start(self) -> Self:
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=self.loop.run, name=self._thread_name, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End `run`; after `start`, wait for the thread. A loop that never ran is closed. Any thread may call this."""
        self._end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def _end(self) -> None:
        """End the loop."""
        self.loop.stop()

    @property
    def alive(self) -> bool:
        """Whether the thread of `start` is running."""
        return self._thread is not None and self._thread.is_alive()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tick(self, now: float) -> None:
        self.core.tick(now)

    def next_deadline(self) -> float | None:
        return self.core.next_deadline()


class SessionChannel(Channel, Generic[Session]):
    """A client's or worker's session on its connection. Subclasses define what a loss or a lack of sockets means."""

    def __init__(self, session: Session, dealer: Dealer) -> None:
        self.session = session
        self._dealer = dealer

    def sockets(self) -> Iterable[Socket]:
        return self._dealer.sockets()

    def changed(self) -> bool:
        return self._dealer.changed()

    @property
    def server(self) -> str:
        """The endpoint of the present connection, or of the last one."""
        return self._dealer.server

    def key_probe(self, when: float) -> KeyProbe:
        """Make a probe that finds out, from then on, whether the servers refuse the key."""
        return self._dealer.key_probe(when)

    def drain(self, now: float) -> bool:
        while (frames := self._dealer.receive()) is not None:
            self.session.receive(self._dealer.number, frames, now)
        if self._dealer.broke():
            self._lost(now)
        return False

    def tick(self, now: float) -> None:
        self.session.tick(now)

    def next_deadline(self) -> float | None:
        return self.session.next_deadline()

    def flush(self, now: float) -> None:
        try:
            self._dealer.send(self.session.take_output())
        except OutOfSockets as error:
            self._starved(error, now)

    def close(self) -> None:
        self._dealer.close()

    def _lost(self, now: float) -> None:
        """Handle a broken connection."""
        self.session.lost(now)

    def _starved(self, error: OutOfSockets, now: float) -> None:
        """Handle a lack of sockets; by default as a broken connection."""
        self.session.lost(now)


class WorkerChannel(SessionChannel[WorkerSession]):
    """One registered worker. It rests until there is input, a deadline comes, or `Loop.touch` is called."""

    rests = True
    _present = False
    """Whether its session was present after the last turn."""

    def drain(self, now: float) -> bool:
        while (frames := self._dealer.receive()) is not None:
            self.session.receive(self._dealer.number, frames, now)
            if self.session.refused and not self._dealer.has_other:
                self._refused(now)
            if self.session.slots < 2 or not self._dealer.has_input:  # the loop notices a broken connection
                return False
        if self._dealer.broke(returns=self.session.returns):
            self._lost(now)
        return False

    def tick(self, now: float) -> None:
        self.session.inflow = self._dealer.inflow
        self.session.tick(now)

    def flush(self, now: float) -> None:
        session = self.session
        if session.state is SessionState.AWAY:
            self._dealer.answered = False  # whatever it said: try the next endpoint
            if session.stranded:
                self._stranded(now)
        output = session.take_output()
        try:
            self._dealer.send(output)
            session.link(not self._dealer.waits, now)
        except OutOfSockets as error:
            self._starved(error, now)
        if self._dealer.has_other_endpoints and output and session.state is SessionState.AWAY:
            self._go_on(output, now)
        for job in session.take_jobs():
            self._begin(job)
        for number, why in session.take_cancelled():
            self._cancel(number, why)
        if (present := session.present) is not self._present:
            self._present = present
            self._presence_changed()
        if session.stopped:
            self._stopped()

    def _go_on(self, output: Sequence[Output], now: float) -> None:
        """Try the next endpoint at once after a connection was given up. When all were tried, wait for the back-off and
        begin again."""
        if any(frames is None for _, frames in output):
            if self._dealer.returns:
                return
            if self._dealer.hopeful:
                self.session.hurry(now)
            else:
                self._dealer.servers.forgive()

    def _begin(self, job: Job) -> None:
        """Handle a request."""
        raise NotImplementedError

    def _cancel(self, number: int, why: bytes) -> None:
        """Handle the cancellation of a job. `why`: as the broker said."""

    def _refused(self, now: float) -> None:
        """Handle a dismissal by the broker."""

    def _stranded(self, now: float) -> None:
        """Handle the loss of the connection that the request in hand came by."""

    def _presence_changed(self) -> None:
        """Handle a change of `WorkerSession.present`."""

    def _stopped(self) -> None:
        """Handle the end: the worker has said good-bye."""
