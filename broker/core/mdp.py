"""The Majordomo Protocol on the wire: RFC 7 (0.1), RFC 18 (0.2), and the majortomo dialect of 0.2.

`''` is an empty frame and `[…]` an address stack: any number of address frames, as ROUTER–DEALER devices
put them in front, ending with `''`. The peer's own identity, which a ROUTER socket adds, is not shown.

Client side
    message             0.1                            0.2                              majortomo
    REQUEST    c → b    […] '' MDPC01 service body…    […] MDPC02 01 service body…      '' MDPC02 02 service body…
    PARTIAL    b → c    (none)                         […] MDPC02 02 service body…      '' MDPC02 03 body…
    FINAL      b → c    […] '' MDPC01 service body…    […] MDPC02 03 service body…      '' MDPC02 04 body…

Client side for a queue that keeps whole replies: 0.2 with a REQUEST of its own, and four more messages of the broker
    REQUEST    c → b    […] MDPC02 05 service body…
    PARTIAL, FINAL      as in 0.2: a worker's words
    RESTART    b → c    […] MDPC02 06 service          a worker begins late, or another one: no part so far counts
    REFUSED    b → c    […] MDPC02 07 service body…    an error reply of the broker itself, in place of a FINAL
    PROGRESS   b → c    […] MDPC02 08 service json     how far the worker is
    GIVEN      b → c    […] MDPC02 09 service delivery keeper    if asked for: which worker has it (`missing.py`)

Worker side
    message             0.1                            0.2                              majortomo
    READY      w → b    '' MDPW01 01 service           MDPW02 01 service                '' MDPW02 01 service
    REQUEST    b → w    '' MDPW01 02 client '' body…   MDPW02 02 client '' body…        '' MDPW02 02 client '' body…
    PARTIAL    w → b    (none)                         MDPW02 03 client '' body…        '' MDPW02 03 client '' body…
    FINAL      w → b    '' MDPW01 03 client '' body…   MDPW02 04 client '' body…        '' MDPW02 04 client '' body…
    HEARTBEAT  both     '' MDPW01 04                   MDPW02 05                        '' MDPW02 05
    DISCONNECT both     '' MDPW01 05                   MDPW02 06                        '' MDPW02 06

    behind the service in READY: words; a broker ignores those that it does not know
    EXTENSION           the worker knows CANCEL and PROGRESS
    ELSEWHERE           it has other brokers
    PROCESS + a name    workers of the same name are in one process, and die together
    SLOTS + a number    it takes so many requests at a time, and for each further service says
    SERVICE + limit, :, name     and that it takes at most so many of this one; 0: no limit but the slots
    CHILDREN            processes of its own execute the requests
    KILLS               it ends the process of a request when KILL says so
    VERSION + a text    the version of its program, in its own words
    KEEPER + a name     it keeps its requests when the connection is lost, and returns with them under the same name
    HELD + a client frame    it still has this request, or has a reply to it
    ENDED + a client frame   it has given a reply to this request not long ago

    between a broker and a worker that know EXTENSION
    CANCEL     b → w                                   MDPW02 07 client ''
    PROGRESS   w → b                                   MDPW02 08 client '' json

    between a broker and a worker that said SLOTS
    REQUEST    b → w    (in place of 02)               MDPW02 09 client '' service body…
    SLOTS      w → b                                   MDPW02 0A number client…

    between a broker and a worker that said SLOTS and CHILDREN
    LOST       w → b                                   MDPW02 0B client… ['' client…]
    CANCEL     b → w    AT_LIMIT or KILL may follow    MDPW02 07 client '' limit

titanic/PROTOCOL.md describes the same, and when each message is sent, for authors of clients and workers in other
languages.

The dialect is found in each message by itself: the header frame shows the version, the command 02 from a
client (illegal in RFC 18) majortomo's client, 05 a queue, a `''` before MDPW02 majortomo's worker.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from broker.config import is_version
from broker.core.timers import USUAL

Peer = Hashable
"""The other end: a ROUTER identity for a broker, the number of the connection for a session."""

Frames = list[bytes]
Output = tuple[Peer, Frames | None]
"""Output of a core: frames for a peer, or None to close the connection to it."""

Action = Callable[..., None]
"""What a thread is asked to do, with its arguments."""
Callback = Callable[[], None]


class Core:
    """A state machine without sockets, threads or clocks, as a shell sees it.

    Time is an argument: `now` is monotonic seconds and never goes back. By default nothing is ever due.
    """

    def __init__(self) -> None:
        self._output: list[Output] = []

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        """Take a message. Whatever it contains, no exception is raised."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Do what is due by now."""

    def next_deadline(self) -> float | None:
        """Return when `tick` is due; None: at no time."""
        return None

    def take_output(self) -> list[Output]:
        """Return what is to be sent, in order; frames None: close the connection to this peer."""
        output, self._output = self._output, []
        return output


