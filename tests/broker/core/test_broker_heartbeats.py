"""Heartbeats both ways as the broker keeps them, at the defaults: every 2.5 s, gone after 10 s of silence."""

from __future__ import annotations

import pytest
from support.broker_invariants import check_empty
from support.transcript import CLIENT, Transcript

BEAT = [b"MDPW02", b"\5"]


@pytest.fixture
def broker() -> Transcript:
    broker = Transcript()
    broker.worker("worker")
    return broker


def test_a_heartbeat_goes_out_when_nothing_else_did(broker: Transcript) -> None:
    broker.later(2.4)
    broker.told_nothing("worker")
    broker.later(0.2)
    broker.told("worker", *BEAT)
    broker.later(2.5)
    broker.told("worker", *BEAT)
    broker.told_nothing("worker")


def test_no_heartbeat_while_other_commands_flow(broker: Transcript) -> None:
    for _ in range(10):
        broker.later(2)
        broker.request("client", b"q")
        client = broker.working("worker", b"q")
        broker.final("worker", client, b"a")
        broker.told_nothing("worker")


def test_a_silent_worker_is_gone_after_four_intervals(broker: Transcript) -> None:
    broker.later(9.9)
    assert len(broker.core.workers) == 1
    broker.later(0.2)
    assert broker.heard("worker") == [BEAT, BEAT, BEAT, [b"MDPW02", b"\6"]]
    check_empty(broker.core)
    assert broker.core.stats["workers_expired"] == 1
    broker.later(100)
    broker.told_nothing("worker")


@pytest.mark.parametrize("command", ["heartbeat", "partial", "final"])
def test_any_command_counts_as_a_heartbeat(broker: Transcript, command: str) -> None:
    for _ in range(10):
        broker.later(9)
        broker.heard("worker")
        if command == "heartbeat":
            broker.said("worker", *BEAT)
            continue
        broker.request("client", b"q")
        client = broker.working("worker", b"q")
        broker.said("worker", b"MDPW02", b"\3", client, b"", b"part")
        if command == "partial":
            broker.later(9)
        broker.heard("worker")
        broker.final("worker", client, b"a")
    assert len(broker.core.workers) == 1


def test_a_busy_worker_has_to_send_heartbeats_too(broker: Transcript) -> None:
    broker.request("client", b"q")
    broker.working("worker", b"q")
    broker.later(10.1)
    assert broker.heard("worker")[-1] == [b"MDPW02", b"\6"]
    broker.worker("second")
    broker.working("second", b"q")


def test_a_dead_worker_gets_nothing_any_more(broker: Transcript) -> None:
    broker.later(10.1)
    broker.heard("worker")
    broker.request("client", b"q")
    broker.told_nothing("worker")
    broker.said("worker", *BEAT)
    broker.told("worker", b"MDPW02", b"\6")


def test_time_that_jumps_forward_sends_one_heartbeat(broker: Transcript) -> None:
    broker.jump(9)
    broker.told("worker", *BEAT)
    broker.told_nothing("worker")


def test_nobody_is_blamed_for_silence_while_the_broker_could_not_listen(broker: Transcript) -> None:
    for _ in range(20):
        broker.later(2)
        broker.core.deaf(broker.now)
    broker.later(9)
    assert broker.core.stats["workers_expired"] == 0
    broker.later(2)
    assert broker.core.stats["workers_expired"] == 1


class Line:
    """What a transport tells of a connection."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)

    def goes_on(self, now: float, patience: float) -> bool:
        return self.answers.pop(0)


def test_a_worker_in_the_middle_of_a_message_is_not_silent(broker: Transcript) -> None:
    line = broker.core.workers["worker"].inflow = Line(True, True, False)
    broker.later(29.9)
    assert broker.core.workers
    broker.later(0.2)
    assert not broker.core.workers
    assert line.answers == []


class TestMajortomo:
    """Its worker sends no heartbeats while it works: it has 900 s then, and 10 s at any other time."""

    @pytest.fixture
    def broker(self) -> Transcript:
        broker = Transcript()
        broker.said("worker", b"", b"MDPW02", b"\1", b"echo")
        broker.told("worker", b"", b"MDPW02", b"\5")
        return broker

    def works(self, broker: Transcript) -> bytes:
        broker.request("client", b"q")
        return broker.told("worker", b"", b"MDPW02", b"\2", CLIENT, b"", b"q")[3]

    def test_idle(self, broker: Transcript) -> None:
        broker.later(10.1)
        check_empty(broker.core)

    def test_busy(self, broker: Transcript) -> None:
        self.works(broker)
        broker.later(899)
        assert broker.core.workers
        broker.later(2)
        assert not broker.core.workers
        assert broker.core.waiting.count == 1

    def test_busy_after_a_part(self, broker: Transcript) -> None:
        client = self.works(broker)
        broker.later(500)
        broker.said("worker", b"", b"MDPW02", b"\3", client, b"", b"part")
        broker.later(500)
        assert broker.core.workers

    def test_idle_again(self, broker: Transcript) -> None:
        client = self.works(broker)
        broker.later(500)
        broker.said("worker", b"", b"MDPW02", b"\4", client, b"", b"a")
        broker.later(10.1)
        check_empty(broker.core)

    def test_busy_again(self, broker: Transcript) -> None:
        client = self.works(broker)
        broker.request("client", b"q")
        broker.said("worker", b"", b"MDPW02", b"\4", client, b"", b"a")
        broker.later(899)
        assert broker.core.workers
