"""The settings of services, in a row of `meta`."""

from __future__ import annotations

from titanic.store import service_settings
from titanic.store.lmdb.schema import PAGE, SERVICES_KEY, odd_row
from titanic.store.lmdb.transaction import Reading, Writing
from titanic.store.service_settings import ServiceSetting, ServiceSettings


def settings(tx: Reading) -> ServiceSettings:
    """What is set for services. Raises StoreCorrupt."""
    row = tx.raw.get(SERVICES_KEY, db=tx.db.meta)
    if row is None:
        return {}
    try:
        return service_settings.decode(bytes(row))
    except ValueError:
        raise odd_row("meta", SERVICES_KEY, row) from None


def set_service(tx: Writing, service: bytes, setting: ServiceSetting) -> ServiceSettings:
    """Set that for a service, and return what is set for all. Raises InvalidRequest when there are too many."""
    found = service_settings.changed(settings(tx), service, setting)
    row = service_settings.encode(found)
    tx.put(tx.db.meta, SERVICES_KEY, row)
    tx.added += len(row) + PAGE
    return found
