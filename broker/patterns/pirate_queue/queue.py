"""The queue of Simple and Paranoid Pirate as a running thing: a ROUTER for clients, a ROUTER for workers, the core."""

from __future__ import annotations

import threading
import time

import zmq

from broker.core.mdp import Output
from broker.io.loop import Channel, Loop
from broker.io.router import Router
from broker.io.sockets import DRAIN_LIMIT
from broker.patterns.pirate_queue.core import CLIENT, WORKER, At, PirateQueue, QueueConfig
from broker.patterns.pirate_queue.wire import PirateDialect


class Queue(Channel):
    """`bind_clients`, `bind_workers`, then `run` (or `start`) until `stop`."""

    dialect: PirateDialect
    """Of the workers."""

    def __init__(self, config: QueueConfig | None = None) -> None:
        self.core = PirateQueue(config, dialect=self.dialect, now=time.monotonic())
        self.loop = Loop()
        # Workers first: what they say makes room.
        self._sides = {side: Router(zmq.Context.instance()) for side in (WORKER, CLIENT)}
        self._thread: threading.Thread | None = None
        self.loop.add(self)

    def bind_clients(self, endpoint: str) -> str:
        """Listen to clients, before the queue runs; the endpoint with its real port comes back."""
        return self._sides[CLIENT].bind(endpoint)

    def bind_workers(self, endpoint: str) -> str:
        """Listen to workers, before the queue runs; the endpoint with its real port comes back."""
        return self._sides[WORKER].bind(endpoint)

    def run(self) -> None:
        """Serve until `stop`."""
        self.loop.run()

    def start(self) -> Queue:
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="queue", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End `run`. Any thread may ask. What waits is lost, and its clients will ask again."""
        self.loop.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Queue:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- the channel -----------------------------------------------------------------------------------------

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Both."""
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

    def tick(self, now: float) -> None:
        """Heartbeats, silence and expiry."""
        self.core.tick(now)

    def next_deadline(self) -> float | None:
        """The core's."""
        return self.core.next_deadline()

    def flush(self, now: float) -> None:
        """Send until there is nothing more: what one worker could not be sent goes to another."""
        while output := self.core.take_output():
            self._send(output, now)

    def close(self) -> None:
        """Close the sockets."""
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
