"""Reading single requests."""

from __future__ import annotations

from collections.abc import Sequence

from titanic.errors import RecordCorrupt
from titanic.protocol.submit_options import MAX_KEY
from titanic.store.postgres.transaction import Looking
from titanic.store.records import Description, Outcome, Pending, StoredRequest
from titanic.store.states import State

_BODY = "SELECT body FROM titanic.request WHERE uuid = %s::uuid"
_FRAMES = "SELECT frames FROM titanic.reply WHERE uuid = %s::uuid"
_HOLDER = "SELECT uuids[1] FROM titanic.key WHERE owner = %s AND key = %s"


def state(tx: Looking, uuid: bytes) -> State | None:
    """Where the request is; None when it is unknown. Never RUNNING: the store can't tell."""
    one = tx.look(uuid)
    return None if one is None else one.state


def owner(tx: Looking, uuid: bytes) -> bytes | None:
    """Who submitted the request; empty when it belongs to nobody. None when it is unknown."""
    if (found := tx.answers.get(uuid)) is not None:
        return found.owner
    one = tx.seen[uuid] if uuid in tx.seen else tx.look(uuid)  # it never changes, so what is relied on will do
    return None if one is None else one.owner


def describe(tx: Looking, uuid: bytes) -> Description | None:
    """All about the request but its frames; None when it is unknown."""
    one = tx.look(uuid)
    return None if one is None else one.description


def request(tx: Looking, uuid: bytes) -> StoredRequest | None:
    """The request as it was accepted; None when it is unknown."""
    one = tx.look(uuid)
    if one is None:
        return None
    rows = tx.fetch(_BODY, uuid.hex())
    if not rows:
        return None  # it was closed since it was foreseen
    ((body,),) = rows
    expect_frames(uuid, "request", body, one.body_frames, one.body_bytes)
    return StoredRequest(
        uuid=uuid,
        service=one.service,
        body=body,
        priority=one.priority,
        submitted_at=one.submitted_at,
        not_before=one.not_before,
        expires_at=one.expires_at,
        max_attempts=one.max_attempts,
        options=one.options,
        key=one.key,
        owner=one.owner,
    )


def reply(tx: Looking, uuid: bytes) -> Outcome | Pending | None:
    """How the request ended, that it hasn't yet, or None when it is unknown."""
    if not tx.LOCKS:
        found = tx.answer(uuid)
        if found is None:
            return None
        if found.frames is not None:
            expect_frames(uuid, "reply", found.frames, found.reply_frames, found.reply_bytes)
            return found.answer
    one = tx.look(uuid, reply=True)
    if one is not None and one.has_ended and one.frames is None:
        one = tx.look_again(uuid)  # it may have been tried again since it was foreseen, or closed
    if one is None:
        return None
    if one.has_ended and one.frames is None:
        (one.frames,) = tx.fetch_row(
            _FRAMES,
            uuid.hex(),
        )
    if one.frames is not None:
        expect_frames(uuid, "reply", one.frames, one.reply_frames, one.reply_bytes)
    return one.answer


def holder(tx: Looking, key: bytes, owner: bytes = b"") -> bytes | None:
    """The id of the request that its owner submitted with this idempotency key, also when it is closed."""
    rows = tx.fetch(_HOLDER, owner, key) if 0 < len(key) <= MAX_KEY else []
    return rows[0][0] if rows else None


def expect_frames(uuid: bytes, table: str, frames: Sequence[bytes], count: int, size: int) -> None:
    """Raise RecordCorrupt unless the frames are those that were counted when they were stored."""
    there = sum(map(len, frames))
    if len(frames) != count or there != size:
        fact = f"it has {len(frames)} frames of {there} bytes, not {count} of {size}"
        raise RecordCorrupt(uuid, table, fact)
