"""Requests that are executed once (Guide, chapter 4, "Idempotent Services"), without sockets.

    REQUEST    client number body…

Two frames in front of the body: the client's name, and its number of the request. Both are opaque and compared byte by
byte. A client that sends a request again sends the same two frames, and gets the same reply.

    request    new to the worker    running                              executed
    ---------  -------------------  -----------------------------------  ---------------
    new        execute → running    –                                    –
    running    –                    the latest waits for the reply       –
    replied    –                    –                                    the stored reply

A request that failed is forgotten: the next one like it is executed again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, Protocol

from broker.config import check
from broker.core.mdp import Frames
from broker.errors import RemoteError


class Stamp(NamedTuple):
    """The client's name, and its number of the request."""

    client: bytes
    number: bytes


def open_stamp(frames: Frames) -> tuple[Stamp, Frames] | None:
    """The stamp of a request, and its body; None when there is none, or no body."""
    if len(frames) < 3 or not frames[0] or not frames[1]:
        return None
    return Stamp(frames[0], frames[1]), frames[2:]


class Superseded(RemoteError):
    """The same request was asked again since, and the later one gets the reply. A server that knows that both came
    from one client does not pass this on (`broker.patterns.request_reply.core`)."""

    def __init__(self) -> None:
        super().__init__(409, "the same request was sent again; the reply goes to its latest sender")


class ReplyStore(Protocol):
    """Where replies are kept. Several workers that share one execute a request once, unless they have it at the same
    moment."""

    def get(self, stamp: Stamp, now: float) -> list[Frames] | None:
        """The reply to a request, part by part; None when there is none."""

    def put(self, stamp: Stamp, reply: list[Frames], now: float) -> None:
        """Keep a reply."""


class Replies:
    """Replies in memory: a number of them, some bytes, for some time; the oldest go first.

    A duplicate that comes after its reply has gone is executed again.
    """

    def __init__(self, *, most: int = 100_000, most_bytes: int = 64 << 20, keep: float = 86_400.0) -> None:
        """`keep`: seconds."""
        check(most > 0, f"most is {most}; it must be 1 or more")
        check(keep > 0, f"keep is {keep}; it must be more than 0")
        self.bytes = 0
        """Of all replies and stamps."""
        self._most = most
        self._most_bytes = most_bytes
        self._keep = keep
        self._replies: OrderedDict[Stamp, tuple[float, int, list[Frames]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, stamp: Stamp, now: float) -> list[Frames] | None:
        """The reply, if it is not too old."""
        self._trim(now)
        kept = self._replies.get(stamp)
        return kept[2] if kept else None

    def put(self, stamp: Stamp, reply: list[Frames], now: float) -> None:
        """Keep a reply. One that is larger than all that may be kept pushes out everything, itself too."""
        if (old := self._replies.pop(stamp, None)) is not None:
            self.bytes -= old[1]
        size = len(stamp.client) + len(stamp.number) + sum(len(frame) for part in reply for frame in part)
        self._replies[stamp] = (now + self._keep, size, reply)
        self.bytes += size
        self._trim(now)

    def _trim(self, now: float) -> None:
        replies = self._replies
        while replies:
            expires, size, _ = next(iter(replies.values()))
            if expires > now and len(replies) <= self._most and self.bytes <= self._most_bytes:
                return
            replies.popitem(last=False)
            self.bytes -= size
