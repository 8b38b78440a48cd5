"""What operators have set for single services. The store keeps it, so it holds for all nodes that share the store, and
survives restarts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from titanic.errors import InvalidRequest

MOST = 1000
"""Services that can have settings."""


class Limits(NamedTuple):
    """What holds for a service at all nodes; 0: no limit. `waiting` requests and their `bytes`, how many are `running`,
    and how many attempts begin in a second (`rate`)."""

    waiting: int = 0
    bytes: int = 0
    running: int = 0
    rate: float = 0.0


class LimitOverride(NamedTuple):
    """Limits of a service that an admin has set, in place of the configured ones; 0: the configured one holds. `at`:
    when, in µs since 1970. `by`: the admin; empty without access control."""

    limits: Limits
    at: int
    by: str


class ServiceSetting(NamedTuple):
    """`paused`: its requests are given to no worker. `on_end`: whenever one of its requests has ended, a request for
    this service is stored; empty: none. `limits`: stored as a fact (titanic/facts/set_service.py)."""

    paused: bool = False
    on_end: bytes = b""
    limits: LimitOverride | None = None


NOTHING_SET = ServiceSetting()

ServiceSettings = Mapping[bytes, ServiceSetting]
"""By service; those of which nothing is set are absent."""


def changed(settings: ServiceSettings, service: bytes, setting: ServiceSetting) -> dict[bytes, ServiceSetting]:
    """The settings with that of one service. Raises InvalidRequest when there are too many."""
    found = {**settings, service: setting}
    if setting == NOTHING_SET:
        del found[service]
    if len(found) > MOST:
        raise InvalidRequest("too many services have settings", f"the maximum is {MOST}", "clear some")
    return found


def encode(settings: ServiceSettings) -> bytes:
    """The settings as JSON, in one text."""
    said = {
        name.decode(errors="surrogateescape"): [one.paused, one.on_end.decode(errors="surrogateescape")]
        for name, one in sorted(settings.items())
    }
    return json.dumps(said, separators=(",", ":")).encode()


def decode(text: bytes) -> dict[bytes, ServiceSetting]:
    """What `encode` has made. Raises ValueError."""
    try:
        return {
            name.encode(errors="surrogateescape"): ServiceSetting(bool(paused), on_end.encode(errors="surrogateescape"))
            for name, (paused, on_end) in json.loads(text or b"{}").items()
        }
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"invalid service settings: {error}") from None