CLIENT_01 = b"MDPC01"
CLIENT_02 = b"MDPC02"
WORKER_01 = b"MDPW01"
WORKER_02 = b"MDPW02"
ERROR = b"MDPE01"
"""Begins the body of an error reply, which MDP has no word for: MDPE01, "NNN text", detail…"""

HEADERS = frozenset((CLIENT_01, CLIENT_02, WORKER_01, WORKER_02))

MAX_STACK = 16
"""Address frames before the header; a message with more is malformed."""

MAX_SERVICE = 255
"""Bytes in a service name."""


class Command(Enum):
    """The commands of workers and brokers, whatever number a dialect gives them."""

    READY = "ready"
    REQUEST = "request"
    PARTIAL = "partial"
    FINAL = "final"
    HEARTBEAT = "heartbeat"
    DISCONNECT = "disconnect"
    CANCEL = "cancel"
    PROGRESS = "progress"
    SERVICE_REQUEST = "service request"
    """A REQUEST that names its service."""
    SLOTS = "slots"
    """So many requests at a time from now on; those named were not started."""
    LOST = "lost"
    """The process that had these requests died."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and each message is a lookup by command


@dataclass(frozen=True, slots=True)
class ClientDialect:
    """How one version of MDP/Client frames its three messages."""

    name: str
    delimited: bool
    """Whether a message without an address stack begins with `''` (0.1: clients may be REQ sockets)."""
    request: tuple[bytes, ...]
    partial: tuple[bytes, ...] | None
    """None: no PARTIAL in this version, the single reply carries the frames of all."""
    final: tuple[bytes, ...]
    echoes_service: bool
    """Whether replies name the service."""
    restart: tuple[bytes, ...] | None = None
    """None: there is no such message, and parts that a client has are not sent again by the next worker."""
    progress: tuple[bytes, ...] | None = None
    """None: there is no such message."""
    refused: tuple[bytes, ...] | None = None
    """None: a refusal of the broker is a FINAL, like a worker's."""
    given: tuple[bytes, ...] | None = None
    """None: there is no such message."""

    def encode_request(self, stack: Frames, service: bytes, body: Frames) -> Frames:
        """Frames of a REQUEST. `stack` is an address stack that ends with `''`, or empty."""
        if not stack and self.delimited:
            stack = [b""]
        return [*stack, *self.request, service, *body]

    def parse_reply(self, frames: Frames) -> ReplyMessage | None:
        """Read what a client gets; None when it is no message of this dialect."""
        stack_size = 0
        if frames and frames[0] != self.final[0]:
            try:
                stack_size = frames.index(b"", 0, MAX_STACK + 1) + 1
            except ValueError:
                return None
        stack = frames[:stack_size]
        head = tuple(frames[stack_size : stack_size + len(self.final)])
        restart = refused = progress = given = False
        if head == self.final:
            final = True
        elif self.partial is not None and head == self.partial:
            final = False
        elif self.restart is not None and head == self.restart:
            final, restart = False, True
        elif self.refused is not None and head == self.refused:
            final = refused = True
        elif self.progress is not None and head == self.progress:
            final, progress = False, True
        elif self.given is not None and head == self.given:
            final, given = False, True
        else:
            return None
        at = stack_size + len(head)
        if not self.echoes_service:
            return ReplyMessage(stack, final, None, frames[at:], restart, refused, progress, given)
        if len(frames) <= at:
            return None
        return ReplyMessage(stack, final, frames[at], frames[at + 1 :], restart, refused, progress, given)


class ReplyMessage(NamedTuple):
    """A PARTIAL or FINAL as it reached a client. `service` is None in dialects that leave it out.

    `restart`: no part, but that those so far don't count. `refused`: the broker's own words, in place of a FINAL.
    `progress`: no part, but how far the worker is. `given`: no part, but which delivery a worker has: `Expected`.
    """

    stack: Frames
    final: bool
    service: bytes | None
    body: Frames
    restart: bool = False
    refused: bool = False
    progress: bool = False
    given: bool = False


