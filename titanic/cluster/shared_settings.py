"""What servers of a shared store have in common: settings and limits of services.

The store has both. Each server reads them before it claims anything, with each renewal of its lease, and when another
server reports a change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from titanic.cluster.background import BackgroundRead, BackgroundReader
from titanic.errors import OtherLimits
from titanic.facts import set_service
from titanic.logs import Incident, event
from titanic.services.ask import Inbox
from titanic.settings import ServiceLimits
from titanic.store import (
    Limits,
    ReadTransaction,
    ServiceSettings,
    SharedReadTransaction,
    SharedWriteTransaction,
    Store,
)
from titanic.util.text import quoted

log = logging.getLogger(__name__)


class SharedLimits:
    """The limits of services that all servers of a store apply."""

    def __init__(self, store: Store, given: Mapping[bytes, ServiceLimits]) -> None:
        """`given`: by the options of this server. Raises OtherLimits if the store has others."""
        self._store = store
        self._own = _own(given)
        self._given = _as_stored(given)
        self._held = self._seen = self._agree()
        """What this server applies, and what it found last."""

    @property
    def held(self) -> dict[bytes, ServiceLimits]:
        """The limits that this server applies; those on keeping are its own."""
        shared = {name: limits._asdict() for name, limits in self._held.items()}
        names = shared.keys() | self._own.keys()
        parts: dict[bytes, Any] = {name: {**shared.get(name, {}), **self._own.get(name, {})} for name in names}
        return {name: ServiceLimits(**part) for name, part in parts.items()}

    def change(self, given: Mapping[bytes, ServiceLimits]) -> None:
        """Store, for all servers, the limits that differ from those given before. Raises StoreError; then nothing
        changes."""
        before, now = self._given, _as_stored(given)
        with self._store.write() as transaction:
            shared = cast(SharedWriteTransaction, transaction)
            shared.change_limits({name: now.get(name) for name in _different(before, now)})
            self._held = dict(shared.service_limits())
        self._own, self._given = _own(given), now

    def found(self, limits: Mapping[bytes, Limits]) -> bool:
        """Apply the limits that the store has now. Returns whether they have changed since the last call."""
        if limits == self._seen:
            return False
        before, self._held = self._held, dict(limits)
        self._seen = self._held
        for name in sorted(_different(before, self._held)):
            level = logging.WARNING if self._given.get(name) != limits.get(name) else logging.INFO
            facts = quoted(name.decode(errors="replace")), _written(limits.get(name)), _written(before.get(name))
            log.log(level, "limits of %s: %s instead of %s, as set on another node", *facts, extra=event("limits"))
        return True

    def _agree(self) -> dict[bytes, Limits]:
        with self._store.write() as transaction:
            shared = cast(SharedWriteTransaction, transaction)
            shared.agree_limits(self._given)
            found = dict(shared.service_limits())
            for name, limits in self._given.items():
                if found[name] != limits:
                    what = f"the limits of {quoted(name.decode(errors='replace'))} differ from those of the other nodes"
                    fact = f"{_written(limits)} here, {_written(found[name])} in the database"
                    advice = "use the same on all; to change them, change them on a running node, and reload it"
                    raise OtherLimits(what, fact, advice)
        return found


class SettingsRead(BackgroundRead[ServiceSettings]):
    """The settings of services."""

    def __init__(self, changes: int) -> None:
        """`changes`: how many changes this server had made before."""
        self.changes = changes

    def read(self, transaction: ReadTransaction) -> ServiceSettings:
        return set_service.service_settings(transaction)


class LimitsRead(BackgroundRead[Mapping[bytes, Limits]]):
    """The limits of services."""

    def read(self, transaction: ReadTransaction) -> Mapping[bytes, Limits]:
        return cast(SharedReadTransaction, transaction).service_limits()


class ServiceSettingsCache:
    """Keeps settings of services up to date. Methods are called in the loop's thread, unless they say otherwise."""

    def __init__(
        self,
        store: Store,
        background: BackgroundReader,
        limits: SharedLimits | None,
        inbox: Inbox[SettingsRead],
    ) -> None:
        """`limits`: None if they are not shared."""
        self._store = store
        self._background = background
        self._limits = limits
        self._inbox = inbox
        self._changes = 0
        """The number of changes by this server."""
        self._unread = Incident(log, "read what is set for services")

    def read_first(self) -> None:
        """Read the settings before anything is claimed, in the thread of the lease. Raises StoreError."""
        answer = SettingsRead(self._changes)
        with self._store.read() as transaction:
            answer.found = answer.read(transaction)
        self._inbox.post(answer)

    def refresh(self) -> None:
        """Read all settings again: they may have changed."""
        self._background.ask(SettingsRead(self._changes))
        if self._limits is not None:
            self._background.ask(LimitsRead())

    def changed_here(self) -> None:
        """Note a change by this server. Any thread may call it."""
        self._changes += 1

    def found(self, answer: SettingsRead) -> bool:
        """Whether these settings are to be applied: they are not older than the last change by this server."""
        if answer.error is not None:
            self._unread.failed(answer.error)
            return False
        self._unread.recovered()
        return answer.changes == self._changes  # otherwise it may have been read before that

    def found_limits(self, answer: LimitsRead) -> bool:
        """Take these limits over. Whether they have changed."""
        if answer.error is not None:
            self._unread.failed(answer.error)
            return False
        return self._limits is not None and self._limits.found(answer.found)


def _as_stored(limits: Mapping[bytes, ServiceLimits]) -> dict[bytes, Limits]:
    stored = {name: Limits(one.waiting, one.bytes, one.running, one.rate) for name, one in limits.items()}
    return {name: one for name, one in stored.items() if any(one)}


def _own(limits: Mapping[bytes, ServiceLimits]) -> dict[bytes, dict[str, float | str]]:
    """Those on keeping, of services that have some."""
    names = "keep", "keep_failed", "keep_body"
    kept = {service: {name: getattr(one, name) for name in names} for service, one in limits.items()}
    return {name: one for name, one in kept.items() if any(one.values())}


def _different(before: Mapping[bytes, Limits], now: Mapping[bytes, Limits]) -> set[bytes]:
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def _written(limits: Limits | None) -> str:
    """Limits as the option has them."""
    given = {name: value for name, value in (limits or Limits())._asdict().items() if value}
    return ",".join(f"{name}={value:g}{'/s' if name == 'rate' else ''}" for name, value in given.items()) or "none"
