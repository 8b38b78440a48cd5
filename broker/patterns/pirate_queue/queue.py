"""The queue of Simple and Paranoid Pirate as a running thing: a ROUTER for clients, a ROUTER for workers, the core."""

from __future__ import annotations

import time

import zmq

from broker.core.mdp import Output
from broker.io.router import Router
from broker.io.shell import Shell
from broker.io.sockets import DRAIN_LIMIT
from broker.patterns.pirate_queue.core import CLIENT, WORKER, At, PirateQueueCore, QueueConfig
from broker.patterns.pirate_queue.wire import PARANOID, SIMPLE, PirateDialect


class PirateQueue(Shell[PirateQueueCore]):
    """`bind_clients`, `bind_workers`, then `run` (or `start`) until `stop`. What waits then is lost, and
    its clients ask again."""

    _thread_name = "queue"

    dialect: PirateDialect
    """Of the workers."""

    def __init__(self, config: QueueConfig | None = None) -> None:
        super().__init__(PirateQueueCore(config, dialect=self.dialect, now=time.monotonic()))
        # Workers first: what they say makes room.
        self._sides = {side: Router(zmq.Context.instance()) for side in (WORKER, CLIENT)}

    def bind_clients(self, endpoint: str) -> str:
        """Listen to clients, before the queue runs; the endpoint with its real port comes back."""
        return self._sides[CLIENT].bind(endpoint)

    def bind_workers(self, endpoint: str) -> str:
        """Listen to workers, before the queue runs; the endpoint with its real port comes back."""
        return self._sides[WORKER].bind(endpoint)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [router.socket for router in self._sides.values()]

    def drain(self, now: float) -> bool:
        """Take what has arrived, up to a limit, so that answers go out in between."""
        more = False
        for side, router in self._sides.items():
            for _ in range(DRAIN_LIMIT):
                if (frames := router.receive()) is None:
                    more = more or router.skipping
                    break
                self.core.receive(At(side, frames[0]), frames[1:], now)
            else:
                more = True
        return more

    def flush(self, now: float) -> None:
        """Send until there is nothing more: what one worker could not be sent goes to another."""
        while output := self.core.take_output():
            self._send(output, now)

    def close(self) -> None:
        for router in self._sides.values():
            router.close()

    def _send(self, output: list[Output], now: float) -> None:
        for peer, frames in output:
            assert isinstance(peer, At)
            assert frames is not None
            try:
                self._sides[peer.side].send(peer.identity, frames)
            except zmq.ZMQError:
                self.core.undeliverable(peer, frames, now)


class SimpleQueue(PirateQueue):
    """The queue of Simple Pirate. Its clients are Lazy Pirates."""

    dialect = SIMPLE


class ParanoidQueue(PirateQueue):
    """The queue of Paranoid Pirate. Its clients are Lazy Pirates."""

    dialect = PARANOID
