"""Settings of services, which titanic.admin changes and titanic.stats reports: see PROTOCOL.md."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from titanic.protocol import tsp
from titanic.protocol.messages import SetAction
from titanic.store import NOTHING_SET, ServiceSetting, ServiceSettings, WriteTransaction


def _name(what: str, value: str) -> bytes:
    name = value.encode()
    if fault := tsp.request_fault([name, b""]):
        raise ValueError(f"{what}: {fault}")
    return name


def apply(transaction: WriteTransaction, options: SetAction) -> tuple[ServiceSettings, dict[str, Any]]:
    """Change the given settings. Returns the settings of all services, and the answer for this one. Raises
    ValueError."""
    service = _name("service", options.service)
    before = setting = transaction.service_settings().get(service, NOTHING_SET)
    if options.paused is not UNSET:
        setting = setting._replace(paused=bool(options.paused))
    if options.on_end is not UNSET:
        on_end = b"" if options.on_end is None else _name("on_end", options.on_end)
        if on_end == service:
            raise ValueError("on_end must be another service: otherwise each notification would cause another")
        setting = setting._replace(on_end=on_end)
    settings = transaction.set_service(service, setting)
    return settings, {"done": int(setting != before), "service": service.decode(), **_as_json(setting)}


def described(options: SetAction) -> tuple[str, str]:
    """The act for the audit, and its text."""
    if options.on_end is UNSET and options.paused is not UNSET:
        return ("pause" if options.paused else "resume"), ""
    said = {"paused": options.paused, "on_end": options.on_end}
    return "set", " ".join(f"{name}={value}" for name, value in said.items() if value is not UNSET)


def document(settings: ServiceSettings) -> dict[str, Any]:
    """The settings in titanic.stats."""
    return {name.decode(errors="replace"): _as_json(setting) for name, setting in settings.items()}


def _as_json(setting: ServiceSetting) -> dict[str, Any]:
    return {"paused": setting.paused, "on_end": setting.on_end.decode(errors="replace") or None}
