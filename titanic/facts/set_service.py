"""What admins set for services while servers run: titanic.admin changes it, titanic.stats reports it (PROTOCOL.md).
Limits are laid over the configured ones at every node.

    key           value
    ------------  -------------
    l  service    LimitOverride
    l             empty: nodes that change settings wait for each other here

Nodes read these rows with the other settings of services. The configured limits, on which nodes agree, stay as they
are, and hold again when a row is deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

from msgspec import UNSET, MsgspecError, msgpack

from titanic.errors import InvalidRequest
from titanic.protocol import tsp
from titanic.protocol.documents import LimitsSet, LimitValues
from titanic.protocol.messages import SetAction
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
from titanic.util.clock import wall_us
from titanic.util.text import limit_value

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
        self.resumed: Mapping[bytes, int] = {}
        """When this process saw that services were no longer paused, in µs since 1970; the last MOST."""
        self.on_end: Mapping[bytes, bytes] = {}
        """The service that receives the completion events of each service. The events themselves cause none, so there
        are no loops."""
        self.event_services: Collection[bytes] = frozenset()
        """The services that receive completion events."""

    def know(self, settings: ServiceSettings, configured: Mapping[bytes, ServiceLimits] | None = None) -> None:
        """These hold now. `configured`: other limits than before."""
        self.all = settings
        self.configured = self.configured if configured is None else configured
        self.limits = in_force(self.configured, settings)
        paused = frozenset(name for name, one in settings.items() if one.paused)
        if ended := [name for name in self.paused if name not in paused]:
            kept = [one for one in self.resumed.items() if one[0] not in ended][-MOST:]
            self.resumed = {**dict(kept), **dict.fromkeys(ended, wall_us())}
        self.paused = paused
        self.event_services = frozenset(one.on_end for one in settings.values() if one.on_end)
        self.on_end = {
            name: one.on_end for name, one in settings.items() if one.on_end and name not in self.event_services
        }


def service_settings(transaction: ReadTransaction) -> dict[bytes, ServiceSetting]:
    """All that is set for services, with their limits."""
    found = dict(transaction.service_settings())
    for key, value in transaction.facts(KIND, limit=MOST + 1):
        with contextlib.suppress(MsgspecError):  # of a later version, or the row without a service
            service = key.removeprefix(KIND)
            found[service] = found.get(service, NOTHING_SET)._replace(limits=_decoder.decode(value))
    return found


def _name(what: str, value: str) -> bytes:
    name = value.encode()
    if fault := tsp.request_fault([name, b""]):
        raise ValueError(f"{what}: {fault}")
    return name


def apply(
    transaction: WriteTransaction,
    options: SetAction,
    act: tuple[int, str],
    configured: Mapping[bytes, ServiceLimits],
) -> tuple[ServiceSettings, dict[str, Any]]:
    """Change the given settings. Returns the settings of all services, and the answer for this one. `act`: when, and
    who. `configured`: limits. Raises ValueError and InvalidRequest."""
    service = _name("service", options.service)
    transaction.put_facts([(KIND, b"")])  # other nodes that change settings wait from here
    limits = _limits(options)
    settings = service_settings(transaction)
    before = setting = settings.get(service, NOTHING_SET)
    if options.paused is not UNSET:
        setting = setting._replace(paused=bool(options.paused))
    if options.on_end is not UNSET:
        on_end = b"" if options.on_end is None else _name("on_end", options.on_end)
        if on_end == service:
            raise ValueError("on_end must be another service: otherwise each notification would cause another")
        setting = setting._replace(on_end=on_end)
    if setting != before or not limits:
        transaction.set_service(service, setting._replace(limits=None))
    answer: dict[str, Any] = {"service": service.decode(), **_as_json(setting)}
    if limits:
        setting = setting._replace(limits=_change_limits(transaction, service, limits, settings, act))
        holds = in_force(configured, {service: setting}).get(service, Limits())
        answer["limits"] = values(holds)
        if setting.limits is not None:
            answer["limits_set"] = limits_set(setting.limits, configured.get(service), names=True)
    settings[service] = setting
    if setting == NOTHING_SET:
        del settings[service]
    return settings, {"done": int(setting != before), **answer}


def _change_limits(
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


def limits_set(override: LimitOverride, configured: ServiceLimits | None, *, names: bool) -> LimitsSet:
    """What was set for a service, and the configured limits. `names`: whether to say by whom."""
    by = override.by if names else ""
    return {**values(override.limits), "configured": values(configured or Limits()), "at": override.at, "by": by}


def values(limits: ServiceLimits | Limits) -> LimitValues:
    """Limits as JSON has them."""
    return cast(LimitValues, {name: getattr(limits, name) or None for name in Limits._fields})


def _limits(options: SetAction) -> dict[str, float]:
    given = {name: getattr(options, name) for name in Limits._fields}
    return {name: value or 0 for name, value in given.items() if value is not UNSET}


def act_of(options: SetAction) -> tuple[str, str]:
    """The act for the audit, and its text."""
    limits, others = _limits(options), {"paused": options.paused, "on_end": options.on_end}
    said = {name: value for name, value in others.items() if value is not UNSET}
    if [*said, *limits] == ["paused"]:
        return ("pause" if options.paused else "resume"), ""
    said |= {name: limit_value(name, value) if value else "configured" for name, value in limits.items()}
    return ("set" if len(said) > len(limits) else "limits"), " ".join(f"{name}={one}" for name, one in said.items())


def document(settings: ServiceSettings) -> dict[str, Any]:
    """The settings in titanic.stats."""
    return {name.decode(errors="replace"): _as_json(setting) for name, setting in settings.items()}


def _as_json(setting: ServiceSetting) -> dict[str, Any]:
    return {"paused": setting.paused, "on_end": setting.on_end.decode(errors="replace") or None}
