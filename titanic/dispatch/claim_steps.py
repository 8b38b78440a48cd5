"""How far a request of a shared store is that the node holds, and what the node asks of the store about it.

What follows from it is in claims.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from titanic.store import Bound, Place


class ClaimState(Enum):
    """How far a request is that the node holds."""

    CLAIMED = "claimed"
    FLYING = "flying"
    SETTLING = "settling"
    RETURNING = "returning"


class ClaimEvent(Enum):
    """What the dispatcher tells of a request."""

    SENT = "sent"
    GIVEN_BACK = "given back"
    ENDED = "ended"


TRANSITIONS: dict[tuple[ClaimState, ClaimEvent], ClaimState] = {
    (ClaimState.CLAIMED, ClaimEvent.SENT): ClaimState.FLYING,
    (ClaimState.CLAIMED, ClaimEvent.GIVEN_BACK): ClaimState.RETURNING,
    (ClaimState.CLAIMED, ClaimEvent.ENDED): ClaimState.SETTLING,  # its time to live was over
    (ClaimState.FLYING, ClaimEvent.GIVEN_BACK): ClaimState.RETURNING,
    (ClaimState.FLYING, ClaimEvent.ENDED): ClaimState.SETTLING,
}
"""What has no entry changes nothing."""


class Claim(NamedTuple):
    """Claim at most so many requests of each service: answer with `claimed` or `failed`."""

    number: int
    incarnation: int
    wants: dict[bytes, int]
    bounds: Mapping[bytes, Bound] = {}
    """What holds for some of them over all nodes."""


class Release(NamedTuple):
    """Free these requests: answer with `released` or `failed`."""

    number: int
    incarnation: int
    places: list[Place]


class Writing(NamedTuple):
    """Write the outcomes of these requests: answer with `written` or `failed`."""

    number: int
    incarnation: int
    uuids: list[bytes]


class Room(NamedTuple):
    """How many requests of a service could begin now, and how many more could be sent ahead."""

    idle: int
    ahead: int = 0


@dataclass(slots=True)
class Hold:
    """A request that the node holds."""

    place: Place
    state: ClaimState
    since: int
    """The number of the answer by which it was claimed, or claimed again: what was asked before is about an earlier
    claim."""
    bounded: bool = False
    """Whether it counts for its service's bound, until the store is told that no worker is at it."""
