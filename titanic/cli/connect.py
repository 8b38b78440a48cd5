"""Clients for commands. When no server is there, they say so at once, and not only after the time-out."""

from __future__ import annotations

import time
from collections.abc import Sequence

import broker
from broker import unreachable
from titanic.cli.endpoint import EndpointReach
from titanic.cli.printing import say
from titanic.client.client import Client
from titanic.errors import TimedOut
from titanic.util.text import duration

READ_TIMEOUT = 1.0
"""Seconds that a command which changes nothing waits for a server: a restart takes as long."""

AGAIN = 0.1
"""Seconds between two tries to connect."""


def connect(reach: EndpointReach, *, wait: float | None = None) -> Client:
    """A client that waits for `wait` seconds, by default the time-out."""
    report_absence(reach.endpoint, reach.timeout if wait is None else wait)
    return Client(reach.endpoint, timeout=reach.timeout, version=reach.mdp, key=reach.curve)


def connect_to_read(reach: EndpointReach, advice: str = "", *, retries: int | None = None) -> Client:
    """A client that changes nothing. Raises TimedOut when no server accepts a connection within a second."""
    seconds = min(READ_TIMEOUT, reach.timeout)
    until = time.monotonic() + seconds
    while reason := unreachable(reach.endpoint):
        if time.monotonic() >= until:
            raise TimedOut(
                reason, f"tried for {duration(seconds)}", f"is a server running, and is this its endpoint?{advice}"
            )
        time.sleep(AGAIN)
    return Client(reach.endpoint, timeout=reach.timeout, retries=retries, version=reach.mdp, key=reach.curve)


def report_absence(endpoint: tuple[str, ...], seconds: float) -> None:
    """Say that no server is there, and how long the command waits for one."""
    if reason := unreachable(endpoint):
        say(f"{reason}; waiting up to {duration(seconds)} for a server there")


def name_version(error: Exception, reach: EndpointReach) -> None:
    """After a time-out: raises TimedOut that names the version to speak when the broker there knows only 0.1."""
    for where in reach.endpoint if reach.mdp not in (None, "0.1") else ():
        if not unreachable([where]) and answers(reach, [where], "0.1") and _is_other(reach, where):
            fact = f"the broker at {where} speaks MDP 0.1 and is not a titanic broker"
            raise TimedOut(f"no answer in MDP {reach.mdp}", fact, "try --mdp 0.1") from error


def answers(reach: EndpointReach, endpoint: Sequence[str], mdp: str | None) -> bool:
    """Whether a broker answers there in this version of MDP; None: in any that is detected."""
    with broker.Client(endpoint, timeout=1.0, retries=0, version=mdp, key=reach.curve) as client:
        try:
            client.present("mmi.service")
        except broker.BrokerError:
            return False
        return True


def _is_other(reach: EndpointReach, endpoint: str) -> bool:
    """Whether a broker that answers in MDP 0.1 is not of this project."""
    with broker.Client(endpoint, timeout=1.0, retries=0, version="0.1", key=reach.curve) as client:
        try:
            return not client.call("mmi.broker", b"mmi.broker")[0].startswith(b"{")
        except broker.BrokerError:
            return True
