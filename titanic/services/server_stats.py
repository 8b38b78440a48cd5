"""titanic.stats: what is stored, what waits, what is running, as JSON: see PROTOCOL.md."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, Literal

from broker import User, WorkerReport, read_json
from titanic.errors import Forbidden, RecordCorrupt
from titanic.facts import set_service
from titanic.protocol import tsp
from titanic.protocol.documents import Filling, RequestInHand, ServiceStats, WorkerInfo, WorkersInfo
from titanic.protocol.messages import read_stats
from titanic.protocol.permissions import lacks
from titanic.protocol.tsp import SERVICES, Frames
from titanic.services import nodes
from titanic.services.ask import ServiceContext, ServiceFigures, ServiceHost
from titanic.services.named_services import MOST_FILLING, Named
from titanic.services.ownership import is_hidden
from titanic.settings import ServiceLimits
from titanic.store import NO_QUEUE, NOTHING_SET, Counts, Limits, QueueFigures, ReadTransaction, ServiceSettings, Store
from titanic.store.states import ENDED
from titanic.util import ids
from titanic.util.text import read_process

REFUSED_LATELY = 60.0
"""Seconds for which `refuses_for_room` stays true after a request was refused because the store was full."""

REFUSING_FREE_SHARE = 0.05
"""`refuses_for_room` is false while more than this share of the capacity is free."""

MOST_IN_LIST = 20_000
"""Workers, services and requests in a list of workers."""

MOST_SERIES = 100
"""Services of which each minute or hour is sent, or that are asked for by name."""

SEPARATE = "the broker is a separate process, which does not report its workers"

SAMPLE, SAMPLE_BYTES = 1000, 4 << 20
"""Requests that are read to find what fills the store: of each state, and of closed ones so many bytes at most."""

ROW = 300
"""Bytes of a request besides its body and its reply, roughly."""


def answer(
    transaction: ReadTransaction,
    user: User | None,
    body: Frames,
    store: Store,
    context: ServiceContext,
    since_start: Mapping[str, int],
) -> Frames:
    """The answer to a titanic.stats. Raises Forbidden. `since_start`: counters of this server."""
    if user is not None and (fault := lacks(user, "stats")) is not None:
        raise Forbidden(fault)
    host = context.host
    shares, me = host.shares, host.incarnation()
    asked = read_stats(b"".join(body[:1]))
    if shares and asked.nodes:
        return [tsp.OK, json.dumps(nodes.listed(transaction, me)).encode()]
    if asked.workers:
        return [tsp.OK, json.dumps(_workers(transaction, host, user, store.now_us())).encode()]
    if asked.facts > 0:
        of = [name.encode() for name in asked.facts_of[:MOST_SERIES]]
        failures = asked.failures and (user is None or user.reads_all)
        found = context.history.get(transaction, context.facts, store.now_us(), asked.facts, of, failures)
        return [tsp.OK, found]
    space = transaction.space()
    rows = nodes.rows_of(transaction) if shares else ()
    elsewhere = nodes.running_elsewhere(rows, me)
    figures, limits, settings = host.figures(), context.settings.limits, context.settings.all
    running = Counter(figures.running) + Counter(elsewhere)
    live = {name for name, count in figures.workers.items() if count != 0}
    first = {*live, *running, *elsewhere, *limits, *settings}
    anyway = {name.encode() for name in asked.of[:MOST_SERIES]}
    named = context.named.choose(transaction, {*first, *figures.ended, *figures.workers, *anyway}, first, anyway)
    counts, now = transaction.counts(), time.monotonic()
    lately = now < context.refused_full_at + REFUSED_LATELY
    document: dict[str, Any] = {
        **stored(store.place, counts, named, running),
        "durability": store.durability,
        "accepting": not (space.disk_full or space.full),
        "disk_full": space.disk_full,
        "disk_free": space.disk_free,
        "full_in": context.fill_rate.full_in(now, transaction),
        "refuses_for_room": lately and transaction.room_left() < counts.capacity * REFUSING_FREE_SHARE,
        "since_start": {**since_start},
        **context.dispatcher.stats(),
        "facts": {"used": transaction.facts_bytes(), "room": store.facts_room},
    }
    if readers := store.readers():
        document["readers"] = [reader._asdict() for reader in readers]
    if shares:
        document |= nodes.shared(rows, me, document["running"])
    if asked.services:
        skip = context.dispatcher.running()
        services = _services(transaction, named.services, figures, limits, settings, skip, elsewhere)
        by, configured = user is None or lacks(user, "audit") is None, context.settings.configured
        for name, one in settings.items():
            row = services.get(name.decode(errors="replace"))
            if one.limits is not None and row is not None:
                row["limits_set"] = set_service.limits_set(one.limits, configured.get(name), names=by)
        for name, at in context.settings.resumed.items():
            if (row := services.get(name.decode(errors="replace"))) is not None:
                row["resumed_at"] = at
        document["by_service"] = services
        if user is None or user.admin:
            refused = host.forbidden().items()
            document["refusals"] = [{"user": name, "action": action, "count": n} for (name, action), n in refused]
            document["refused"] = dict(context.refused)
    if asked.filled_by:
        document["filled_by"] = filled_by(transaction, named.queues)
    if context.settings.missed:
        document["since_start"]["ends_missed"] = context.settings.missed
    if context.settings.all:
        document["settings"] = set_service.document(context.settings.all)
    if context.queue:
        document["queue"] = context.queue
    return [tsp.OK, json.dumps(document).encode()]


def stored(place: str, counts: Counts, named: Named, running: Counter[bytes]) -> dict[str, Any]:
    """What is stored, and what waits: of the named services, and of the others together. `running`: by service."""
    queues = {name: named.queues.get(name, NO_QUEUE) for name in named.services}
    ready = {name: max(0, queue.ready - running[name]) for name, queue in queues.items() if queue.ready}
    waiting = max(0, counts.waiting - running.total())
    found: dict[str, Any] = {
        "store": {"path": place, **counts._replace(waiting=waiting)._asdict()},
        "services": {name.decode(errors="replace"): count for name, count in ready.items()},
    }
    if named.others > 0:
        waiting -= sum(ready.values())
        delayed = counts.delayed - sum(queue.unended - queue.ready for queue in queues.values())
        found["other"] = {"services": named.others, "waiting": max(0, waiting), "delayed": max(0, delayed)}
    return found


def filled_by(transaction: ReadTransaction, queues: Mapping[bytes, QueueFigures]) -> list[Filling]:
    """The services that fill the store most, the largest first. What has ended is not counted by service: the newest
    are read. `queues`: the largest, at least."""
    counts, archive = transaction.counts(), transaction.archive()
    first = max(archive.first, archive.last - SAMPLE + 1)
    try:
        kinds = [[*transaction.select([state], limit=SAMPLE, newest=True)] for state in sorted(ENDED)]
        closed = transaction.closed_bulk(first, archive.last, SAMPLE_BYTES).requests()
    except RecordCorrupt:
        return []
    whole = sum(len(rows) for rows in kinds if len(rows) < SAMPLE)
    found = {
        name: Filling(service=name.decode(errors="replace"), live=one.unended, ended=0, closed=0, bytes=one.bytes)
        for name, one in queues.items()
    }
    sampled = sum(map(len, kinds)) - whole
    for rows in kinds:
        weight = 1.0 if len(rows) < SAMPLE else max(1.0, (counts.replies - whole) / sampled)
        _add(found, "ended", [(row.service, row.body_bytes + row.reply_bytes) for row in rows], weight)
    sizes = [(one.service, sum(map(len, (*one.request, *one.reply)))) for one in closed]
    _add(found, "closed", sizes, counts.closed / max(1, len(closed)))
    for one in found.values():
        one["bytes"] += ROW * (one["live"] + one["ended"] + one["closed"])
    return sorted(found.values(), key=lambda one: -one["bytes"])[:MOST_FILLING]


def _add(
    found: dict[bytes, Filling], kind: Literal["ended", "closed"], rows: Sequence[tuple[bytes, int]], weight: float
) -> None:
    """Add requests, of which each stands for `weight`: their services and sizes."""
    sizes = Counter[bytes]()
    for name, size in rows:
        sizes[name] += size
    for name, count in Counter(name for name, _ in rows).items():
        text = name.decode(errors="replace")
        one = found.setdefault(name, Filling(service=text, live=0, ended=0, closed=0, bytes=0))
        one[kind] += round(weight * count)
        one["bytes"] += round(weight * sizes[name])


def _workers(transaction: ReadTransaction, host: ServiceHost, user: User | None, now_us: int) -> WorkersInfo:
    """The workers of this server, with the UUIDs that the user may read. Microseconds since 1970."""
    reports, me = None if host.broker is None else host.broker.worker_reports(MOST_IN_LIST), host.incarnation()
    own = [row.name for row in nodes.rows_of(transaction) if row.incarnation == me] if host.shares else []
    monotonic_zero_us = now_us - int(time.monotonic() * 1e6)
    counts = sorted(host.figures().workers.items())
    workers = None if reports is None else [_worker(report, monotonic_zero_us) for report in reports[0]]
    for request in [request for worker in workers or () for request in worker["requests"]]:
        if request["uuid"] and is_hidden(transaction, user, bytes.fromhex(request["uuid"])):
            request["uuid"] = ""
    return {
        "workers": workers,
        "services": {name.decode(errors="replace"): count for name, count in counts if name not in SERVICES},
        "omitted": 0 if reports is None else reports[1],
        "node": own[0] if own else None,
        "reason": SEPARATE if reports is None else "",
    }


def _worker(report: WorkerReport, monotonic_zero_us: int) -> WorkerInfo:
    """`monotonic_zero_us`: when monotonic seconds were 0, in microseconds since 1970."""
    host, pid = read_process(report.name)
    found: WorkerInfo = {
        "name": report.name,
        "host": host,
        "pid": pid,
        "version": report.version,
        "services": [name.decode(errors="replace") for name in report.services],
        "slots": report.slots,
        "requests": [_in_hand(*request, monotonic_zero_us) for request in report.requests],
        "registered_at": monotonic_zero_us + int(report.registered_at * 1e6),
        "heard_at": monotonic_zero_us + int(report.heard_at * 1e6),
    }
    if report.user is not None:
        found["user"] = report.user
    return found


def _in_hand(context: bytes, service: bytes, sent_at: float, monotonic_zero_us: int) -> RequestInHand:
    return {
        "uuid": _uuid(context),
        "service": service.decode(errors="replace"),
        "started_at": monotonic_zero_us + int(sent_at * 1e6),
    }


def _uuid(context: bytes) -> str:
    """The UUID of a request; empty: not stored."""
    try:
        uuid = ids.parse(str(read_json(context)["uuid"]).encode()) if context else None
    except (LookupError, ValueError, TypeError):
        return ""
    return "" if uuid is None else uuid.hex()


def _services(
    transaction: ReadTransaction,
    names: Collection[bytes],
    figures: ServiceFigures,
    limits: Mapping[bytes, ServiceLimits],
    settings: ServiceSettings,
    skip: Container[bytes],
    elsewhere: Mapping[bytes, int],
) -> dict[str, ServiceStats]:
    """All about these services. `skip`: the requests that are running here; `elsewhere`: how many of each service are
    at other nodes."""
    queues = transaction.queues(names, skip)
    running, workers, ended = figures.running, figures.workers, figures.ended
    found: dict[str, ServiceStats] = {}
    for name in names:
        queue, set_for, limit = queues.get(name, NO_QUEUE), settings.get(name, NOTHING_SET), limits.get(name)
        here_running = running.get(name, 0)
        done, failed, expired = ended.get(name, (0, 0, 0))
        found[name.decode(errors="replace")] = {
            "waiting": max(0, queue.ready - here_running - elsewhere.get(name, 0)),
            "delayed": max(0, queue.unended - queue.ready),
            "running": here_running,
            "bytes": queue.bytes,
            "workers": workers.get(name, 0),
            "oldest": queue.oldest,
            "done": done,
            "failed": failed,
            "expired": expired,
            "paused": set_for.paused,
            "on_end": set_for.on_end.decode(errors="replace") or None,
            "limits": set_service.values(limit or Limits()),
        }
    return found
