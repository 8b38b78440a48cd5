"""When the broker is asked whether services are there: one by one, or all that are absent at once."""

from __future__ import annotations

from collections.abc import Callable

from broker import Timers
from titanic.dispatch.state import Backlog

QUESTIONS = 200
"""Questions a second about services that are absent, roughly, at a broker that must be asked for each."""


class Asking:
    """The backlogs that wait for (more) workers than are known."""

    def __init__(self, longer: Callable[[float], float]) -> None:
        """`longer`: the pause after one of so many seconds."""
        self.surveys = False
        """Whether the broker can be asked for all its workers at once."""
        self.absent: dict[bytes, Backlog] = {}
        self.questions: Timers[bytes] = Timers()
        """When each of the others is asked for; all of them, at a broker that can't be asked for all at once."""
        self._longer = longer
        self._survey_at = 0.0
        self._pause = 0.0
        self._surveying = False

    @property
    def crowd(self) -> float:
        """Seconds for which an absent service has to wait because there are so many."""
        return 0.0 if self.surveys else len(self.absent) / QUESTIONS

    def place(self, backlog: Backlog) -> None:
        """A backlog that changed."""
        name = backlog.name
        absent = backlog.curious and backlog.room == 0
        if not absent:
            self.absent.pop(name, None)
        elif name not in self.absent:
            # Together they are asked for soon again whenever one more has joined them.
            self._survey_at = min(self._survey_at, backlog.ask_at) if self.absent else backlog.ask_at
            self._pause = 0.0
            self.absent[name] = backlog
        if backlog.curious and not (absent and self.surveys):
            self.questions.set(name, backlog.ask_at)
        else:
            self.questions.cancel(name)

    def take_survey(self, now: float) -> bool:
        """Whether all are to be asked for now: answer with `surveyed`."""
        if not self._survey_due or now < self._survey_at:
            return False
        self._surveying = True
        return True

    def surveyed(self, now: float) -> None:
        """The answer is there."""
        self._surveying = False
        self._pause = self._longer(self._pause)
        self._survey_at = now + self._pause

    def next_deadline(self) -> float | None:
        """When somebody is to be asked for."""
        times = (self.questions.next(), self._survey_at if self._survey_due else None)
        return min((time for time in times if time is not None), default=None)

    @property
    def _survey_due(self) -> bool:
        return self.surveys and bool(self.absent) and not self._surveying
