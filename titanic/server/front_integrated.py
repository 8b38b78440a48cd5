"""The broker runs in this process: its loop hands batches to the services, and the dispatcher needs no socket."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from broker import Broker
from titanic.config import ServerConfig
from titanic.dispatch.dispatcher import Dispatcher
from titanic.dispatch.transport import LocalTransport
from titanic.protocol import tsp
from titanic.server.front import Front
from titanic.server.gather import GatherEndpoint
from titanic.server.watchdog import CallInThread
from titanic.services.ask import HandleBatch
from titanic.version import __version__


class IntegratedFront(Front):
    """See `Front`."""

    def __init__(self, config: ServerConfig) -> None:
        """Bind the endpoints: raises broker.EndpointError, or broker.patterns.MissingDrafts."""
        self.most_body = config.wire.max_body
        self._broker = Broker(config.wire, version=__version__)
        self._gather: GatherEndpoint | None = None
        self.send_answers = self._broker.reply
        self.sated = self._broker.sated
        try:
            self.endpoints = tuple(self._broker.bind(endpoint) for endpoint in config.bind)
            if config.gather:
                self._gather = GatherEndpoint(self._broker)
                self.gathers = tuple(self._gather.bind(endpoint) for endpoint in config.gather)
        except BaseException:
            self.stop()
            raise

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        here = self._broker
        for name in tsp.SERVICES:
            here.integrate(name, partial(handle_batch, name), room=tsp.ROOM)
        dispatcher.connect(LocalTransport(dispatcher.core, here.connect_local, dispatcher.loop.call))
        here.start()
        if self._gather is not None:
            self._gather.start()

    def stop_gathering(self, patience: float) -> None:
        if self._gather is not None:
            self._gather.stop(patience)

    def stop(self) -> None:
        if self._gather is not None:
            self._gather.stop()
        self._broker.stop()

    @property
    def alive(self) -> bool:
        return self._broker.alive and (self._gather is None or self._gather.alive)

    def workers(self) -> dict[bytes, int]:
        return self._broker.workers()

    def gathered(self) -> dict[str, int]:
        return {} if self._gather is None else {**self._gather.counts, "waiting": self._gather.waiting}

    def counters(self) -> Mapping[str, int]:
        return self._broker.counters()

    def threads(self) -> dict[str, CallInThread]:
        return {"broker": self._broker.loop.call}
