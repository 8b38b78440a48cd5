"""Whether the queue is healthy, in plain words: what `titanic health` says, and what a person would notice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from titanic.web.figures.live import Sample
from titanic.web.pages.figures import Service
from titanic.web.words import counted, percent, size, span

SLOW = 2.5
"""Seconds: an answer that took longer is a warning."""

FILLED = 0.9
"""A store that is fuller is a warning."""

NAMED = 3
"""So many services are named in one sentence."""


class Health(NamedTuple):
    """`level`: good, warning or critical. `problems`: sentences, each with what to do."""

    level: str
    problems: list[str]


def judge(sample: Sample, services: Sequence[Service]) -> Health:
    """What is wrong."""
    stats, store = sample.stats, sample.stats["store"]
    critical, warnings = [], []
    if stats["disk_full"]:
        critical.append("The disk of the store is full: new requests are refused. Make room on it.")
    elif not stats["accepting"]:
        critical.append("The store is full: new requests are refused. Close what is done, or give it more capacity.")
    elif store["capacity"] and store["used"] > FILLED * store["capacity"]:
        share = percent(store["used"], store["capacity"])
        warnings.append(f"The store is {share} full, {size(store['used'])} are used. Close what is done.")
    if sample.took > SLOW:
        warnings.append(f"The server took {span(sample.took)} to answer. Its machine or its disk is busy.")
    if lonely := [service for service in services if service.is_lonely]:
        warnings.append(_lonely(lonely))
    if paused := [service for service in services if service.paused and service.waiting]:
        names = ", ".join(service.name for service in paused[:NAMED])
        more = f" and {counted(len(paused) - NAMED, 'other service')}" if len(paused) > NAMED else ""
        verb = "is" if len(paused) == 1 else "are"
        warnings.append(f"{names}{more} {verb} paused, and requests wait. Resume on the page of the service.")
    return Health("critical" if critical else "warning" if warnings else "good", critical + warnings)


def _lonely(services: Sequence[Service]) -> str:
    most = sorted(services, key=_waiting, reverse=True)
    names = ", ".join(f"{service.name} ({service.waiting:,} waiting)" for service in most[:NAMED])
    more = f" and {counted(len(most) - NAMED, 'other service')}" if len(most) > NAMED else ""
    verb = "has" if len(most) == 1 else "have"
    return f"{names}{more} {verb} no worker. Start one, or find out why its workers have gone."


def _waiting(service: Service) -> int:
    return service.waiting
