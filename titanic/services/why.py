"""Why a request is in its state, and what to do about it: the one reason, in words and numbers.

    gather    reads what the server knows of the request and its service: `Facts`
    explain   decides, without a store or a server

The first of these that holds is the reason:

    it has ended · its outcome is being stored · its worker has it, is away, or is lost with its node · it is to wait
    (delayed, retried later) · its service is paused · this node dispatches nothing · no worker is there · the broker
    refuses it · a rate or a limit is reached · others stand before it · all workers are busy

Numbers are for all who may read the request; UUIDs and names only for those who may read them.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from broker import User
from titanic.facts.audit import Act, last_act
from titanic.facts.service_health import POISON
from titanic.protocol.documents import WhyInfo
from titanic.protocol.permissions import lacks
from titanic.services import nodes
from titanic.services.ask import DispatchView, ServiceContext
from titanic.services.ownership import is_hidden
from titanic.settings import ServiceLimits
from titanic.store import (
    NOTHING_SET,
    ClaimRow,
    Description,
    LimitOverride,
    ReadTransaction,
    SharedReadTransaction,
    State,
    Store,
)
from titanic.util.text import counted, duration, error_summary, one_line

MAX_AHEAD = 10_000
"""Requests before it in its queue that are counted."""

MAX_NAMED = 10
"""Running requests that are named."""

MAX_REASON = 200
"""Characters of the last error."""

SILENT_SHARE = 0.5
"""A node that has not renewed its lease for this share of it has missed two renewals."""

_NO_LIMITS = ServiceLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a request and its service. `now_us`: the time by the store's clock. Numbers are of all nodes."""

    row: Description
    now_us: int
    view: DispatchView | None = None
    """None: there is no server, only the store's files."""
    claim: ClaimRow | None = None
    """The claim of another node, if the store is shared."""
    awaited_for: float | None = None
    """For how many seconds more its worker is awaited, if that node has ended; None: it is unknown."""
    paused: bool = False
    pause: tuple[int, Act] | None = None
    """When and by whom its service was paused, if the user may read the audit and that is in it."""
    refusing: str = ""
    """Why this node dispatches nothing; empty: it does."""
    limits: ServiceLimits = _NO_LIMITS
    """Those in force."""
    override: LimitOverride | None = None
    """Those among them that an admin has set; `by` is empty for users who may not read the audit."""
    workers: int | None = 0
    """How many requests the workers of its service take at a time; None: some, their number is unknown."""
    running: int = 0
    """Requests of its service that are in flight."""
    ahead: int = 0
    """Requests that are dispatched before it, at most MAX_AHEAD."""
    named: Collection[bytes] = ()
    """Running requests of its service that the user may read."""
    shows_workers: bool = True
    """Whether the user may know the processes of workers."""
    up: float = 0.0
    """Seconds since the server started."""

    @property
    def service(self) -> str:
        """The name of its service."""
        return one_line(self.row.service.decode(errors="replace"), MAX_REASON)


def gather(
    transaction: ReadTransaction,
    row: Description,
    store: Store,
    context: ServiceContext,
    user: User | None,
) -> Facts:
    """Read what `explain` needs. What has ended needs little."""
    service, now_us = row.service, store.now_us()
    if row.state not in (State.WAITING, State.DELAYED):
        return Facts(row=row, now_us=now_us)
    host, view = context.host, context.dispatcher.view(row.uuid, service)
    claim, running, workers = None, len(view.in_flight), host.figures().workers.get(service, 0)
    if host.shares:
        if view.running_for is None:
            claim = cast(SharedReadTransaction, transaction).claim_of(row.uuid)
        me, rows = host.incarnation(), nodes.rows_of(transaction)
        running += nodes.running_elsewhere(rows, me).get(service, 0)
        text = service.decode(errors="replace")
        elsewhere = sum(one.services.get(text, (0, 0))[0] for one in rows if one.incarnation != me)
        workers = None if workers is None else workers + elsewhere
    ahead = 0
    if row.state is State.WAITING and view.running_for is None and claim is None:
        ahead = transaction.ahead_of(service, row.priority, row.uuid, MAX_AHEAD, view.in_flight)
        ahead = min(MAX_AHEAD, ahead + max(0, running - workers if workers else 0))
    named = []
    for uuid in view.in_flight[:MAX_NAMED]:
        if not is_hidden(transaction, user, uuid):
            named.append(uuid)
    paused = service in context.settings.paused
    may_audit = user is None or lacks(user, "audit") is None
    override = context.settings.all.get(service, NOTHING_SET).limits
    return Facts(
        row=row,
        now_us=now_us,
        view=view,
        claim=claim,
        awaited_for=host.awaited_for(claim.incarnation) if claim is not None and claim.lease is None else None,
        paused=paused,
        pause=last_act(transaction, "pause", service) if paused and may_audit else None,
        refusing="" if context.refusing is None else context.refusing[0][4:].decode(errors="replace"),
        limits=context.settings.limits.get(service, _NO_LIMITS),
        override=override if override is None or may_audit else override._replace(by=""),
        workers=workers,
        running=running,
        ahead=ahead,
        named=named,
        shows_workers=user is None or user.reads_all or user.metrics,
        up=time.monotonic() - context.began,
    )


