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
    at_work: Counter[bytes] = Counter()
    for worker in core.workers.values():
        at_work.update({name: worker.capacity(name) for name in worker.group.services})
    for name, service in core.services.items():
        assert service.name == name
        assert not service.unused, f"{name!r} has neither workers nor requests"
        assert service.workers == at_work[name]
        able = any(worker.takes(name) for group in service.groups for worker in group.idle)
        assert not (able and service.waiting), f"{name!r} has free workers while requests wait"
        assert service.joint_groups == sum(len(group.services) > 1 for group in service.groups)
        next_one = service.waiting.first
        urgency = next_one.priority if next_one is not None and service.joint_groups else -1
        assert service.urgency == urgency
        for group in service.groups:
            assert core.registry.groups[group.key] is group
            places = [place for place, services in enumerate(group.waiting) if service in services]
            assert places == ([urgency] if group.is_joint and urgency >= 0 else [])
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
        assert all(core.services[name].groups.keys() >= {worker.group} for name in worker.group.services)
        has_room = len(worker.requests) < worker.slots and worker.process.alone is None
        assert (worker in worker.group.idle) == (has_room and not core.draining), "with a free slot, or without"
        assert all(request.token == token and request.holder == peer for token, request in worker.requests.items())
        of_limited = Counter(one.service for one in worker.requests.values() if one.service in worker.group.limits)
        assert +Counter(worker.taken) == of_limited
        assert all(count <= worker.group.limits[name] for name, count in of_limited.items())
        assert worker in worker.process.workers
        in_hand_there = sum(len(one.requests) for one in worker.process.workers)
        assert worker.process.in_hand == in_hand_there
        if (alone := worker.process.alone) is not None:
            assert worker.process.token in alone.requests
            assert worker.process in core.registry.exclusive
            assert in_hand_there == 1 or not worker.process.is_started, "it does not run alone"
            assert in_hand_there > 1 or worker.process.is_started, "it waits for nothing"
    assert sum(len(group.workers) for group in core.registry.groups.values()) == len(core.workers)
    assert all(process.alone is not None for process in core.registry.exclusive)
    in_hand = [request for worker in core.workers.values() for request in worker.requests.values()]
    assert len({id(request) for request in [*in_hand, *waiting]}) == len(in_hand) + len(waiting)

    missing = [core.missing._requests[delivery].request for delivery in core.missing]
    assert {id(one) for one in core.registry.delivered.values()} <= {id(one) for one in [*in_hand, *missing]}
    assert not {id(one) for one in [*in_hand, *waiting]} & {id(one) for one in missing}
    assert core.missing.of_services == Counter(one.service for one in missing)
    assert set(core.missing.timers) == set(core.missing)
    assert set(core.missing.decisions) == set(core.missing.named)
    assert sorted(one for own in core.missing._keepers.values() for one in own) == sorted(core.missing)
    assert core.registry.keepers == {one.keeper: one for one in core.workers.values() if one.keeper}
    assert all(request.mark == mark for mark, request in core.registry.delivered.items())

    assert core.registry.of_users == Counter(worker.user.name for worker in core.workers.values() if worker.user)
    registered = set(core.workers.values())
    assert {one for process in core.registry.processes.values() for one in process.workers} <= registered
    assert all(process.workers for process in core.registry.processes.values())
    assert set(core.registry.heartbeats) == set(core.registry.silences) == registered


def check_empty(core: BrokerCore) -> None:
    """Everybody has gone and nothing is left of them."""
    check(core)
    assert core.services == {}
    assert core.workers == core.registry.keepers == core.missing._requests == core.missing.expected == {}
    assert core.registry.delivered == core.registry.processes == core.registry.groups == core.registry.exclusive == {}
    assert (core.waiting.count, core.waiting.bytes) == (0, 0)
    for timers in (core.registry.heartbeats, core.registry.silences):
        assert len(timers) == 0
        assert not timers._queued
        assert len(timers._heap) <= 64 + 2
    assert core.take_output() == []