GIVEN = b"titanic:given"
"""Begins an address frame of a queue, in front of the context: it wants to know which worker gets the request. Behind
a `=`, what it knows already: the delivery, for how many seconds, and the keeper, with spaces between them."""

CLIENT_V01 = ClientDialect("0.1", True, (CLIENT_01,), None, (CLIENT_01,), True)
CLIENT_V02 = ClientDialect("0.2", False, (CLIENT_02, b"\1"), (CLIENT_02, b"\2"), (CLIENT_02, b"\3"), True)
CLIENT_MAJORTOMO = ClientDialect("majortomo", True, (CLIENT_02, b"\2"), (CLIENT_02, b"\3"), (CLIENT_02, b"\4"), False)
CLIENT_QUEUE = replace(
    CLIENT_V02,
    name="queue",
    request=(CLIENT_02, b"\5"),
    restart=(CLIENT_02, b"\6"),
    refused=(CLIENT_02, b"\7"),
    progress=(CLIENT_02, b"\10"),
    given=(CLIENT_02, b"\11"),
)

CLIENT_DIALECTS = (CLIENT_V01, CLIENT_V02, CLIENT_MAJORTOMO, CLIENT_QUEUE)
CLIENT_VERSIONS = {dialect.name: dialect for dialect in CLIENT_DIALECTS}
CLIENT_DIALECTS_02 = {dialect.request[1]: dialect for dialect in CLIENT_DIALECTS if dialect.request[0] == CLIENT_02}
"""By the frame after the header of a REQUEST."""


class WorkerDialect:
    """How one version of MDP/Worker frames its commands."""

    __slots__ = ("_codes", "_head", "_length", "commands", "name", "silent_when_busy")

    heartbeats = True
    """Whether its peers send heartbeats."""

    usual_interval = USUAL
    """Seconds between them, until the peer shows its own."""

    def __init__(
        self,
        name: str,
        prefix: tuple[bytes, ...],
        codes: dict[Command, bytes],
        *,
        silent_when_busy: bool = False,
    ) -> None:
        self.name = name
        self.silent_when_busy = silent_when_busy
        """Whether its workers send no heartbeats while they work (majortomo's do not)."""
        self._head = list(prefix)
        self._length = len(prefix)
        self._codes = {command: (*prefix, code) for command, code in codes.items()}
        self.commands = {code: command for command, code in codes.items()}
        """By the frame after the header."""

    def encode(self, command: Command, rest: Sequence[bytes] = ()) -> Frames:
        """Frames of a command. A version without PARTIAL raises KeyError for it."""
        return [*self._codes[command], *rest]

    def has(self, command: Command) -> bool:
        """Whether this version knows the command."""
        return command in self._codes

    def parse(self, frames: Frames) -> tuple[Command, Frames] | None:
        """The command and what follows it, or None when the message is not of this dialect."""
        at = self._length
        if len(frames) <= at or frames[:at] != self._head:
            return None
        command = self.commands.get(frames[at])
        return None if command is None else (command, frames[at + 1 :])

    def open_request(self, rest: Frames) -> tuple[Frames, Frames] | None:
        """The envelope of a REQUEST, which goes in front of each reply, and the body; None: there is no envelope."""
        return (rest[:2], rest[2:]) if len(rest) >= 2 and rest[1] == b"" else None


_CODES_01 = {
    Command.READY: b"\1",
    Command.REQUEST: b"\2",
    Command.FINAL: b"\3",
    Command.HEARTBEAT: b"\4",
    Command.DISCONNECT: b"\5",
}
_CODES_02 = {
    Command.READY: b"\1",
    Command.REQUEST: b"\2",
    Command.PARTIAL: b"\3",
    Command.FINAL: b"\4",
    Command.HEARTBEAT: b"\5",
    Command.DISCONNECT: b"\6",
}

# Words in READY. Of one with a value, brokers announce `NAMES_X`, and workers say `X`, which is `NAMES_X + b"="`.
EXTENSION = b"titanic:1"
"""CANCEL and PROGRESS: a broker announces in mmi.broker that it knows them, and a worker then announces it in READY."""

