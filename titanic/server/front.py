"""The side of Titanic that faces a broker: asks come in by it; answers, and requests for workers, go out.

front_integrated.py    the broker runs in this process
front_attached.py      a worker and client of a broker elsewhere
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from titanic.dispatch.dispatcher import Dispatcher
from titanic.dispatch.waiters import MOST_WAITERS
from titanic.errors import TitanicError
from titanic.server.watchdog import CallInThread
from titanic.services.ask import HandleBatch, SendAnswers


class Front(Protocol):
    """What both have, with defaults for what only one of them has. It is started and stopped once."""

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
    sated: Callable[[Any], bool]
    """Whether the peer of an ask does not read the answers that are on their way to it. Any thread may call it."""

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        """Give asks to `handle_batch` from now on, and a transport to the dispatcher as soon as there is a broker.
        Called before the dispatcher starts. An endpoint that cannot be right raises broker.EndpointError."""

    def stop_gathering(self, patience: float) -> None:
        """Gather no more requests; those that have come get `patience` seconds to be stored."""
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

    def workers(self) -> dict[bytes, int] | None:
        """How many workers each service has; None: only the broker elsewhere knows."""
        return None

    def gathered(self) -> dict[str, int]:
        """Messages that came without wanting an answer: "stored", "dropped", and "waiting" for either."""
        return {}

    def counters(self) -> Mapping[str, int] | None:
        """The integrated broker's counters."""
        return None
