"""How many log-ins were refused, by address: with too many, the next has to wait. No clock is read here."""

from __future__ import annotations

import ipaddress

BURST, EVERY = 10, 6.0
"""So many at once, and one more each so many seconds."""

MOST = 10_000
"""Addresses that are remembered; a new one then takes the place of the oldest."""


class Refusals:
    """A bucket for each address that fills with refusals and empties with time."""

    def __init__(self) -> None:
        self._filled: dict[str, float] = {}
        """When the bucket of an address will be empty; the one refused last is the last."""

    def wait(self, address: str, now: float) -> float:
        """Seconds until somebody from there may try again; 0: now."""
        empty = self._filled.get(_network(address), now)
        return max(0.0, empty - now - (BURST - 1) * EVERY)

    def note(self, address: str, now: float) -> None:
        """One from there was refused."""
        name = _network(address)
        empty = max(now, self._filled.pop(name, now))
        if len(self._filled) >= MOST:
            del self._filled[next(iter(self._filled))]
        self._filled[name] = empty + EVERY


def _network(address: str) -> str:
    """Of an IPv6 address its /64, which is what one customer has."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64))) if found.version == 6 else address