ELSEWHERE = b"titanic:elsewhere"
"""The worker has other brokers: a DISCONNECT while it is idle does no harm."""

NAMES_PROCESS = b"titanic:process"
PROCESS = NAMES_PROCESS + b"="
"""Begins the word in READY that names a worker's process. Without a name: it only passes requests on, as a
gateway does, and its death says nothing of them."""

MAX_PROCESS = 64
"""Bytes of that word."""

NAMES_VERSION = b"titanic:version"
VERSION = NAMES_VERSION + b"="
"""Begins the word in READY that says the version of a worker's program, for people."""

NAMES_SLOTS = b"titanic:slots"
SLOTS = NAMES_SLOTS + b"="
"""Begins the word in READY that says how many requests the worker takes at a time, of all its services. It needs
EXTENSION."""

SERVICE = b"titanic:service="
"""Begins the word in READY that names a further service, or limits the first one: LIMIT:NAME. It needs SLOTS."""

MAX_SLOTS = 4096
"""Requests that one worker may have at a time: a REQUEST and a CANCEL for each fit into the queue of its connection."""

MAX_SERVICES = 1024
"""Services of one worker."""

CHILDREN = b"titanic:children"
"""Processes of the worker execute its requests: it executes one that is to run alone in a process that has no other,
and says LOST when one of them died. It needs SLOTS."""

AT_LIMIT = b"limit"
"""Why a request is not wanted any more: it has exceeded its limit. In a CANCEL to a worker that said CHILDREN."""

KILLS = b"titanic:kill"
"""The worker ends the process of a request at once when a CANCEL says KILL. It needs CHILDREN."""

KILL = b"kill"
"""In a CANCEL to a worker that said KILLS: the process of the request is to be ended."""

NAMES_HELD = b"titanic:held"
HELD = NAMES_HELD + b"="
"""Begins the word in READY that names, by its client frame, a request that the worker has from before. It needs SLOTS
and KEEPER."""

KEEPER = b"titanic:keeper="
"""Begins the word in READY by which a worker that keeps its requests is known again: random, and the same on each of
its connections. It needs SLOTS; a broker that knows HELD knows it."""

MAX_KEEPER = 64
"""Bytes of that word."""

NAMES_ENDED = b"titanic:ended"
ENDED = NAMES_ENDED + b"="
"""Begins the word in READY that names, by its client frame, a request to which the worker has sent the reply not long
ago: if the broker has not stored it, it sends the request with this frame again. It needs KEEPER."""

KNOWN_WORDS = (
    EXTENSION,
    ELSEWHERE,
    NAMES_PROCESS,
    NAMES_VERSION,
    NAMES_SLOTS,
    CHILDREN,
    KILLS,
    NAMES_HELD,
    NAMES_ENDED,
)
"""The words in READY that a broker knows, as it announces them in mmi.broker (`BrokerKind.knows`): a worker says these,
SERVICE to a broker that knows SLOTS, and KEEPER to one that knows HELD."""

LOST_STATUS = 502
"""The status of a queue's request whose worker died when others of its process had requests too: any of them may be the
cause."""

_EXTENDED_02 = {
    **_CODES_02,
    Command.CANCEL: b"\7",
    Command.PROGRESS: b"\10",
    Command.SERVICE_REQUEST: b"\11",
    Command.SLOTS: b"\12",
    Command.LOST: b"\13",
}

WORKER_V01 = WorkerDialect("0.1", (b"", WORKER_01), _CODES_01)
WORKER_V02 = WorkerDialect("0.2", (WORKER_02,), _EXTENDED_02)
WORKER_MAJORTOMO = WorkerDialect("majortomo", (b"", WORKER_02), _CODES_02, silent_when_busy=True)

WORKER_DIALECTS: dict[tuple[bytes, ...], WorkerDialect] = {
    (WORKER_02,): WORKER_V02,
    (b"", WORKER_01): WORKER_V01,
    (b"", WORKER_02): WORKER_MAJORTOMO,
}
"""By the frames up to and including the header."""


class Capacity(NamedTuple):
    """What a worker takes, by its READY."""

    slots: int
    """Requests at a time; 0: it said no SLOTS, and takes one of its only service."""
    limits: dict[bytes, int]
    """Its services. Of each it takes at most so many at a time; 0: no limit but the slots."""


