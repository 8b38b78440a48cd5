"""Worker, broker and client joined by a network that loses, delays, doubles and reorders messages."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support.broker_invariants import check_empty
from support.fake_network import MdpNet
from support.torture import seeds

from broker.config import BrokerConfig, ClientConfig, WorkerConfig
from broker.core.broker import BrokerCore
from broker.core.client import ClientSession, EventKind
from broker.core.joint_worker import JointSession
from broker.core.mdp import Capacity, Frames
from broker.core.worker import WorkerSession

Kind = Callable[..., WorkerSession]
PATIENT = ClientConfig(timeout=10, retries=10_000)


def echo(body: Frames) -> list[Frames]:
    return [[b"re:" + body[0]]]


def joint(*services: bytes) -> WorkerSession:
    """A worker of several services and three slots."""
    return JointSession(Capacity(3, dict.fromkeys((*services, b"other"), 0)), now=0)


def plain(*services: bytes) -> WorkerSession:
    return WorkerSession(services[0], now=0)


KINDS = pytest.mark.parametrize("kind", [plain, joint])


def settle(net: MdpNet) -> None:
    """Everybody leaves: nothing may stay behind."""
    net.drop = net.duplicate = 0
    for worker in net.workers.values():
        worker.leave(net.now)
    net.run(1000)
    check_empty(net.broker)
    assert all(worker.stopped for worker in net.workers.values())


@KINDS
@pytest.mark.parametrize("seed", seeds(4, 12))
def test_every_request_is_answered_once_however_bad_the_wire(seed: int, kind: Kind) -> None:
    net = MdpNet(BrokerCore(), seed, drop=0.02, duplicate=0.02, delay=0.5, reorders=seed % 2 == 0)
    for number in range(3):
        net.add_worker(f"worker{number}", kind(b"echo"), echo)
    expected: dict[tuple[str, int], bytes] = {}
    for number in range(3):
        name = f"client{number}"
        session = ClientSession(PATIENT, correlated=True)
        net.add_client(name, session)
        for request in range(12):
            body = b"%d.%d" % (number, request)
            expected[name, session.request(b"echo", [body], 0)] = b"re:" + body
    net.run(20_000, lambda: not any(map(len, net.clients.values())))
    answers = {
        (name, event.ticket): event.body[0]
        for name, events in net.events.items()
        for event in events
        if event.kind is EventKind.FINAL
    }
    assert answers == expected
    assert sum(map(len, net.events.values())) == len(expected), "one event for each request"
    assert net.dead
    settle(net)


@pytest.mark.parametrize("seed", seeds(3, 6))
def test_one_at_a_time(seed: int) -> None:
    net = MdpNet(BrokerCore(), seed, drop=0.05, delay=1)
    for number in range(2):
        net.add_worker(f"worker{number}", WorkerSession(b"echo", now=0), echo)
    session = ClientSession(PATIENT)
    net.add_client("client", session)
    for number in range(20):
        ticket = session.request(b"echo", [b"%d" % number], net.now)
        net.run(20_000, lambda: not len(session))
        assert [event[:] for event in net.events["client"]] == [(ticket, EventKind.FINAL, [b"re:%d" % number], True)]
        net.events["client"].clear()
    settle(net)


@KINDS
@pytest.mark.parametrize("seed", seeds(3, 6))
def test_parts_arrive_complete_and_in_order(seed: int, kind: Kind) -> None:
    """Connections break (all that is on its way is lost), messages on one that holds stay in order."""
    net = MdpNet(BrokerCore(BrokerConfig(max_deliveries=100, request_expiry=0)), seed, delay=3)
    chance = random.Random(seed)
    parts = [[b"%d" % number] for number in range(6)]
    for number in range(3):
        net.add_worker(f"worker{number}", kind(b"count"), lambda _: parts)
    session = ClientSession(ClientConfig(timeout=100, retries=100), correlated=True)
    net.add_client("client", session)
    tickets = [session.request(b"count", [b"q"], 0) for _ in range(10)]
    for _ in range(20):
        victim = chance.choice(list(net.workers.values()))
        net.at(chance.random() * 60, lambda victim=victim: victim.lost(net.now))  # type: ignore[misc]
    net.run(20_000, lambda: not len(session))
    for ticket in tickets:
        told = [event for event in net.events["client"] if event.ticket == ticket]
        assert [event.body for event in told] == parts
        assert [event.kind for event in told] == [EventKind.PARTIAL] * 5 + [EventKind.FINAL]
    settle(net)


@pytest.mark.parametrize("hours", [0.01, 1, 1000])
def test_everybody_survives_a_jump_of_the_clock(hours: float) -> None:
    net = MdpNet(BrokerCore(), delay=0.01)
    net.add_worker("worker", WorkerSession(b"echo", now=0), echo)
    session = ClientSession(PATIENT, correlated=True)
    net.add_client("client", session)
    net.run(60)
    session.request(b"echo", [b"before"], net.now)
    net.now += hours * 3600
    session.request(b"echo", [b"after"], net.now)
    net.run(1000, lambda: not len(session))
    assert {event.body[0] for event in net.events["client"]} == {b"re:before", b"re:after"}
    settle(net)


def test_a_quiet_hour_costs_heartbeats_only() -> None:
    net = MdpNet(BrokerCore(), delay=0.1)
    worker = WorkerSession(b"echo", now=0)
    net.add_worker("worker", worker, echo)
    net.run(3600)
    assert worker.connection == 1
    assert worker.registered
    assert net.sent <= 2 * (3600 / 2.5 + 2)


def test_a_partition_heals() -> None:
    net = MdpNet(BrokerCore(), delay=0.1)
    worker = WorkerSession(b"echo", WorkerConfig(versions=("0.2",)), now=0)
    net.add_worker("worker", worker, echo)
    session = ClientSession(PATIENT, correlated=True)
    net.add_client("client", session)
    net.run(10)
    net.drop = 1.0
    session.request(b"echo", [b"q"], net.now)
    net.run(300)
    assert not net.broker.workers
    net.drop = 0.0
    net.run(100, lambda: not len(session))
    assert [event.body for event in net.events["client"]] == [[b"re:q"]]
    settle(net)


def test_a_broker_that_forgot_everything_is_found_again() -> None:
    net = MdpNet(BrokerCore(), delay=0.1)
    for number in range(3):
        net.add_worker(f"worker{number}", WorkerSession(b"echo", now=0), echo)
    session = ClientSession(PATIENT, correlated=True)
    net.add_client("client", session)
    net.run(10)
    for number in range(10):
        session.request(b"echo", [b"%d" % number], net.now)
    net.run(0.05)
    net.nodes["broker"] = BrokerCore(now=net.now)
    net.run(100, lambda: not len(session))
    assert len(net.events["client"]) == 10
    settle(net)


def test_requests_without_workers_expire_and_nothing_is_left() -> None:
    net = MdpNet(BrokerCore(BrokerConfig(request_expiry=60)), delay=0.1)
    session = ClientSession(ClientConfig(timeout=None), correlated=True)
    net.add_client("client", session)
    for number in range(50):
        session.request(b"service%d" % number, [b"q"], 0)
    net.run(70)
    assert len(net.events["client"]) == 50
    assert all(event.body[0] == b"MDPE01" for event in net.events["client"])
    check_empty(net.broker)
