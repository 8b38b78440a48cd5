"""Finds out which broker is at the other end of a connection, by the questions of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.config import BrokerConfig
from broker.core.json_reader import read_json
from broker.core.mdp import CLIENT_VERSIONS, EXTENSION, KNOWN_WORDS, NAMES_SLOTS, Frames

ANSWER_TIMEOUT = 2.5
"""Seconds that a connected broker has for its answer."""

UNANSWERING = "majortomo"
"""The version of a broker that answers neither the question of RFC 8 nor that of this project."""

_BROKER, _SERVICE = b"mmi.broker", b"mmi.service"


class BrokerKind(NamedTuple):
    """What is known of a broker."""

    version: str
    """Of MDP, to be spoken with it."""
    ours: bool
    """Whether it is a broker of this project."""
    access: bool = False
    """Whether it has access control. Then workers of `titanic.` services learn the user of each request."""
    knows: frozenset[bytes] = frozenset()
    """The KNOWN_WORDS that it knows, too; empty without EXTENSION, which the others need."""
    max_message: int = 0
    """Bytes of the largest message that it accepts; 0: unknown."""
    store: str = ""
    """The id of its queue's store; empty: it has none, or does not say."""

    @property
    def knows_slots(self) -> bool:
        """Whether it knows workers with several services and slots."""
        return NAMES_SLOTS in self.knows


class ProtocolDetection:
    """Detects the version of MDP that a broker speaks, and whether it is one of this project.

    Some messages crash some brokers: the Guide's in Python ends at the first message of MDP 0.2, Generaldomo's at an
    empty last frame. All of them accept a client of 0.1, so two questions in 0.1 go first, together:

        mmi.broker     a broker of this project describes itself; others answer 501, or nothing
        mmi.service    required of all brokers (RFC 8)

    Answers come in the order of the questions. A broker that answers the second one without describing itself is not of
    this project; no time-out is needed to decide that.

    A broker that answers neither may know only later versions, or be stopped. So it is asked again on a new connection,
    which a stopped program does not complete. If it stays silent there too, a later version may be spoken on that
    connection, but never by a program that ever had an answer in 0.1.
    """

    def __init__(self, versions: Sequence[str]) -> None:
        """`versions`: may be spoken, the best one first. Brokers of this project speak all."""
        self._best = versions[0]
        self._versions = sorted(versions)
        self._asked: list[str] = []
        self._kind: BrokerKind | None = None
        self._answered = False
        """Whether any broker ever answered in the earliest version."""
        self._silent = False
        """Whether the last connection with questions stayed silent."""
        self.unanswered: list[bytes] = []
        """Questions in the earliest version that may still be answered on this connection."""

    def begin(self) -> None:
        """Begin with a new connection."""
        self._asked.clear()
        self._kind = None
        self.unanswered = [_BROKER, _SERVICE]

    def ask(self) -> list[Frames]:
        """Return the next questions to send; none when all versions were tried, or no other may be spoken."""
        if len(self._asked) == len(self._versions) or (self._asked and not self.fell_silent()):
            return []
        version = self._versions[len(self._asked)]
        self._asked.append(version)
        dialect = CLIENT_VERSIONS[version]
        return [dialect.encode_request([], question, [question]) for question in (_BROKER, _SERVICE)]

    def fell_silent(self) -> bool:
        """Note that a connection was made and no answer came; return whether a later version may be spoken on it."""
        before, self._silent = self._silent, True
        return before and not self._answered

    def learn(self, frames: Frames) -> BrokerKind | None:
        """Read a message. The first answer decides what the broker is; None: this answers neither question."""
        for version in self._asked:
            reply = CLIENT_VERSIONS[version].parse_reply(frames)
            if reply is not None and reply.service in (_BROKER, _SERVICE, None):
                self._silent = False
                if version == self._versions[0]:
                    self._answered = True
                    if reply.service in self.unanswered:
                        del self.unanswered[: self.unanswered.index(reply.service) + 1]
                if self._kind is None:
                    about = _about(reply.body) if reply.service == _BROKER else {}
                    ours = bool(about.get("software"))
                    self._kind = BrokerKind(
                        version=self._best if ours else version,
                        ours=ours,
                        access=ours and bool(about.get("access")),
                        knows=_known(about) if ours else frozenset(),
                        max_message=_max_message(about),
                        store=str(about.get("store", "")) if ours else "",
                    )
                return self._kind
        return None


def _known(about: dict[str, Any]) -> frozenset[bytes]:
    said = about.get("knows")
    words = frozenset(word for word in KNOWN_WORDS if isinstance(said, list) and word.decode() in said)
    return words if EXTENSION in words else frozenset()


def _max_message(about: dict[str, Any]) -> int:
    limits = about.get("limits")
    max_body = limits.get("max_body") if isinstance(limits, dict) else None
    return BrokerConfig(max_body=max_body).max_message if type(max_body) is int and max_body > 0 else 0


def _about(body: Frames) -> dict[str, Any]:
    """Read how a broker of this project answers mmi.broker; empty for any other answer."""
    try:
        about = read_json(body[0])
    except (IndexError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}
