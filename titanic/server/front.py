"""How Titanic stands to its broker, in one interface: asks come in by it, answers and requests for workers go out.

front_integrated.py    the broker runs in this process
front_attached.py      a worker and client of a broker elsewhere
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from titanic.dispatch.dispatcher import Dispatcher
from titanic.errors import TitanicError
from titanic.server.watchdog import Call
from titanic.services.ask import Answers, HandleBatch


class Front(Protocol):
    """To be made, started and stopped once. It is ended before it is started, too."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where clients reach it, with real ports."""

    @property
    def gathers(self) -> tuple[str, ...]:
        """Where requests that want no answer are gathered, with real ports."""

    @property
    def most_body(self) -> int | None:
        """Bytes of a request's body that Titanic may take; None: the broker refuses what is too large."""

    @property
    def most_waiters(self) -> int:
        """How many may wait for replies before those that have waited for longest are sent away."""

    @property
    def problem(self) -> TitanicError | None:
        """Why it cannot serve, when that is found out after `start`."""

    @property
    def alive(self) -> bool:
        """Whether its threads run."""

    @property
    def ready(self) -> bool:
        """Whether clients are served."""

    def start(self, dispatcher: Dispatcher, handle_batch: HandleBatch) -> None:
        """Give asks to `handle_batch` from now on, and the dispatcher a transport as soon as there is a broker. To be
        called before the dispatcher runs. An endpoint that cannot be right raises broker.EndpointError."""

    def stop_gathering(self, patience: float) -> None:
        """Take in nothing more of what is gathered; what has come has `patience` seconds to be stored."""

    def stop(self) -> None:
        """End the threads and close the sockets."""

    def send_answers(self, answers: Answers) -> None:
        """Send answers to those who asked. Any thread may."""

    def sated(self, ask: Any) -> bool:
        """Whether who asked does not read the answers that are on their way to it. Any thread may ask."""

    def workers(self) -> dict[bytes, int] | None:
        """How many workers each service has; None: only the broker elsewhere knows."""

    def gathered(self) -> dict[str, int]:
        """Messages that came without wanting an answer: "stored", "dropped", and "waiting" for either."""

    def counters(self) -> Mapping[str, int] | None:
        """The integrated broker's counters."""

    def threads(self) -> dict[str, Call]:
        """Its threads, and how to have a function called in each."""
