"""titanic.reply: how requests have ended, of one (RFC 9) or of several in one message.

    request body    uuid                    one
                    uuid 0A uuid 0A uuid…   several: one frame, one UUID a line, at most MOST_UUIDS

    reply body      200 body…   300 (pending)   400 (unknown)   500 state detail…     of one
                    200 summary frame…                                                of several

The summary has a line for each UUID, in their order: the status and the number of frames that are its own,
`200 1` for example. They follow behind the summary, those of the first UUID first; of a 500 the first one is its text.
A 500 without a state, which is `failed` for example, is not for good: ask again.
A summary can be shorter than the question: when the frames so far are MOST_BYTES and more, the rest is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from titanic.errors import RecordCorrupt
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.store import Outcome, ReadTransaction, Status

MOST_BYTES = 1 << 20


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
        except RecordCorrupt as error:  # a damaged record is no reason to keep the others back
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
