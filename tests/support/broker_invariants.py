"""What must be true of a broker's core between any two messages."""

from __future__ import annotations

from collections import Counter

from broker.core.broker import BrokerCore
from broker.core.requests import FairQueue, Request


def queued(queue: FairQueue) -> list[Request]:
    """All that waits in a queue, in no order that matters."""
    assert all(queue._queues.values()), "a client without requests has turns"
    rows = [row for own in (queue._front, *queue._queues.values()) for row in own.items()]
    assert all(isinstance(key, int) or key == request.mark for key, request in rows)
    return [request for _, request in rows]


def check(core: BrokerCore) -> None:
    """Counters equal what they count, a service has free workers or waiting requests, timers belong to somebody."""
    waiting = []
    at_work = Counter(worker.service.name for worker in core.workers.values())
    for name, service in core.services.items():
        assert service.name == name
        assert not service.unused, f"{name!r} has neither workers nor requests"
        assert service.workers == at_work[name]
        assert not (service.idle and service.waiting), f"{name!r} has free workers while requests wait"
        held = queued(service.waiting)
        assert len(service.waiting) == len(held)
        waiting += held
    assert core.waiting.count == len(waiting)
    assert core.waiting.bytes == sum(request.size for request in waiting)
    users = {request.user.name for request in waiting if request.user is not None}
    assert core.waiting.of_users == {
        user: (len(own), sum(request.size for request in own))
        for user in users
        if (own := [request for request in waiting if request.user is not None and request.user.name == user])
    }
    assert not waiting or not core.config.request_expiry or core.waiting.sweep_at is not None

    for peer, worker in core.workers.items():
        assert worker.peer == peer
        assert core.services[worker.service.name] is worker.service
        held = worker.process.alone is not None and worker.request is None
        assert (worker in worker.service.idle) == (worker.request is None and not held), "idle or busy, never both"
        assert worker in worker.process.workers
        in_hand_there = sum(one.request is not None for one in worker.process.workers)
        assert worker.process.in_hand == in_hand_there
        if (alone := worker.process.alone) is not None:
            assert alone.request is not None
            assert in_hand_there == 1 or not worker.process.is_started, "it does not run alone"
            assert in_hand_there > 1 or worker.process.is_started, "it waits for nothing"
    assert sum(len(service.idle) for service in core.services.values()) <= len(core.workers)
    in_hand = [worker.request for worker in core.workers.values() if worker.request]
    assert len({id(request) for request in [*in_hand, *waiting]}) == len(in_hand) + len(waiting)

    assert {id(worker.request) for worker in core.registry.delivered.values()} <= {id(request) for request in in_hand}
    assert all(worker.request and worker.request.mark == mark for mark, worker in core.registry.delivered.items())

    assert core.registry.of_users == Counter(worker.user.name for worker in core.workers.values() if worker.user)
    registered = set(core.workers.values())
    assert {one for process in core.registry.processes.values() for one in process.workers} <= registered
    assert all(process.workers for process in core.registry.processes.values())
    assert set(core.registry.heartbeats) == set(core.registry.silences) == registered


def check_empty(core: BrokerCore) -> None:
    """Everybody has gone and nothing is left of them."""
    check(core)
    assert core.services == {}
    assert core.workers == {}
    assert core.registry.delivered == core.registry.processes == {}
    assert (core.waiting.count, core.waiting.bytes) == (0, 0)
    for timers in (core.registry.heartbeats, core.registry.silences):
        assert len(timers) == 0
        assert not timers._queued
        assert timers.entries <= 64 + 2
    assert core.take_output() == []
