"""The settings of services, a row each."""

from __future__ import annotations

from titanic.store import service_settings
from titanic.store.postgres.transactions.looking import Looking
from titanic.store.postgres.transactions.writing import Writing
from titanic.store.service_settings import NOTHING_SET, ServiceSetting, ServiceSettings

_ALL = "SELECT name, paused, on_end FROM titanic.service"
_SET = """
INSERT INTO titanic.service AS old (name, paused, on_end) VALUES (%s, %s, %s)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, on_end = excluded.on_end RETURNING 1"""
_FORGET = "DELETE FROM titanic.service WHERE name = %s RETURNING 1"


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