class Explainer(NamedTuple):
    """Explains the requests of a server."""

    store: Store
    context: ServiceContext

    def reason(self, transaction: ReadTransaction, row: Description, user: User | None) -> WhyInfo:
        """Return the reason for a request that the user may read."""
        return explain(gather(transaction, row, self.store, self.context, user))


def explain(facts: Facts) -> WhyInfo:
    """Return the reason."""
    row, view = facts.row, facts.view
    if row.state not in (State.WAITING, State.DELAYED):
        return _ended(facts)
    if view is not None and view.running_for is not None:
        return _in_flight(facts, view, view.running_for)
    if facts.claim is not None:
        return _claimed(facts, facts.claim)
    if row.state is State.DELAYED and row.due > facts.now_us:
        return _later(facts)
    if facts.paused:
        by = f" ({_by(facts, facts.pause[1].user, facts.pause[0])})" if facts.pause else ""
        return _why("paused", f"service {facts.service} is paused{by}", f"titanic resume {facts.service}")
    if view is None:
        return _why("no-server", "this was read from the store's files, without a server", "start titanic serve")
    if facts.refusing:
        return _why("draining", f"this server dispatches nothing more: {facts.refusing}", "titanic nodes")
    if facts.workers == 0:
        return _no_worker(facts, view)
    if view.trouble_in is not None:
        text = "the broker has refused requests of this service; it is asked again"
        return _until(_why("refused", text, "titanic workers"), facts, view.trouble_in)
    return _queued(facts, view)


def _why(kind: str, text: str, next_step: str = "", **more: Any) -> WhyInfo:
    found = {"kind": kind, "text": text, "next": next_step}
    return cast(WhyInfo, found | {name: value for name, value in more.items() if value is not None})


def _until(why: WhyInfo, facts: Facts, seconds: float) -> WhyInfo:
    """Add when that is over, to the text, too."""
    seconds = max(0.0, seconds)
    why["until"] = facts.now_us + int(seconds * 1e6)
    why["text"] += f" in {duration(seconds)}" if seconds else " now"
    return why


def _since(facts: Facts, at_us: int) -> str:
    return f"{duration(max(0.0, (facts.now_us - at_us) / 1e6))} ago"


def _by(facts: Facts, user: str, at_us: int) -> str:
    return f"{f'by {user}, ' if user else ''}{_since(facts, at_us)}"


def _ended(facts: Facts) -> WhyInfo:
    row, when = facts.row, _since(facts, facts.row.finished_at)
    uuid, said = row.uuid.hex(), one_line(row.reason, MAX_REASON)
    if row.state is State.DONE:
        return _why("done", f"it succeeded {when}", f"titanic reply {uuid}", until=row.finished_at)
    kind = row.state.name.lower()
    if row.state is State.FAILED and row.reason.startswith(POISON):
        kind = "poison"
    text = f"it {'was cancelled' if kind == 'cancelled' else 'expired' if kind == 'expired' else 'failed'} {when}"
    next_step = f"titanic retry {uuid}"
    if kind == "poison":  # a retry kills more workers
        next_step = f"titanic close {uuid}, or fix the task, then titanic retry {uuid}"
    return _why(kind, text + (f": {said}" if said else ""), next_step, until=row.finished_at)


def _in_flight(facts: Facts, view: DispatchView, seconds: float) -> WhyInfo:
    hold, uuid = view.hold, facts.row.uuid.hex()
    if view.held:
        return _why("store", "its outcome is known, but the store does not take it yet", "titanic health")
    if view.settling:
        return _why("storing", "its attempt is over, and the outcome is being stored")
    if hold is not None and hold.returns_by is not None:
        text = "the worker that has it lost its connection; unless it returns, another one gets the request"
        return _until(_why("return", text, "titanic workers"), facts, hold.returns_by - time.monotonic())
    if hold is not None:
        name = f", {hold.worker}," if hold.worker else ""
        return _why("running", f"a worker{name} has had it for {duration(seconds)}", f"titanic show {uuid}")
    if facts.workers == 0:
        return _no_worker(facts, view)
    return _busy(facts, "it is queued at the broker for the next free worker")


