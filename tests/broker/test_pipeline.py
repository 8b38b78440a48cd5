"""Many requests in flight on one connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.waiting import until

from broker import Broker, Client, Pipeline, RemoteError, TimedOut, UsageError, Worker
from broker.core.client import EventKind
from broker.core.mdp import Frames


def serve(frames: Frames) -> Iterator[bytes]:
    if frames[0] == b"fail":
        raise RemoteError(418, "asked to fail")
    if frames[0] == b"parts":
        yield b"1"
        yield b"2"
    return b"re:" + frames[0]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    broker = Broker()
    address = broker.bind("tcp://127.0.0.1:*")
    with broker, Worker("serve", serve, address, jobs=4) as worker:
        until(lambda: worker.registered == 4)
        yield address


@pytest.fixture(params=["0.2", "0.1", "majortomo"])
def pipeline(address: str, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    with Pipeline(address, timeout=60, version=request.param) as pipeline:
        yield pipeline


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_map_keeps_the_order(pipeline: Pipeline, window: int) -> None:
    bodies = [str(number) for number in range(200)]
    assert list(pipeline.map("serve", bodies, window=window)) == [[b"re:" + body.encode()] for body in bodies]
    assert len(pipeline) == 0


def test_map_of_nothing_and_of_frames_and_of_parts(pipeline: Pipeline) -> None:
    assert list(pipeline.map("serve", [])) == []
    assert list(pipeline.map("serve", [[b"a", b"b"], b"parts"])) == [[b"re:a"], [b"1", b"2", b"re:parts"]]


def test_map_takes_bodies_as_it_goes(pipeline: Pipeline) -> None:
    taken = []

    def bodies() -> Iterator[bytes]:
        for number in range(100):
            taken.append(number)
            yield b"%d" % number

    results = pipeline.map("serve", bodies(), window=5)
    for number in range(100):
        assert next(results) == [b"re:%d" % number]
        assert len(taken) <= number + 5 + 5
    assert next(results, None) is None


def test_map_raises_in_the_order_of_the_bodies(pipeline: Pipeline) -> None:
    results = pipeline.map("serve", [b"1", b"2", b"fail", b"3", b"4"])
    assert next(results) == [b"re:1"]
    assert next(results) == [b"re:2"]
    with pytest.raises(RemoteError, match="418 asked to fail"):
        next(results)
    assert len(pipeline) == 0
    assert pipeline.receive() is None
    assert list(pipeline.map("serve", [b"5"])) == [[b"re:5"]]


def test_a_map_left_early_harms_nothing(pipeline: Pipeline) -> None:
    results = pipeline.map("serve", [b"%d" % number for number in range(50)])
    assert next(results) == [b"re:0"]
    results.close()  # type: ignore[attr-defined]
    assert len(pipeline) == 0
    assert list(pipeline.map("serve", [b"x", b"y"])) == [[b"re:x"], [b"re:y"]]


def test_other_requests_meanwhile(pipeline: Pipeline) -> None:
    ticket = pipeline.send("serve", b"other")
    assert list(pipeline.map("serve", [b"1", b"2"])) == [[b"re:1"], [b"re:2"]]
    reply = pipeline.receive()
    assert reply is not None
    assert (reply.ticket, reply.body, reply.final) == (ticket, [b"re:other"], True)


def test_receive_gives_errors_as_values(pipeline: Pipeline) -> None:
    tickets = {pipeline.send("serve", body): body for body in (b"a", b"fail", b"b")}
    replies = {}
    while (reply := pipeline.receive()) is not None:
        replies[tickets[reply.ticket]] = reply
    assert replies[b"a"].body == [b"re:a"]
    error = replies[b"fail"].error
    assert isinstance(error, RemoteError)
    assert error.status == 418
    assert replies[b"fail"].final


def test_events_and_receive_together(pipeline: Pipeline) -> None:
    tickets = {pipeline.send("serve", b"%d" % number) for number in range(20)}
    first = pipeline.receive()
    assert first is not None
    seen = {first.ticket}
    while len(seen) < 20:
        seen |= {event.ticket for event in pipeline.events() if event.kind is EventKind.FINAL}
    assert seen == tickets


def test_cancelled_replies_do_not_come(pipeline: Pipeline) -> None:
    tickets = [pipeline.send("serve", b"%d" % number) for number in range(10)]
    assert pipeline.receive() is not None
    for ticket in tickets:
        pipeline.cancel(ticket)
    assert pipeline.events() == []
    assert list(pipeline.map("serve", [b"x"])) == [[b"re:x"]]


def test_waiting_for_nothing_ends_at_once(pipeline: Pipeline) -> None:
    assert pipeline.receive() is None
    assert pipeline.events() == []
    pipeline.send("serve", b"x")
    assert pipeline.receive(0) is None or len(pipeline) == 0


def test_giving_up() -> None:
    with Pipeline("tcp://127.0.0.1:9", timeout=0.02, retries=1) as pipeline:
        for _ in range(100):
            pipeline.send("serve", b"x")
        errors = []
        while (reply := pipeline.receive()) is not None:
            errors.append(reply.error)
        assert len(errors) == 100
        assert all(isinstance(error, TimedOut) for error in errors)
        with pytest.raises(TimedOut):
            list(pipeline.map("serve", [b"x"]))


def test_a_window_of_nothing(pipeline: Pipeline) -> None:
    with pytest.raises(UsageError, match="window"):
        list(pipeline.map("serve", [b"x"], window=0))


def test_clients_and_pipelines_together(address: str, pipeline: Pipeline) -> None:
    with Client(address) as client:
        for number, _ in enumerate(pipeline.map("serve", [b"x"] * 50, window=10)):
            assert client.call("serve", b"%d" % number) == [b"re:%d" % number]
