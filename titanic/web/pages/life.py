"""The life of a request as a timeline. What the store does not keep is said to be unknown, not made up."""

from __future__ import annotations

from typing import NamedTuple

from titanic.protocol.answers import RequestInfo
from titanic.util.text import counted
from titanic.web.words import span

DONE, NOW, AHEAD, UNKNOWN = "done", "now", "ahead", "unknown"


class Moment(NamedTuple):
    """Something that has happened, goes on, is to come, or must have happened at a time that nobody has kept."""

    stage: str
    what: str
    at: int = 0
    """Microseconds since 1970; 0: the time is not known."""
    more: str = ""


ENDS = {
    "done": "Done",
    "failed": "Failed for good",
    "expired": "Expired",
    "cancelled": "Cancelled",
}


def life(row: RequestInfo) -> list[Moment]:
    """What is known of it, in the order in which it came and will come."""
    owner = row.get("owner")
    found = [Moment(DONE, "Submitted", row["submitted_at"], f"by {owner}" if owner else "")]
    ended = row["state"] in ENDS
    if row["not_before"] > row["submitted_at"]:
        waits = not ended and row["state"] == "delayed" and not row["attempts"]
        found.append(Moment(NOW if waits else DONE, "Delayed until", row["not_before"]))
    found += _attempts(row)
    if row["state"] == "waiting":
        text = "nobody has it" if not row["attempts"] else "it is tried again as soon as a worker is free"
        found.append(Moment(NOW, "Waits for a worker", 0, text))
    elif row["state"] == "running":
        before = f"; workers had it {counted(row['deliveries'], 'time')} before" if row.get("deliveries") else ""
        at = f"at {row['worker']}" if "worker" in row else "a worker has it, or has it next"
        since = row.get("running_since", 0)
        found.append(Moment(NOW, "Running since" if since else "Running", since, at + before))
    elif row["state"] == "delayed" and row["attempts"]:
        found.append(Moment(NOW, f"Tried again, attempt {row['attempts'] + 1}", row["due"], "after a pause"))
    if ended:
        found.append(_end(row))
    elif row["expires_at"]:
        found.append(Moment(AHEAD, "Expires, unless a worker has begun it", row["expires_at"]))
    return found


def _attempts(row: RequestInfo) -> list[Moment]:
    """The attempts that are over. Of all but the last one only their number is known."""
    attempts, state = row["attempts"], row["state"]
    if not attempts:
        return []
    earlier = attempts - 1
    found = []
    if earlier:
        found.append(Moment(UNKNOWN, f"{counted(earlier, 'earlier attempt')} failed", 0, "when, is not kept"))
    last = "Sent to a worker" if attempts == 1 else f"Attempt {attempts}: sent to a worker"
    waited = ""
    if attempts == 1 and row["dispatched_at"]:
        waited = f"after {span(max(0, row['dispatched_at'] - row['submitted_at']) / 1e6)}"
    found.append(Moment(DONE, last, row["dispatched_at"], waited))
    if state not in ENDS or state == "expired":
        found.append(Moment(DONE, "That attempt failed" if earlier else "The attempt failed", 0, "the error is below"))
    return found


def _end(row: RequestInfo) -> Moment:
    ran = row["dispatched_at"] and row["state"] in ("done", "failed")
    since = row["dispatched_at"] if ran else row["submitted_at"]
    took = span(max(0, row["finished_at"] - since) / 1e6)
    return Moment(DONE, ENDS[row["state"]], row["finished_at"], f"{'ran' if ran else 'after'} {took}")
