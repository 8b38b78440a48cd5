"""Titanic as a running thing: store, services, dispatcher, and a broker in the same process or elsewhere.

threads      job
broker       the broker's loop (integrated), or `lanes`: worker sockets at somebody else's broker
writer       all changes of the store, one transaction and one sync for all that has gathered
reader       titanic.reply and the other services that only read
dispatcher   sends stored requests to their services and hands the replies to the writer
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import broker
from broker import Broker, RemoteError
from titanic import tsp
from titanic.config import ServerConfig
from titanic.dispatch.courier import Courier, LaneCourier, LocalCourier, SocketCourier
from titanic.dispatch.dispatcher import Dispatcher
from titanic.lanes import Lanes
from titanic.services import Answers, Ask, Services
from titanic.store import Store
from titanic.version import __version__
from titanic.writer import Writer

log = logging.getLogger(__name__)


class Server:
    """A Titanic. `start`, then `stop`; or as a context manager."""

    def __init__(self, config: ServerConfig) -> None:
        """Open the store and bind the endpoints: raises StoreError or broker.EndpointError."""
        self.config = config
        self._stopping = threading.Event()
        self._broker: Broker | None = None
        self._lanes: Lanes | None = None
        self.endpoints: tuple[str, ...] = ()
        """Where clients reach it, with real ports."""
        self.store = Store.open(config.store, capacity=config.capacity)
        try:
            self._writer = Writer(self.store)
            self._dispatcher = Dispatcher(config, self.store, self._writer)
            answer = self._integrate(config) if config.broker is None else self._attach(config, config.broker)
            self._services = Services(self.store, self._writer, self._dispatcher, answer)
        except BaseException:
            self.store.close()
            raise

    def start(self) -> Server:
        """Serve, in threads of its own."""
        self._writer.start()
        self._services.start()
        self._dispatcher.start()
        if self._broker is not None:
            self._broker.start()
        if self._lanes is not None:
            self._lanes.start()
        return self

    def stop(self) -> None:
        """Finish what is in hand and stop.

        New requests are refused from now on. Requests that a worker has get `grace` seconds to bring their
        replies; those that do not make it are executed again after the next start.
        """
        self._services.refusing = "shutting down: try again in a moment"
        self._stopping.set()
        self._dispatcher.wind_down()
        deadline = time.monotonic() + self.config.grace
        while not self._dispatcher.settled and time.monotonic() < deadline:
            time.sleep(0.01)
        self._dispatcher.stop()
        self._services.stop()
        self._writer.stop()
        if self._broker is not None:
            self._broker.stop()
        if self._lanes is not None:
            self._lanes.stop()
        self.store.close()

    @property
    def alive(self) -> bool:
        """Whether all threads are running. One that met an error of this program has logged it and ended: then
        nothing better can be done than to stop and start again, which loses nothing."""
        parts = (self._dispatcher, self._broker, self._lanes)
        return all(part.alive for part in parts if part is not None)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _handle(self, name: bytes, batch: Sequence[Ask]) -> None:
        self._services.handle(name, batch)

    def _integrate(self, config: ServerConfig) -> Callable[[Answers], None]:
        """The broker in this process."""
        here = self._broker = Broker(config.wire, version=__version__)
        self.endpoints = tuple(here.bind(endpoint) for endpoint in config.bind)
        for name in tsp.SERVICES:
            here.integrate(name, partial(self._handle, name))
        courier = LocalCourier(self._dispatcher.core)
        loop = self._dispatcher.loop

        def deliver(messages: list[tsp.Frames]) -> None:
            loop.call(lambda: courier.receive(messages, time.monotonic()))

        courier.peer = here.connect_local(deliver)
        self._dispatcher.connect = lambda: courier
        return here.reply

    def _attach(self, config: ServerConfig, endpoint: str) -> Callable[[Answers], None]:
        """A worker and client of a broker elsewhere."""
        self.endpoints = (endpoint,)
        self._lanes = Lanes(
            endpoint,
            tsp.SERVICES,
            self._handle,
            count=config.lanes,
            config=config.worker,
        )
        self._dispatcher.connect = self._find_broker
        return self._lanes.answer

    def _find_broker(self) -> Courier | None:
        """Find out what broker is there, waiting until there is one; None when Titanic is stopped first."""
        endpoint, dispatcher = self.endpoints[0], self._dispatcher
        while not self._stopping.is_set():
            for version in ("0.2", "0.1"):
                ours = self._is_ours(endpoint, version)
                if ours is None:
                    continue
                log.info("broker at %s speaks MDP %s%s", endpoint, version, "" if ours else ", not of this project")
                if ours:
                    return SocketCourier(dispatcher.core, dispatcher.loop, endpoint)
                return LaneCourier(
                    dispatcher.core,
                    dispatcher.loop,
                    endpoint,
                    version=version,
                    room=self.config.lanes,
                    attempt_timeout=self.config.attempt_timeout,
                )
        return None

    @staticmethod
    def _is_ours(endpoint: str, version: str) -> bool | None:
        """Whether the broker is of this project; None when none answers in this version of MDP."""
        with broker.Client(endpoint, timeout=0.5, retries=0, version=version) as client:
            try:
                return client.call("mmi.broker", b"")[0].startswith(b"{")
            except (broker.TimedOut, RemoteError, IndexError):
                return None