def read_capacity(service: bytes, words: Frames) -> Capacity | None:
    """Read the frames behind the command of a READY that says EXTENSION. None: a number is wrong, or there are too many
    services."""
    said = next((word for word in words if word.startswith(SLOTS)), None)
    limits = {service: 0}
    if said is None:
        return Capacity(0, limits)
    slots = read_slots(said[len(SLOTS) :])
    for word in words:
        if word.startswith(SERVICE):
            text, _, name = word[len(SERVICE) :].partition(b":")
            limit = read_slots(text)
            if limit is None:
                return None
            limits[name] = limit
    return Capacity(slots, limits) if slots and len(limits) <= MAX_SERVICES else None


def read_version(words: Frames) -> str:
    """Read a worker's version in the words of its READY; empty: it said none, or one that lists cannot show."""
    said = next((word[len(VERSION) :] for word in words if word.startswith(VERSION)), b"")
    try:
        version = said.decode()
    except UnicodeDecodeError:
        return ""
    return version if is_version(version) else ""


def read_held(words: Frames) -> tuple[bytes, Frames, Frames]:
    """Read under which name a worker keeps its requests, by its READY, which it has, and to which it has replied: the
    last MAX_SLOTS. Empty: it keeps none."""
    keeper = next((word[len(KEEPER) :] for word in words if word.startswith(KEEPER) and len(word) <= MAX_KEEPER), b"")
    if not keeper:
        return keeper, [], []
    held = [word[len(HELD) :] for word in words if word.startswith(HELD)]
    return keeper, held, [word[len(ENDED) :] for word in words if word.startswith(ENDED)][-MAX_SLOTS:]


def read_slots(text: bytes) -> int | None:
    """Read a number of requests; None: it is none, or too large."""
    if not text.isdigit() or len(text) > 4:
        return None
    number = int(text)
    return number if number <= MAX_SLOTS else None


EMPTY: Frames = [b""]
"""The body of a reply, or of a part of one, in which nothing is said: RFC 18 wants a frame in each."""


def joined(parts: Frames, last: Frames) -> Frames:
    """The whole reply: the frames of its PARTIALs and of its FINAL. Behind parts an empty one ends the stream."""
    return parts if parts and last == EMPTY else parts + last


class ErrorReply(NamedTuple):
    """An error reply: a status like HTTP's, a text for people, and details."""

    status: int
    text: str
    detail: Frames


def error_body(status: int, text: str, *detail: bytes) -> Frames:
    """The body of an error reply. `status` has three digits; another number becomes 500."""
    return [ERROR, b"%d %s" % (status if 100 <= status <= 999 else 500, text.encode(errors="replace")), *detail]


MALFORMED = "malformed error reply"
"""Begins the text of the error for a malformed error reply."""


def read_error(body: Sequence[bytes]) -> ErrorReply | None:
    """Read an error reply; None when the body is an ordinary one."""
    if not body or body[0] != ERROR:
        return None
    said = b"".join(body[1:2])
    status, _, text = said.partition(b" ")
    if len(status) != 3 or not status.isdigit():
        what = repr(said[:100].decode(errors="replace"))
        return ErrorReply(
            500, f"{MALFORMED}: {what} is not a status and a text, as in '500 no such file'", list(body[2:])
        )
    return ErrorReply(int(status), text.decode(errors="replace"), list(body[2:]))


_DRAINING = b"503 draining"
"""Begins the status frame of a Titanic node that is draining, and the text of such a broker's error reply."""

_SENT_AWAY = (_DRAINING, b"500 shutting down")


def is_sent_away(service: bytes, body: Sequence[bytes]) -> bool:
    """Return whether a reply announces that its server ends soon, so that another one should be asked. A worker's own
    reply never does, whatever it contains."""
    if not body:
        return False
    if body[0] == ERROR:
        return len(body) > 1 and body[1].startswith(_DRAINING)
    return service.startswith(b"titanic.") and body[0].startswith(_SENT_AWAY)


def service_fault(name: bytes) -> str | None:
    """Return what is wrong with a service name; None when it is valid: printable UTF-8 of 1 to 255 bytes."""
    if not name:
        return "service name is empty"
    if len(name) > MAX_SERVICE:
        return f"service name has {len(name)} bytes, at most {MAX_SERVICE} are allowed"
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return "service name is not UTF-8"
    return None if text.isprintable() else "service name has unprintable characters"
