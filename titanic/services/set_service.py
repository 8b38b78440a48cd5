"""What titanic.admin sets for a service, and how it is told: see PROTOCOL.md."""

from __future__ import annotations

from typing import Any

from titanic.protocol import tsp
from titanic.services.ask import check_names
from titanic.store import NOTHING_SET, ServiceSetting, ServiceSettings, WriteTransaction

KNOWN = ("do", "on_end", "paused", "service")


def read_options(given: dict[str, Any]) -> dict[str, Any]:
    """Check the options; ValueError says what is wrong."""
    check_names(given, KNOWN)
    options: dict[str, Any] = {"do": "set", "service": _name("service", given.get("service"))}
    if "paused" in given:
        if given["paused"] is not None and not isinstance(given["paused"], bool):
            raise ValueError("paused must be true, false or null")
        options["paused"] = bool(given["paused"])
    if "on_end" in given:
        options["on_end"] = b"" if given["on_end"] is None else _name("on_end", given["on_end"])
        if options["on_end"] == options["service"]:
            raise ValueError("on_end must be another service, or each end would make a new request")
    return options


def _name(what: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be the name of a service")
    name = value.encode(errors="replace")
    if fault := tsp.request_fault([name, b""]):
        raise ValueError(f"{what}: {fault}")
    return name


def apply(transaction: WriteTransaction, options: dict[str, Any]) -> tuple[ServiceSettings, dict[str, Any]]:
    """Change what is given. Returns what is set for all services, and what is told of this one."""
    service = options["service"]
    before = transaction.service_settings().get(service, NOTHING_SET)
    setting = before._replace(**{name: options[name] for name in ("paused", "on_end") if name in options})
    settings = transaction.set_service(service, setting)
    return settings, {"done": int(setting != before), "service": service.decode(), **_told(setting)}


def document(settings: ServiceSettings) -> dict[str, Any]:
    """What titanic.stats tells."""
    return {name.decode(errors="replace"): _told(setting) for name, setting in settings.items()}


def _told(setting: ServiceSetting) -> dict[str, Any]:
    return {"paused": setting.paused, "on_end": setting.on_end.decode(errors="replace") or None}
