"""Settings of services, which titanic.admin changes and titanic.stats reports: see PROTOCOL.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from titanic.facts import set_limits
from titanic.protocol import tsp
from titanic.protocol.messages import SetAction
from titanic.settings import ServiceLimits
from titanic.store import NOTHING_SET, Limits, ServiceSetting, ServiceSettings, WriteTransaction
from titanic.util.text import limit_value


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
    if limits := _limits(options):
        transaction.put_facts([(set_limits.KIND, b"")])  # other nodes that change limits wait from here
    settings = set_limits.service_settings(transaction)
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
        setting = setting._replace(limits=set_limits.change(transaction, service, limits, settings, act))
        holds = set_limits.in_force(configured, {service: setting}).get(service, Limits())
        answer["limits"] = set_limits.values(holds)
        if setting.limits is not None:
            answer["limits_set"] = set_limits.described(setting.limits, configured.get(service), names=True)
    settings[service] = setting
    if setting == NOTHING_SET:
        del settings[service]
    return settings, {"done": int(setting != before), **answer}


def _limits(options: SetAction) -> dict[str, float]:
    given = {name: getattr(options, name) for name in Limits._fields}
    return {name: value or 0 for name, value in given.items() if value is not UNSET}


def described(options: SetAction) -> tuple[str, str]:
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
