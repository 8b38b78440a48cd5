"""What every core can do, and all that a shell needs to know of it."""

from __future__ import annotations

from typing import Protocol

from broker.core.mdp import Frames, Output, Peer


class Core(Protocol):
    """A state machine with time as an argument: `now` is monotonic seconds and never goes back."""

    def receive(self, peer: Peer, frames: Frames, now: float) -> None:
        """Take one message. Whatever it holds, no exception comes out."""

    def tick(self, now: float) -> None:
        """Do what is due by now."""

    def next_deadline(self) -> float | None:
        """When `tick` is wanted next; None: not before something else happens."""

    def take_output(self) -> list[Output]:
        """What is to be sent, in order; frames None means: close the connection to this peer."""
