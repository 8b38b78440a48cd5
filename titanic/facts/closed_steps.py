"""Closed steps of flows, so that their flow can still be shown with their names, states and durations.

    key                  value
    -------------------  ----------
    f  flow 16  step 16  ClosedStepRow

A flow closes its steps when it has replied. The rows of the newest flows are kept, as many as their share of the room
for facts takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec

from broker import User
from titanic.facts.audit import FactsRing
from titanic.protocol.documents import ClosedStep
from titanic.protocol.tsp import FLOW_SUFFIX, read_step_key
from titanic.store import CloseResult, ReadTransaction, State, WriteTransaction

STEPS = b"f"

SHARE = 16
"""They have one in so many bytes of the room for facts."""

MOST = 20
"""Steps of a flow that are shown (titanic/client/flows.py): later chains and stages have no rows."""

MOST_IN_ALL = 500
"""Steps of a flow and of the flows within it that one answer names."""


class ClosedStepRow(msgspec.Struct, array_like=True):
    """A row; `run_us`: None: it had not ended, or is a flow."""

    owner: bytes
    service: str
    state: str
    run_us: int | None


_decoder = msgspec.msgpack.Decoder(ClosedStepRow)


class ClosedSteps:
    """Writes the rows, in the thread that writes to the store."""

    def __init__(self, room: int) -> None:
        """`room`: bytes of all facts."""
        self._ring = FactsRing(STEPS, room // SHARE)

    def put(self, transaction: WriteTransaction, closed: Iterable[tuple[bytes, CloseResult]]) -> None:
        """Note those of these requests that were steps of flows, by their UUIDs."""
        rows = []
        for uuid, one in closed:
            found = read_step_key(one.key) if one.key else None
            if found is None or max(found[1:]) >= MOST:
                continue
            state = "cancelled" if one.state in (State.WAITING, State.DELAYED) else one.state.name.lower()
            service = one.service.decode(errors="replace")
            run_us = None if service.endswith(FLOW_SUFFIX) else one.run_us  # of a flow: that of its last poll
            row = ClosedStepRow(one.owner, service, state, run_us)
            rows.append((STEPS + found[0] + uuid, msgspec.msgpack.encode(row)))
        if rows:
            self._ring.put(transaction, rows)


def closed_steps(transaction: ReadTransaction, flow: bytes, user: User | None) -> list[ClosedStep]:
    """The closed steps of a flow, and of flows within it, as far as this user may see them."""
    steps, flows, known = list[ClosedStep](), [flow], {flow}
    for uuid in flows:
        for key, value in transaction.facts(STEPS + uuid, limit=MOST_IN_ALL - len(steps)):
            with contextlib.suppress(msgspec.MsgspecError):  # of a later version
                row, step = _decoder.decode(value), key[-len(uuid) :]
                if (user is None or user.reads_all or row.owner == user.owner) and step not in known:
                    took = None if row.run_us is None else max(0, row.run_us) / 1e6
                    known.add(step)
                    steps.append(ClosedStep(uuid=step.hex(), service=row.service, state=row.state, took=took))
                    flows += [step] if row.service.endswith(FLOW_SUFFIX) else []
        if len(steps) >= MOST_IN_ALL:
            break
    return steps
