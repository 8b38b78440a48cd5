"""Whatever frames come, no core raises, and good peers get through."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from support.broker_invariants import check, check_empty

from broker.config import BrokerConfig, ClientConfig
from broker.core.broker import BrokerCore
from broker.core.client import ClientSession, EventKind
from broker.core.mdp import KNOWN_WORDS
from broker.core.worker import SessionState, WorkerSession

bounded = settings(deadline=None, max_examples=120, suppress_health_check=list(HealthCheck), derandomize=True)

WORDS = [b"", b"MDPC01", b"MDPC02", b"MDPW01", b"MDPW02", b"MDPE01", b"echo", b"in", b"mmi.service", b"mmi.stats"]
WORDS += [
    *KNOWN_WORDS,
    *(word + b"=2" for word in KNOWN_WORDS),
    b"titanic:service=1:in",
    b"titanic:version=\xff",
    b"\11",
    b"\12",
    b"1",
    b"0000000000000002",
]
WORDS += [b"mmi.x", b"\1", b"\2", b"\3", b"\4", b"\5", b"\6", b"\7", b"x", b"\xff", b"0000000000000001"]
GOOD = [
    [b"", b"MDPC01", b"echo", b"q"],
    [b"MDPC02", b"\1", b"echo", b"q"],
    [b"a", b"", b"MDPC02", b"\1", b"echo", b"q"],
    [b"", b"MDPC02", b"\2", b"echo", b"q"],
    [b"MDPC02", b"\3", b"echo", b"a"],
    [b"", b"MDPW01", b"\1", b"echo"],
    [b"MDPW02", b"\1", b"echo"],
    [b"", b"MDPW02", b"\1", b"echo"],
    [b"MDPW02", b"\2", b"client", b"", b"q"],
    [b"MDPW02", b"\3", b"0000000000000001", b"", b"part"],
    [b"MDPW02", b"\4", b"0000000000000001", b"", b"a"],
    [b"", b"MDPW01", b"\3", b"0000000000000002", b"", b"a"],
    [b"MDPW02", b"\1", b"echo", b"titanic:1", b"titanic:slots=2", b"titanic:service=1:other"],
    [b"MDPW02", b"\12", b"1", b"0000000000000001"],
    [b"MDPC02", b"\1", b"other", b"q"],
    [b"MDPW02", b"\5"],
    [b"MDPW02", b"\6"],
]

frame = some.sampled_from(WORDS) | some.binary(max_size=20)


@some.composite
def mutated(draw: Any) -> list[bytes]:
    frames = list(draw(some.sampled_from(GOOD)))
    for _ in range(draw(some.integers(0, 2))):
        at = draw(some.integers(0, len(frames)))
        match draw(some.integers(0, 2)):
            case 0:
                frames.insert(at, draw(frame))
            case 1:
                frames[at : at + 1] = []
            case 2:
                frames[at : at + 1] = [draw(frame)]
    return frames


message = mutated() | some.lists(frame, max_size=8) | some.lists(some.just(b"x"), min_size=15, max_size=20)
steps = some.lists(
    some.tuples(some.sampled_from("abcd"), message, some.sampled_from([0.0, 0.1, 3.0, 11.0])), max_size=30
)


@bounded
@given(steps)
def test_the_broker(steps: list[tuple[str, list[bytes], float]]) -> None:
    core = BrokerCore(BrokerConfig(max_waiting=10, max_waiting_per_service=5, max_body=30, max_workers=3))
    core.integrate(b"in")
    now = 0.0
    for peer, frames, pause in steps:
        before = list(frames)
        core.receive(peer, frames, now)
        assert frames == before, "a message is not the core's to change"
        check(core)
        now += pause
        core.tick(now)
        check(core)
        for _, batch in core.take_batches():
            for request in batch:
                core.reply(request, [b"re"])
        for _, output in core.take_output():
            assert output
            assert all(type(part) is bytes for part in output)

    core.receive("good worker", [b"MDPW02", b"\1", b"good"], now)
    core.receive("good client", [b"MDPC02", b"\1", b"good", b"q"], now)
    told = dict(core.take_output())
    if told["good worker"] == [b"MDPW02", b"\6"]:
        assert len(core.workers) == 3, "refused without a reason"
    else:
        token = (told["good worker"] or [])[2]
        core.receive("good worker", [b"MDPW02", b"\4", token, b"", b"a"], now)
        assert ("good client", [b"MDPC02", b"\3", b"good", b"a"]) in core.take_output()

    for _ in range(1000):
        now += 1
        core.tick(now)
    del core.services[b"in"]
    core.take_output()
    check_empty(core)


@bounded
@given(some.lists(some.tuples(message, some.sampled_from([0.0, 0.1, 3.0, 11.0])), max_size=30))
def test_the_worker(steps: list[tuple[list[bytes], float]]) -> None:
    session = WorkerSession(b"echo", now=0)
    now = 0.0
    session.tick(now)
    for frames, pause in steps:
        session.receive(session.connection, frames, now)
        now += pause
        for job in session.take_jobs():
            session.final(job.number, job.body, now)
        session.tick(now)
        session.take_output()
    if session.state is SessionState.AWAY:  # for 32 s at most, and then as good as new
        now += 32
        session.tick(now)
    if session.state is SessionState.ASKING:
        session.receive(session.connection, [b"", b"MDPC01", b"mmi.service", b"404"], now)
    session.take_output()
    head = [b"MDPW02"] if session.dialect.name == "0.2" else [b"", b"MDPW01"]
    session.receive(session.connection, [*head, b"\2", b"client", b"", b"q"], now)
    assert [job.body for job in session.take_jobs()] == [[b"q"]]


@bounded
@given(some.booleans(), some.sampled_from(["0.1", "0.2", "majortomo"]), some.lists(message, max_size=30))
def test_the_client(correlated: bool, version: str, messages: list[list[bytes]]) -> None:
    session = ClientSession(ClientConfig(version=version), correlated=correlated)
    ticket = session.request(b"good", [b"q"], 0.0)
    for frames in messages:
        session.receive(session.connection, frames, 0.5)
    ((_, sent),) = session.take_output()
    if len(session):
        stack = (sent or [])[:2] if correlated else []
        reply = {"0.2": [b"MDPC02", b"\3", b"good"], "0.1": [b"MDPC01", b"good"], "majortomo": [b"MDPC02", b"\4"]}
        session.receive(session.connection, [*(stack or [b""]), *reply[version], b"a"], 1.0)
        assert (ticket, EventKind.FINAL, [b"a"]) in [event[:3] for event in session.take_events()]
    assert sum(event.kind is EventKind.FINAL for event in session.take_events()) <= 1
    assert session.next_deadline() is None
