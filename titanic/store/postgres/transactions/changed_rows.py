"""The rows of changes, as they go into the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from titanic.store.records import Archivist


class RequestRow(NamedTuple):
    uuid: bytes
    service: bytes
    body: Sequence[bytes]
    body_bytes: int
    body_frames: int
    priority: int
    submitted_at: int
    not_before: int
    expires_at: int
    max_attempts: int
    options: bytes
    key: bytes
    owner: bytes


class ReadyRow(NamedTuple):
    uuid: bytes
    service: bytes
    rank: int
    attempts: int = 0
    dispatched_at: int = 0
    expires_at: int = 0
    reason: bytes = b""
    deliveries: int = 0


class LaterRow(NamedTuple):
    uuid: bytes
    due: int
    attempts: int
    dispatched_at: int
    expires_at: int
    priority: int
    service: bytes
    reason: bytes
    deliveries: int = 0


class ReplyRow(NamedTuple):
    uuid: bytes
    status: int
    attempts: int
    dispatched_at: int
    finished_at: int
    frames_bytes: int
    frames_count: int
    frames: Sequence[bytes]
    reason: bytes
    service: bytes
    owner: bytes


class KeyRow(NamedTuple):
    """An idempotency key that is new, as far as is known."""

    owner: bytes
    key: bytes
    until: int
    given: int
    uuids: Sequence[bytes]


class Agreement(NamedTuple):
    """What is agreed with an archive: whether it is registered, up to which number it has the closed requests, and
    whose it is."""

    registered: bool
    upto: int
    archivist: Archivist | None


class ClosedRow(NamedTuple):
    """What is kept of a closed request, beside what its rows say themselves. `flags` are of UNCLAIMED, WITH_REQUEST and
    WITH_REPLY."""

    uuid: bytes
    status: int
    attempts: int
    dispatched_at: int
    replied_at: int
    closed_at: int
    cost: int
    flags: int
    error: bytes


UNCLAIMED, WITH_REQUEST, WITH_REPLY = 1, 2, 4
