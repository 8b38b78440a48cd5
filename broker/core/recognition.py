"""Which broker is at the other end of a connection: it is asked, as a client asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.config import BrokerConfig
from broker.core.json_reader import read_json
from broker.core.mdp import CLIENT_VERSIONS, ELSEWHERE, EXTENSION, PROCESS, Frames

ANSWER = 2.5
"""Seconds that a broker to which there is a connection has for its answer."""

UNANSWERING = "majortomo"
"""The version of a broker that answers no questions, neither of RFC 8 nor of this project."""

_WHO, _ANY = b"mmi.broker", b"mmi.service"


class Kind(NamedTuple):
    """What a broker is: the version of MDP to speak with it, whether it is one of this project, and whether it has
    access control: then it tells the workers of `titanic.` services who asks. `extended`: whether it knows
    EXTENSION, `rebalances`: and ELSEWHERE, `processes`: and PROCESS. `max_message`: bytes of a message that it takes;
    0: it does not say."""

    version: str
    ours: bool
    access: bool = False
    extended: bool = False
    max_message: int = 0
    rebalances: bool = False
    processes: bool = False


class Recognition:
    """Which broker is at the other end of a connection: what it speaks, and whether it is one of this project.

    Not every broker survives every message: one of MDP 0.1 may end at the first one of 0.2, as the Guide's in Python
    does, or at an empty last frame, as Generaldomo's does. All of them accept a client of 0.1, so 0.1 asks first, two
    questions at once:

        mmi.broker     a broker of this project says what it is; others say 501, or nothing
        mmi.service    a must for all brokers (RFC 8)

    The answers come in the order of the questions: a broker that has answered the second one and not said what it is in
    answer to the first is another, and no time-out has to decide that.

    A broker that answers neither may know only later versions, or be stopped. So it is asked again on a new connection,
    which a stopped program does not complete. Only when it is silent there as well, a later version may be spoken on
    that connection, and never by a program that ever had an answer in 0.1.
    """

    def __init__(self, versions: Sequence[str]) -> None:
        """`versions`: those that may be spoken, the best one first. Brokers of this project speak all."""
        self._best = versions[0]
        self._versions = sorted(versions)
        self._asked: list[str] = []
        self._kind: Kind | None = None
        self._answered = False
        """Whether any broker ever answered in the first of the versions."""
        self._silent = False
        """Whether the last connection on which it was asked was silent."""
        self.unanswered: list[bytes] = []
        """The questions in the first of the versions to which an answer may still come on this connection."""

    def begin(self) -> None:
        """There is a new connection."""
        self._asked.clear()
        self._kind = None
        self.unanswered = [_WHO, _ANY]

    def ask(self) -> list[Frames]:
        """The next questions to send; none when they were asked in all versions, or no other one may be spoken."""
        if len(self._asked) == len(self._versions) or (self._asked and not self.fell_silent()):
            return []
        version = self._versions[len(self._asked)]
        self._asked.append(version)
        dialect = CLIENT_VERSIONS[version]
        return [dialect.encode_request([], question, [question]) for question in (_WHO, _ANY)]

    def fell_silent(self) -> bool:
        """No answer has come on a connection that was made: whether a later version may be spoken on it."""
        before, self._silent = self._silent, True
        return before and not self._answered

    def learn(self, frames: Frames) -> Kind | None:
        """Read a message: what the broker is, by the first answer; None when this answers neither question."""
        for version in self._asked:
            reply = CLIENT_VERSIONS[version].parse_reply(frames)
            if reply is not None and reply.service in (_WHO, _ANY, None):
                self._silent = False
                if version == self._versions[0]:
                    self._answered = True
                    if reply.service in self.unanswered:
                        del self.unanswered[: self.unanswered.index(reply.service) + 1]
                if self._kind is None:
                    about = _about(reply.body) if reply.service == _WHO else {}
                    ours = bool(about.get("software"))
                    access, known = bool(about.get("access")), _known(about)
                    extended = ours and EXTENSION.decode() in known
                    others = [extended and word.decode() in known for word in (ELSEWHERE, PROCESS.rstrip(b"="))]
                    version = self._best if ours else version
                    self._kind = Kind(version, ours, ours and access, extended, _max_message(about), *others)
                return self._kind
        return None


def _known(about: dict[str, Any]) -> set[str]:
    known = about.get("knows")
    return {word for word in known if isinstance(word, str)} if isinstance(known, list) else set()


def _max_message(about: dict[str, Any]) -> int:
    limits = about.get("limits")
    max_body = limits.get("max_body") if isinstance(limits, dict) else None
    return BrokerConfig(max_body=max_body).max_message if type(max_body) is int and max_body > 0 else 0


def _about(body: Frames) -> dict[str, Any]:
    """How a broker of this project answers mmi.broker; nothing when this is no such answer."""
    try:
        about = read_json(body[0])
    except (IndexError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}
