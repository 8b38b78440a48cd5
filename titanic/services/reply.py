"""titanic.reply: how requests have ended, one (RFC 9) or several in one message: see PROTOCOL.md."""

from __future__ import annotations

from collections.abc import Sequence

from titanic.errors import RecordCorrupt
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.store import Outcome, ReadTransaction, Status

MOST_BYTES = 1 << 20
"""Bytes of frames in one answer, roughly: a summary ends when there are so many."""


def answer(transaction: ReadTransaction, body: Frames) -> tuple[Frames, int]:
    """The answer to a titanic.reply, and how many replies are in it."""
    uuids = tsp.read_uuids(body)
    if uuids is None:
        return tsp.BAD_UUID, 0
    if len(uuids) > 1:
        return _summed_up(transaction, uuids)
    frames = of_one(transaction, uuids[0])
    return frames, int(frames[0] != tsp.PENDING and frames is not tsp.UNKNOWN)


def of_one(transaction: ReadTransaction, uuid: bytes) -> Frames:
    """How one request has ended, in the words of RFC 9."""
    outcome = transaction.reply(uuid)
    if outcome is None:
        return tsp.UNKNOWN
    if not isinstance(outcome, Outcome):
        return [tsp.PENDING]
    if outcome.status is Status.DONE:
        return [tsp.OK, *outcome.frames]
    return tsp.ended(outcome.status.name.lower(), outcome.reason, outcome.frames)


def _summed_up(transaction: ReadTransaction, uuids: Sequence[bytes]) -> tuple[Frames, int]:
    summary: list[bytes] = []
    frames: Frames = []
    found = size = 0
    for uuid in uuids:
        try:
            status, *own = of_one(transaction, uuid)
        except RecordCorrupt as error:  # the others are not kept back by a damaged record
            status, *own = tsp.failure(f"not read: {error}")
        found += status != tsp.PENDING and status is not tsp.UNKNOWN[0]
        if status[:3] == b"500":
            own.insert(0, status[4:])
        summary.append(b"%s %d" % (status[:3], len(own)))
        frames += own
        size += sum(map(len, own))
        if size >= MOST_BYTES:
            break
    return [tsp.OK, b"\n".join(summary), *frames], found
