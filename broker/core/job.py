"""A request as a worker gets it."""

from __future__ import annotations

from typing import NamedTuple

from broker.core.json_reader import read_json
from broker.core.mdp import Frames


class Job(NamedTuple):
    """A request to be handled. `number` is needed to give the reply back.

    `client` is the frame that says whose it is; a broker of this project gives each delivery one of its own.
    """

    number: int
    body: Frames
    client: bytes = b""

    @property
    def context(self) -> bytes:
        """What a queue has said of the request, behind the number of the delivery: a JSON object; empty: nothing."""
        at = self.client.find(b"{")
        return self.client[at:] if at >= 0 else b""

    def __str__(self) -> str:
        context = self.context
        number = self.client[: len(self.client) - len(context)]
        client = number.decode() if number.isalnum() else number.hex()
        where = f"request {self.number} of this worker, delivery {client}, body of {sum(map(len, self.body))} B"
        return f"{uuid}; {where}" if (uuid := _uuid_in(context)) else where


def _uuid_in(context: bytes) -> str:
    """The UUID that a queue has given a request: its log is to be found by it."""
    try:
        uuid = str(read_json(context or b"{}").get("uuid", ""))
    except (ValueError, AttributeError):
        return ""
    return uuid if uuid.isalnum() and len(uuid) == 32 else ""
