"""The side of Titanic that faces a broker: asks come in by it; answers, and requests for workers, go out.

IntegratedFront    the broker runs in this process; the dispatcher needs no socket
AttachedFront      the broker runs elsewhere, and Titanic is an ordinary worker and client of it (attached_front.py)

Each has one loop in one thread, in which the dispatcher runs too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from broker import Access, Loop
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

LAST = 5.0
"""Seconds at the end for storing what was gathered."""


class Front(Protocol):
    """The interface of IntegratedFront and AttachedFront, with defaults. A front is started and stopped once."""

    loop: Loop
    """Where asks are handled; for the dispatcher."""
    endpoints: tuple[str, ...]
    """Where clients reach it, with real ports."""
    gathers: tuple[str, ...] = ()
    """Where requests that want no answer are gathered, with real ports."""
    most_body: int | None = None
    """Bytes of a request's body that Titanic may take; None: the broker refuses what is too large."""
    most_waiters: int = MOST_WAITERS
    """See `Waiters`."""
    problem: TitanicError | None = None
    """Why it cannot serve, if that is found out after `start`."""
    send_answers: SendAnswers
    """Sends answers to those who asked. Any thread may call it."""
    congested: Callable[[Any], bool]
    """Whether the peer of an ask does not read the answers that are on their way to it. Any thread may call it."""

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        """Give asks to `handle_batch` from now on, and a transport to the dispatcher as soon as there is a broker.
        Called before the dispatcher starts. An endpoint that cannot be right raises broker.EndpointError."""

    def reload(self, access: Access) -> None:
        """This says from now on who may do what. Any thread may call it."""
        return

    def stop_gathering(self, patience: float) -> None:
        """Gather no more requests; those that have come get `patience` seconds to be stored."""
        return

    def wind_down(self) -> None:
        """Take no requests for workers any more, and send workers elsewhere as they become free. Any thread may call
        it. (With a broker elsewhere, workers are that broker's.)"""
        return

    @property
    def wound_down(self) -> bool:
        """Whether no worker is left since then."""
        return True

    def cut_off(self, cut_off: bool) -> None:
        """Whether other nodes serve what this one cannot: idle workers are sent there. Any thread may call it, as for
        the next."""
        return

    def send_on(self, most: int | None = None) -> None:
        """Send idle workers that have other endpoints there: so many at most, by default all of them."""
        return

    def stop(self) -> None:
        """End the threads and close the sockets; also when it was not started."""

    @property
    def alive(self) -> bool:
        """Whether its threads run, and there is no problem."""

    @property
    def ready(self) -> bool:
        """Whether clients are served."""
        return True

    def threads(self) -> dict[str, CallInThread]:
        """Its threads, and how to have a function called in each."""

    def source_of(self, ask: Any) -> bytes:
        """The IP address from which an ask came; empty: it is unknown. Any thread may ask."""
        return b""

    def workers(self) -> dict[bytes, int] | None:
        """How many workers each service has; None: only the broker elsewhere knows."""
        return None

    def gathered(self) -> dict[str, int]:
        """Messages that came without wanting an answer: "stored", "dropped", and "waiting" for either."""
        return {}

    def counters(self) -> Mapping[str, int] | None:
        """The integrated broker's counters."""
        return None

    def refusals(self) -> Mapping[tuple[str, str], int]:
        """What the integrated broker refused, by user and action."""
        return {}


class IntegratedFront(Front):
    """The broker's loop hands batches to the services."""

    def __init__(self, config: ServerConfig, control: ServerAccess | None) -> None:
        """Bind the endpoints: raises broker.EndpointError, AccessError, or broker.patterns.MissingDrafts."""
        self.most_body = config.wire.max_body
        self._broker = new_broker(config.wire, control, open=config.open)
        self._gathering: server.GatherEndpoints | None = None
        self.loop = self._broker.loop
        self.send_answers = self._broker.reply
        self.congested = self._broker.congested
        try:
            self.endpoints = tuple(self._broker.bind(endpoint) for endpoint in config.bind)
            if config.gather:
                self._gathering = server.GatherEndpoints(self._broker, config.gather, control, open=config.open)
                self.gathers = self._gathering.endpoints
        except BaseException:
            self.stop()
            raise
        if control is not None:
            control.warn_of_unbound((*config.bind, *config.gather))

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        here = self._broker
        for name in tsp.SERVICES:
            here.integrate(name, partial(handle_batch, name), room=tsp.ROOM)
        connect = partial(here.connect_local, lasts=dispatcher.lasts)
        dispatcher.connect(LocalTransport(dispatcher.core, connect, dispatcher.guard, here.config.max_message))
        here.start()
        if self._gathering is not None:
            self._gathering.start()

    def reload(self, access: Access) -> None:
        self._broker.reload(access)
        if self._gathering is not None:  # behind: the broker goes by who each was
            self.loop.call(self._gathering.reload, access)

    def stop_gathering(self, patience: float) -> None:
        if self._gathering is not None:
            self._gathering.stop(patience)

    def wind_down(self) -> None:
        self._broker.wind_down()

    @property
    def wound_down(self) -> bool:
        return not self._broker.workers()

    def cut_off(self, cut_off: bool) -> None:
        self._broker.cut_off(cut_off)

    def send_on(self, most: int | None = None) -> None:
        self._broker.send_on(most)

    def stop(self) -> None:
        if self._gathering is not None:
            self._gathering.stop(LAST)
        self._broker.stop()

    @property
    def alive(self) -> bool:
        return self._broker.alive and (self._gathering is None or self._gathering.alive)

    def source_of(self, ask: Any) -> bytes:
        return self._broker.source_of(ask)

    def workers(self) -> dict[bytes, int]:
        return self._broker.workers()

    def gathered(self) -> dict[str, int]:
        return {} if self._gathering is None else self._gathering.counts()

    def counters(self) -> Mapping[str, int]:
        return self._broker.counters()

    def refusals(self) -> Mapping[tuple[str, str], int]:
        return self._broker.refusals()

    def threads(self) -> dict[str, CallInThread]:
        return {"broker": self._broker.loop.call}
