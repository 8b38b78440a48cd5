"""The settings of services, and the limits that they have at all nodes: a row each."""

from __future__ import annotations

from collections.abc import Mapping

from titanic.store import service_settings
from titanic.store.postgres.connection import numbers, texts
from titanic.store.postgres.transaction import Looking
from titanic.store.postgres.writing import Writing
from titanic.store.service_settings import NOTHING_SET, ServiceSetting, ServiceSettings
from titanic.store.sharing import Limits

_ALL = "SELECT name, paused, on_end FROM titanic.service"
_SET = """
INSERT INTO titanic.service AS old (name, paused, on_end) VALUES (%s, %s, %s)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, on_end = excluded.on_end RETURNING 1"""
_FORGET = "DELETE FROM titanic.service WHERE name = %s RETURNING 1"


_LIMITS = "SELECT service, waiting, bytes, running, rate FROM titanic.service_limit"
_SET_LIMITS = """
INSERT INTO titanic.service_limit (service, waiting, bytes, running, rate)
SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[])
ON CONFLICT (service) DO UPDATE SET waiting = excluded.waiting, bytes = excluded.bytes, running = excluded.running,
    rate = excluded.rate"""
_AGREE = f"{_SET_LIMITS} WHERE NOT EXISTS (SELECT FROM titanic.node WHERE lease_until > clock_timestamp())"
_NO_LIMITS = "DELETE FROM titanic.service_limit WHERE service = ANY(%s::bytea[])"


def settings(tx: Looking) -> ServiceSettings:
    """What is set for services."""
    return {name: ServiceSetting(paused, on_end) for name, paused, on_end in tx.fetch(_ALL)}


def set_service(tx: Writing, service: bytes, setting: ServiceSetting) -> ServiceSettings:
    """Set that for a service, and return what is set for all. Raises InvalidRequest when there are too many."""
    found = service_settings.changed(settings(tx), service, setting)
    if setting == NOTHING_SET:
        tx.fetch(_FORGET, service)
    else:
        tx.fetch(_SET, service, *setting)
    return found


def service_limits(tx: Looking) -> dict[bytes, Limits]:
    """What holds for services at all nodes."""
    return {service: Limits(*rest) for service, *rest in tx.fetch_once(_LIMITS)}


def agree_limits(tx: Writing, given: Mapping[bytes, Limits]) -> None:
    """Set limits for services that have none; for the others, too, while no node is alive."""
    _set_limits(tx, _AGREE, given)


def change_limits(tx: Writing, changes: Mapping[bytes, Limits | None]) -> None:
    """Set limits, or none any more."""
    tx.fetch(_NO_LIMITS, texts([name for name, limits in changes.items() if limits is None]))
    _set_limits(tx, _SET_LIMITS, {name: limits for name, limits in changes.items() if limits is not None})


def _set_limits(tx: Writing, statement: str, given: Mapping[bytes, Limits]) -> None:
    if given:
        waiting, size, running, rate = zip(*given.values(), strict=True)
        tx.fetch(statement, texts([*given]), numbers(waiting), numbers(size), numbers(running), list(map(float, rate)))
