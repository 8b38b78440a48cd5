"""The management interface (RFC 8), and what it has beyond the RFC."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.broker_invariants import check
from support.transcript import Transcript

from broker.core import mmi
from broker.core.broker import BrokerCore
from broker.core.mmi import COUNTERS, About


def ask(broker: Transcript, name: bytes, body: bytes = b"") -> bytes:
    broker.request("client", body, service=name)
    (reply,) = broker.heard("client")
    assert reply[:3] == [b"MDPC02", b"\3", name]
    assert len(reply) == 4
    return reply[3]


def document(broker: Transcript, name: bytes) -> Any:
    return json.loads(ask(broker, name))


@pytest.fixture
def broker() -> Transcript:
    return Transcript()


def test_presence(broker: Transcript) -> None:
    assert ask(broker, b"mmi.service", b"echo") == b"404"
    broker.worker("a")
    broker.worker("b")
    assert ask(broker, b"mmi.service", b"echo") == b"200"
    assert ask(broker, b"mmi.service", b"other") == b"404"
    broker.said("a", b"MDPW02", b"\6")
    assert ask(broker, b"mmi.service", b"echo") == b"200"
    broker.lost("b")
    assert ask(broker, b"mmi.service", b"echo") == b"404"


def test_no_fake_presence_while_requests_wait(broker: Transcript) -> None:
    broker.request("client", b"q")
    assert ask(broker, b"mmi.service", b"echo") == b"404"
    broker.worker("worker")
    broker.later(11)
    assert ask(broker, b"mmi.service", b"echo") == b"404"


def test_busy_workers_are_present(broker: Transcript) -> None:
    broker.worker("worker")
    broker.request("client", b"q")
    assert ask(broker, b"mmi.service", b"echo") == b"200"


def test_presence_of_the_brokers_own_services(broker: Transcript) -> None:
    broker.core.integrate(b"titanic.request")
    for name in (b"titanic.request", b"mmi.service", b"mmi.services", b"mmi.workers", b"mmi.stats", b"mmi.broker"):
        assert ask(broker, b"mmi.service", name) == b"200"
    assert ask(broker, b"mmi.service", b"mmi.other") == b"404"
    assert ask(broker, b"mmi.service", b"") == b"400"


@pytest.mark.parametrize("name", [b"mmi.", b"mmi.other", b"mmi.service.x", b"mmi.\xff"])
def test_unknown_names(broker: Transcript, name: bytes) -> None:
    assert ask(broker, name, b"x") == b"501"


def test_answers_in_every_version(broker: Transcript) -> None:
    broker.said("old", b"", b"MDPC01", b"mmi.service", b"echo")
    broker.told("old", b"", b"MDPC01", b"mmi.service", b"404")
    broker.said("tomo", b"", b"MDPC02", b"\2", b"mmi.service", b"echo")
    broker.told("tomo", b"", b"MDPC02", b"\4", b"404")


def test_services_and_workers(broker: Transcript) -> None:
    broker.core.integrate(b"inside")
    broker.worker("a")
    broker.worker("b")
    broker.request("client", b"q")
    broker.request("client", b"q", service=b"absent")
    assert document(broker, b"mmi.services") == [
        {"name": "inside", "workers": 0, "idle": 0, "waiting": 0, "integrated": True, "joint": False, "held": 0},
        {"name": "echo", "workers": 2, "idle": 1, "waiting": 0, "integrated": False, "joint": False, "held": 0},
        {"name": "absent", "workers": 0, "idle": 0, "waiting": 1, "integrated": False, "joint": False, "held": 0},
    ]
    assert document(broker, b"mmi.workers") == {"echo": 2}


def test_stats(broker: Transcript) -> None:
    broker.worker("a")
    broker.request("client", b"1")
    broker.request("client", b"2")
    broker.said("stranger", b"garbage")
    stats = document(broker, b"mmi.stats")
    assert set(COUNTERS) < set(stats)
    assert stats["requests"] == 3
    assert (stats["workers"], stats["workers_busy"], stats["waiting"], stats["services"]) == (1, 1, 1, 1)
    assert stats["waiting_bytes"] > 0
    assert stats["malformed"] == 1


def test_broker() -> None:
    core = BrokerCore(now=10, about=About(version="1.2", instance="abc", pid=7, endpoints=("tcp://127.0.0.1:5555",)))
    core.receive("client", [b"MDPC02", b"\1", b"mmi.broker", b""], 12.5)
    ((_, frames),) = core.take_output()
    assert frames is not None
    about = json.loads(frames[3])
    assert about["software"] == "titanic"
    assert about["uptime"] == 2.5
    assert (about["version"], about["instance"], about["pid"]) == ("1.2", "abc", 7)
    assert about["endpoints"] == ["tcp://127.0.0.1:5555"]
    assert about["limits"]["max_body"] == 64 << 20


def test_a_waiting_request_is_taken_back() -> None:
    broker = Transcript()
    mark, other = b"mark", b"other"
    broker.said("client", other, b"", b"MDPC02", b"\1", b"echo", b"stays")
    broker.said("client", mark, b"", b"MDPC02", b"\1", b"echo", b"goes")
    broker.said("stranger", b"MDPC02", b"\1", b"mmi.cancel", b"echo", mark)
    broker.told("stranger", b"MDPC02", b"\3", b"mmi.cancel", b"404")
    broker.said("client", b"MDPC02", b"\1", b"mmi.cancel", b"echo", mark)
    broker.told("client", mark, b"", b"MDPC02", b"\3", b"echo", b"MDPE01", b"499 cancelled by its client")
    broker.told("client", b"MDPC02", b"\3", b"mmi.cancel", b"200")
    broker.worker("worker")
    broker.working("worker", b"stays")
    check(broker.core)


def test_what_a_worker_has_is_not_taken_back() -> None:
    broker = Transcript()
    broker.worker("worker")
    broker.said("client", b"mark", b"", b"MDPC02", b"\1", b"echo", b"q")
    client = broker.working("worker", b"q")
    broker.said("client", b"MDPC02", b"\1", b"mmi.cancel", b"echo", b"mark")
    broker.told("client", b"MDPC02", b"\3", b"mmi.cancel", b"404")
    broker.final("worker", client, b"a")
    broker.told("client", b"mark", b"", b"MDPC02", b"\3", b"echo", b"a")


def test_what_a_worker_had_when_it_was_taken_back_goes_to_no_second_one() -> None:
    broker = Transcript()
    broker.worker("worker")
    broker.said("client", b"mark", b"", b"MDPC02", b"\1", b"echo", b"q")
    broker.working("worker", b"q")
    broker.worker("second")
    broker.said("client", b"MDPC02", b"\1", b"mmi.cancel", b"echo", b"mark")
    broker.told("client", b"MDPC02", b"\3", b"mmi.cancel", b"404")
    broker.lost("worker")
    broker.told("client", b"mark", b"", b"MDPC02", b"\3", b"echo", b"MDPE01", b"499 cancelled by its client")
    broker.told_nothing("second")
    assert broker.core.stats["cancelled"] == 1


def test_a_cancellation_that_makes_no_sense() -> None:
    broker = Transcript()
    broker.said("client", b"MDPC02", b"\1", b"mmi.cancel", b"echo")
    broker.told("client", b"MDPC02", b"\3", b"mmi.cancel", b"400")


def test_a_large_document_is_not_made_for_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmi, "SMALL", 3)
    broker = Transcript()
    for name in ("a", "b"):
        broker.worker(name)
    assert document(broker, b"mmi.workers") == {"echo": 2}
    broker.worker("c")
    assert document(broker, b"mmi.workers") == {"echo": 3}, "nothing that was kept when it was small"
    broker.worker("d")
    assert document(broker, b"mmi.workers") == {"echo": 3}, "it was kept"
    broker.later(2 * 5 * mmi.FRESH_FOR)
    assert document(broker, b"mmi.workers") == {"echo": 4}
