"""The connection of the server to a broker: it receives asks, and sends answers and requests for workers.

IntegratedFront    the broker runs in this process; the dispatcher needs no socket
AttachedFront      the broker is separate; the server is an ordinary worker and client of it (attached_front.py)

Each has one loop in one thread, in which the dispatcher runs too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from broker import Access, Broker, Loop
from titanic import server
from titanic.dispatch.dispatcher import Dispatcher
from titanic.dispatch.transport import LocalTransport
from titanic.dispatch.waiters import MOST_WAITERS
from titanic.errors import TitanicError
from titanic.protocol import tsp
from titanic.server.server_access import ServerAccess, new_broker
from titanic.server.watchdog import CallInThread
from titanic.services.ask import HandleBatch, SendAnswers
from titanic.settings import ServerConfig

PARTING = 0.5
"""Maximum time until workers have closed their connections."""

LAST = 5.0
"""Seconds at shutdown for storing gathered requests."""


class Front(Protocol):
    """The interface of IntegratedFront and AttachedFront, with defaults. A front is started and stopped once."""

    loop: Loop
    """The loop that handles asks, and runs the dispatcher."""
    broker: Broker | None = None
    """The broker in this process; None: it is separate."""
    endpoints: tuple[str, ...]
    """The endpoints for clients, with real ports."""
    gathers: tuple[str, ...] = ()
    """The GATHER endpoints, with real ports."""
    most_body: int | None = None
    """Maximum bytes of a request's body; None: the broker enforces its own limit."""
    most_waiters: int = MOST_WAITERS
    """See `Waiters`."""
    problem: TitanicError | None = None
    """Why it cannot serve, if that is detected after `start`."""
    send_answers: SendAnswers
    """Sends answers to the clients. Any thread may call it."""
    congested: Callable[[Any], bool]
    """Whether the peer of an ask does not read its answers. Any thread may call it."""

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        """Pass asks to `handle_batch` from now on, and give the dispatcher a transport as soon as there is a broker.
        Called before the dispatcher starts. Raises broker.EndpointError for an invalid endpoint."""

    def reload(self, access: Access) -> None:
        """Apply an access file from now on. Any thread may call it."""
        return

    def stop_gathering(self, patience: float) -> None:
        """Stop gathering; requests that were received get `patience` seconds to be stored."""
        return

    def end_soon(self) -> None:
        """Send workers away that return with their requests, and take in what they have said before."""
        return

    def stop(self) -> None:
        """Stop the threads and close the sockets, also if it was not started."""

    @property
    def alive(self) -> bool:
        """Whether its threads run and it has no problem."""

    @property
    def ready(self) -> bool:
        """Whether clients are served."""
        return True

    def threads(self) -> dict[str, CallInThread]:
        """Its threads by name, each with a function that calls another one in the thread."""

    def gathered(self) -> dict[str, int]:
        """The number of gathered messages: "stored", "dropped" and "waiting"."""
        return {}


class IntegratedFront(Front):
    """A front with a broker in this process; its loop passes batches to the services."""

    broker: Broker

    def __init__(self, config: ServerConfig, control: ServerAccess | None) -> None:
        """Bind the endpoints. Raises broker.EndpointError, AccessError, or broker.patterns.MissingDrafts."""
        self.most_body = config.wire.max_body
        self.broker = here = new_broker(config.wire, control, open=config.open)
        self._gathering: server.GatherEndpoints | None = None
        self.loop = here.loop
        self.send_answers = here.reply
        self.congested = here.congested
        try:
            self.endpoints = tuple(here.bind(endpoint) for endpoint in config.bind)
            if config.gather:
                self._gathering = server.GatherEndpoints(here, config.gather, control, open=config.open)
                self.gathers = self._gathering.endpoints
        except BaseException:
            self.stop()
            raise
        if control is not None:
            control.warn_of_unbound((*config.bind, *config.gather))

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        here = self.broker
        here.note_refusals(dispatcher.audit)
        for name in tsp.SERVICES:
            here.integrate(name, partial(handle_batch, name), room=tsp.ROOM)
        notes = dispatcher.deliveries
        transport = LocalTransport(dispatcher.core, dispatcher, here.config.max_message, notes)
        lasts = dispatcher.lasts if dispatcher.leased else None
        given = None if notes is None else notes.given
        transport.peer = here.connect_local(
            transport.deliver,
            lasts=lasts,
            given=given,
            store=dispatcher.store_id,
            key=dispatcher.delivery_key,
            decides_within=dispatcher.decides_within,
        )
        dispatcher.connect(transport)
        dispatcher.resume(transport)
        here.start()
        if self._gathering is not None:
            self._gathering.start()

    def reload(self, access: Access) -> None:
        self.broker.reload(access)
        if self._gathering is not None:  # after the broker, which compares with the previous users
            self.loop.call(self._gathering.reload, access)

    def stop_gathering(self, patience: float) -> None:
        if self._gathering is not None:
            self._gathering.stop(patience)

    def end_soon(self) -> None:
        self.broker.end_soon()
        until = time.monotonic() + PARTING
        while self.broker.alive and self.broker.has_keepers and time.monotonic() < until:
            time.sleep(0.005)

    def stop(self) -> None:
        if self._gathering is not None:
            self._gathering.stop(LAST)
        self.broker.stop()

    @property
    def alive(self) -> bool:
        return self.broker.alive and (self._gathering is None or self._gathering.alive)

    def gathered(self) -> dict[str, int]:
        return {} if self._gathering is None else self._gathering.counts()

    def threads(self) -> dict[str, CallInThread]:
        return {"broker": self.broker.loop.call}
