"""Lazy Pirate on the wire (Guide, chapter 4, "Client-Side Reliability"): what REQ and REP sockets say to each other.

`''` is an empty frame and `[…]` an address stack, which a REP socket or a server keeps and puts back.

    REQUEST    client → server    […] '' body…
    REPLY      server → client    […] '' body…

The patience is not here: `broker.core.client.ClientSession` has it, for these frames as for MDP's.
"""

from __future__ import annotations

from broker.core.mdp import MAX_STACK, Frames, ReplyMessage


class PlainDialect:
    """Requests and replies without a service, one reply each."""

    def encode_request(self, stack: Frames, service: bytes, body: Frames) -> Frames:
        """Frames of a request; there is no place for a service."""
        return [*(stack or [b""]), *body]

    def parse_reply(self, frames: Frames) -> ReplyMessage | None:
        """Read a reply; None when it has no envelope or no body."""
        opened = open_envelope(frames)
        return None if opened is None else ReplyMessage(opened[0], True, None, opened[1])


def open_envelope(frames: Frames) -> tuple[Frames, Frames] | None:
    """The address stack with its `''`, and the body; None when either is missing or the stack is too high."""
    try:
        at = frames.index(b"", 0, MAX_STACK + 1) + 1
    except ValueError:
        return None
    return (frames[:at], frames[at:]) if len(frames) > at else None


PLAIN = PlainDialect()
