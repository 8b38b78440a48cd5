"""Limits of services that admins set while servers run. They are laid over the configured ones at every node.

    key           value
    ------------  -------------
    l  service    LimitOverride
    l             empty: nodes that change limits wait for each other here

Nodes read these rows with the other settings of services. The configured limits, on which nodes agree, stay as they
are, and hold again when a row is deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import cast

from msgspec import MsgspecError, msgpack

from titanic.errors import InvalidRequest
from titanic.protocol.documents import LimitsSet, LimitValues
from titanic.settings import ServiceLimits
from titanic.store import (
    NOTHING_SET,
    LimitOverride,
    Limits,
    ReadTransaction,
    ServiceSetting,
    ServiceSettings,
    WriteTransaction,
)

KIND = b"l"

MOST = 1000
"""Services that can have such limits."""

_decoder = msgpack.Decoder(LimitOverride)


class KnownSettings:
    """The settings as this process knows them, in the forms in which they are needed. Any thread may read."""

    def __init__(self, configured: Mapping[bytes, ServiceLimits] = MappingProxyType({})) -> None:
        self.all: ServiceSettings = {}
        self.configured = configured
        """The limits without those that admins have set."""
        self.limits = configured
        """Those in force."""
        self.missed = 0
        """Requests for ends that found no room since the start. What had ended has ended all the same."""
        self.paused: Collection[bytes] = frozenset()
        self.on_end: Mapping[bytes, bytes] = {}
        """The service that receives the completion events of each service. The events themselves cause none, so there
        are no loops."""

    def know(self, settings: ServiceSettings, configured: Mapping[bytes, ServiceLimits] | None = None) -> None:
        """These hold now. `configured`: other limits than before."""
        self.all = settings
        self.configured = self.configured if configured is None else configured
        self.limits = in_force(self.configured, settings)
        self.paused = frozenset(name for name, one in settings.items() if one.paused)
        targets = {one.on_end for one in settings.values()}
        self.on_end = {name: one.on_end for name, one in settings.items() if one.on_end and name not in targets}


def service_settings(transaction: ReadTransaction) -> dict[bytes, ServiceSetting]:
    """All that is set for services, with their limits."""
    found = dict(transaction.service_settings())
    for key, value in transaction.facts(KIND, limit=MOST + 1):
        with contextlib.suppress(MsgspecError):  # of a later version, or the row without a service
            service = key.removeprefix(KIND)
            found[service] = found.get(service, NOTHING_SET)._replace(limits=_decoder.decode(value))
    return found


def change(
    transaction: WriteTransaction,
    service: bytes,
    changes: Mapping[str, float],
    settings: ServiceSettings,
    act: tuple[int, str],
) -> LimitOverride | None:
    """Set these limits of a service; 0: the configured one. `act`: when, and who. Return what is set now. Raises
    InvalidRequest when there are too many."""
    before = settings.get(service, NOTHING_SET).limits
    old = before.limits if before else Limits()
    limits = old._replace(**changes)  # type: ignore[arg-type]
    if limits == old:
        return before
    now = LimitOverride(limits, *act) if any(limits) else None
    if before is None and sum(one.limits is not None for one in settings.values()) >= MOST:
        raise InvalidRequest("too many services have limits that were set", f"the maximum is {MOST}", "reset some")
    transaction.put_facts([(KIND + service, msgpack.encode(now) if now else None)])
    return now


def in_force(configured: Mapping[bytes, ServiceLimits], settings: ServiceSettings) -> dict[bytes, ServiceLimits]:
    """The limits of all services that have some."""
    found = dict(configured)
    for service, one in settings.items():
        if one.limits is not None:
            given = {name: value for name, value in one.limits.limits._asdict().items() if value}
            found[service] = replace(found.get(service) or ServiceLimits(), **given)
    return found


def described(override: LimitOverride, configured: ServiceLimits | None, *, names: bool) -> LimitsSet:
    """What was set for a service, and the configured limits. `names`: whether to say by whom."""
    by = override.by if names else ""
    return {**values(override.limits), "configured": values(configured or Limits()), "at": override.at, "by": by}


def values(limits: ServiceLimits | Limits) -> LimitValues:
    """Limits as JSON has them."""
    return cast(LimitValues, {name: getattr(limits, name) or None for name in Limits._fields})