def _claimed(facts: Facts, claim: ClaimRow) -> WhyInfo:
    name = claim.node or f"number {claim.incarnation}"
    if claim.lease is None:
        text = f"node {name} has ended; the request waits for its worker to come to another node"
        found = _why("return", text, "titanic nodes")
        if facts.awaited_for is None:
            return found
        found["text"] += "; unless it does, another one gets the request"
        return _until(found, facts, facts.awaited_for)
    if claim.silent > SILENT_SHARE * (claim.silent + claim.lease):
        text = f"node {name} has it, but has not renewed its lease for {duration(claim.silent)}"
        found = _why("lease", f"{text}; unless it does, other nodes take over", "titanic nodes")
        found["seconds"] = max(0.0, claim.lease)
        return _until(found, facts, claim.lease)
    return _why("running", f"node {name} has it, for its workers", "titanic nodes")


def _later(facts: Facts) -> WhyInfo:
    row, change = facts.row, f"titanic change {facts.row.uuid.hex()} --now"
    left = (row.due - facts.now_us) / 1e6
    paused = f"; its service {facts.service} is paused, too" if facts.paused else ""
    if not row.reason:
        found = _until(_why("delayed", "it was submitted for later: it may start", change), facts, left)
    else:
        what = f"attempt {row.attempts} failed" if row.attempts else "it was returned"
        found = _until(_why("retry", f"{what}; the next attempt starts", change), facts, left)
        last = one_line(error_summary(row.reason), MAX_REASON)
        found["text"] += f". {'Last error' if row.attempts else 'Reason'}: {last}"
    found["text"] += paused
    return found


def _no_worker(facts: Facts, view: DispatchView) -> WhyInfo:
    start = f"start one: titanic work {facts.service} -- COMMAND, or titanic worker"
    if view.seen is None:
        text = f"no worker of {facts.service} has registered since the server started {duration(facts.up)} ago"
    else:
        name, ago = view.seen
        last = f"the last one{f', {name},' if name and facts.shows_workers else ''}"
        text = f"no worker of {facts.service} is there; {last} left {duration(ago)} ago"
    return _why("no-worker", text, start, workers=0)


def _queued(facts: Facts, view: DispatchView) -> WhyInfo:
    limits, ahead = facts.limits, facts.ahead
    behind = f"behind {'more than ' if ahead >= MAX_AHEAD else ''}{counted(ahead, 'other')}" if ahead else "it is next"
    if limits.rate and view.rate_in is not None:
        text = f"service {facts.service} has the rate {limits.rate:g}/s{_set(facts, 'rate')}; {behind}, it starts"
        found = _why("rate", text, f"titanic limits {facts.service} --rate N/s", ahead=ahead, limit=limits.rate)
        return _until(found, facts, view.rate_in + ahead / limits.rate)
    if limits.running and facts.running >= limits.running:
        by = f": {', '.join(uuid.hex() for uuid in facts.named)}" if facts.named else ""
        limit = f"running={limits.running}{_set(facts, 'running')}"
        text = f"the limit {limit} of service {facts.service} is reached{by}; {behind}"
        raise_it = f"titanic limits {facts.service} --running N"
        found = _why("limit", text, raise_it, ahead=ahead, limit=limits.running)
        found["running"] = facts.running
        if facts.named:
            found["requests"] = [uuid.hex() for uuid in facts.named]
        return found
    if not ahead:
        return _busy(facts, "it is next")
    own = len(view.in_flight)
    speed = view.speed * (facts.running / own if own else 1.0)
    raise_it = f"titanic change {facts.row.uuid.hex()} --priority 9"
    found = _why("behind", f"{behind} of service {facts.service}", raise_it, ahead=ahead, workers=facts.workers)
    if speed:
        found["seconds"] = ahead / speed
        found["text"] += f", about {duration(ahead / speed)}"
    found["running"] = facts.running
    return found


def _set(facts: Facts, name: str) -> str:
    """Who set a limit, and when; empty if it is the configured one."""
    one = facts.override
    return f" (set {_by(facts, one.by, one.at)})" if one is not None and getattr(one.limits, name) else ""


def _busy(facts: Facts, place: str) -> WhyInfo:
    if facts.workers is None:
        text = f"all workers of {facts.service} are busy with {counted(facts.running, 'request')}"
    elif facts.running < facts.workers:
        others = facts.workers - facts.running
        text = f"the {counted(facts.workers, 'worker')} of {facts.service} have {facts.running} of its requests, and"
        text += f" {counted(others, 'place')} for other services' or about to be filled"
    elif facts.workers == 1:
        text = f"the only worker of {facts.service} is busy"
    else:
        text = f"all {facts.workers} workers of {facts.service} are busy"
    more = {"workers": facts.workers, "running": facts.running}
    return _why("busy", f"{text}; {place}", "add workers, or wait", **more)
