"""What titanic.stats reports about each service on request: see PROTOCOL.md. `ServiceStats` declares it."""

from __future__ import annotations

from collections.abc import Container, Mapping

from titanic.protocol.documents import ServiceStats
from titanic.protocol.tsp import SERVICES
from titanic.services.ask import ServiceHost
from titanic.settings import ServiceLimits
from titanic.store import NO_QUEUE, NOTHING_SET, ReadTransaction, ServiceSettings

_NO_LIMITS = ServiceLimits()


def each(
    transaction: ReadTransaction,
    host: ServiceHost,
    limits: Mapping[bytes, ServiceLimits],
    settings: ServiceSettings,
    skip: Container[bytes],
    elsewhere: Mapping[bytes, int],
) -> dict[str, ServiceStats]:
    """The services that there are, by name. `skip`: the requests that are running here; `elsewhere`: how many of each
    service are at other nodes."""
    queues, figures = transaction.queues(skip=skip), host.figures()
    running, workers, ended = figures.running, figures.workers, figures.ended
    names = queues.keys() | running.keys() | workers.keys() | ended.keys() | limits.keys() | settings.keys()
    found: dict[str, ServiceStats] = {}
    for name in sorted(names.difference(SERVICES)):
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
            "limits": _limits(limit or _NO_LIMITS),
        }
    return found


def _limits(limits: ServiceLimits) -> dict[str, float | None]:
    given = {"waiting": limits.waiting, "bytes": limits.bytes, "running": limits.running, "rate": limits.rate}
    return {name: value or None for name, value in given.items()}
