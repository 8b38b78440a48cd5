"""Whether the hooks of a service are told of its ends at all: that takes settings of services, which anybody with
`admin` may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from titanic.web.hooks.registry import ENDED

Settings = Mapping[str, Mapping[str, Any]]
"""What is set for services, as `titanic.stats` tells it."""


def sources(settings: Settings, service: str) -> list[str]:
    """The services whose ends are told to this one. With any, its own are told to nobody, whatever is set: there are
    no loops."""
    return sorted(name for name, one in settings.items() if one["on_end"] == service)


def why_silent(settings: Settings, service: str) -> str:
    """Why the hooks of a service are told nothing, and what to do; empty: they are told."""
    on_end = settings[service]["on_end"] if service in settings else None
    if on_end is None:
        what, fact = f"ends of '{service}' are told to nobody", f"its on_end was unset; hooks need it to be {ENDED}"
        return f"{what}; {fact}; put one of its hooks again"
    if on_end != ENDED:
        what, fact = f"ends of '{service}' are told to another service, '{on_end}'", f"hooks need them told to {ENDED}"
        return f"{what}; {fact}; have that one tell both, or unset its on_end and put one of its hooks again"
    if others := sources(settings, service):
        what, fact = f"ends of '{service}' are told to nobody", f"it is where the ends of '{others[0]}' are told"
        return f"{what}; {fact}, and what is told there has no ends of its own; have them told to another service"
    return ""
