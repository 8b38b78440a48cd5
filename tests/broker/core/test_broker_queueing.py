"""Requests that wait: in which order they go out, how long they may wait, how many, and what a worker's death means."""

from __future__ import annotations

import pytest
from support.broker_invariants import check_empty
from support.transcript import CLIENT, Transcript

from broker.core.mdp import EXTENSION


def orders(broker: Transcript, worker: str, count: int) -> list[bytes]:
    """Serve `count` requests and note their bodies."""
    bodies = []
    for _ in range(count):
        (message,) = broker.heard(worker)
        bodies.append(message[4])
        broker.final(worker, message[2], b"a")
    return bodies


def test_requests_wait_for_a_worker_in_order() -> None:
    broker = Transcript()
    for body in (b"1", b"2", b"3"):
        broker.request("client", body)
    broker.worker("worker")
    assert orders(broker, "worker", 3) == [b"1", b"2", b"3"]


def test_clients_are_served_in_turn() -> None:
    broker = Transcript()
    for number in range(4):
        broker.request("greedy", b"g%d" % number)
    broker.request("modest", b"m")
    broker.request("other", b"o")
    broker.worker("worker")
    assert orders(broker, "worker", 6) == [b"g0", b"m", b"o", b"g1", b"g2", b"g3"]


def test_services_do_not_wait_for_each_other() -> None:
    broker = Transcript()
    broker.request("client", b"1", service=b"absent")
    broker.worker("worker")
    broker.request("client", b"2")
    broker.working("worker", b"2")


# -- a client that may have nothing begun now ----------------------------------------------------------------


def test_what_no_worker_has_of_a_client_is_withheld_and_others_go_on() -> None:
    broker = Transcript()
    broker.worker("one")
    broker.request("client", b"at work")
    token = broker.working("one", b"at work")
    for body in (b"1", b"2"):
        broker.request("client", body)
        broker.request("other", body)
    broker.request("client", b"elsewhere", service=b"absent")
    broker.core.withhold("client", broker.now)
    broker.collect()
    for service in (b"echo", b"echo", b"absent"):
        assert b"cancelled" in broker.failed("client", b"499", service)
    broker.final("one", token, b"done")
    broker.answered("client", b"done")
    broker.final("one", broker.working("one", b"1"), b"a")
    broker.working("one", b"2")
    assert broker.core.stats["cancelled"] == 3


@pytest.mark.parametrize("waits", [False, True])
def test_a_request_on_its_way_to_a_worker_is_withheld_and_the_worker_is_free_for_others(waits: bool) -> None:
    broker = Transcript()
    broker.worker("worker")
    broker.request("client", b"before")
    token = broker.working("worker", b"before")
    broker.request("client", b"late")
    if waits:
        broker.request("other", b"next")
    broker.core.receive("worker", [b"MDPW02", b"\4", token, b"", b"done"], broker.now)
    broker.core.withhold("client", broker.now)
    broker.collect()
    broker.answered("client", b"done")
    broker.failed("client", b"499")
    if not waits:
        broker.told_nothing("worker")
        broker.request("other", b"next")
    broker.working("worker", b"next")


def test_what_a_worker_is_told_about_a_request_that_it_has_is_not_withheld() -> None:
    broker = Transcript()
    broker.said("worker", b"MDPW02", b"\1", b"echo", EXTENSION)
    broker.heard("worker")
    broker.core.receive("client", [b"mark", b"", b"MDPC02", b"\1", b"echo", b"q"], broker.now)
    broker.collect()
    token = broker.working("worker", b"q")
    assert broker.core.cancel("client", b"echo", b"mark", broker.now, b"running") == b"404"
    broker.core.withhold("client", broker.now)
    broker.collect()
    assert len(broker.heard("worker")) == 1
    broker.final("worker", token, b"a")
    assert broker.heard("client")[0][-1] == b"a"


# -- expiry --------------------------------------------------------------------------------------------------


def test_a_request_expires_with_an_error_reply() -> None:
    broker = Transcript(request_expiry=60)
    broker.request("client", b"q")
    broker.later(59.9)
    broker.told_nothing("client")
    broker.later(6.2)
    assert broker.failed("client", b"504") == b"504 no worker took the request within 60 s"
    check_empty(broker.core)
    assert broker.core.next_deadline() is None


def test_an_error_reply_is_the_same_in_every_version() -> None:
    broker = Transcript(request_expiry=1)
    broker.said("old", b"", b"MDPC01", b"echo", b"q")
    broker.said("tomo", b"", b"MDPC02", b"\2", b"echo", b"q")
    broker.later(2)
    text = b"504 no worker took the request within 1 s"
    broker.told("old", b"", b"MDPC01", b"echo", b"MDPE01", text)
    broker.told("tomo", b"", b"MDPC02", b"\4", b"MDPE01", text)


def test_busy_workers_do_not_keep_requests_from_expiring() -> None:
    broker = Transcript(request_expiry=60, silent_worker_timeout=900)
    broker.said("worker", b"", b"MDPW02", b"\1", b"echo")  # majortomo's: silent while it works
    broker.request("client", b"q1")
    broker.request("client", b"q2")
    broker.later(67)
    broker.failed("client", b"504")
    assert len(broker.core.workers) == 1


def test_only_the_old_ones_expire() -> None:
    broker = Transcript(request_expiry=60)
    broker.request("a", b"1")
    broker.request("b", b"2")
    broker.later(30)
    broker.request("a", b"3")
    broker.later(37)
    broker.failed("a", b"504")
    broker.failed("b", b"504")
    broker.told_nothing("a", "b")
    broker.worker("worker")
    assert orders(broker, "worker", 1) == [b"3"]


def test_without_expiry_requests_wait_for_ever() -> None:
    broker = Transcript(request_expiry=0)
    broker.request("client", b"q")
    assert broker.core.next_deadline() is None
    broker.later(1e9)
    broker.worker("worker")
    broker.working("worker", b"q")


# -- workers that die ----------------------------------------------------------------------------------------


def test_a_dead_workers_request_goes_to_the_front() -> None:
    broker = Transcript()
    broker.worker("first")
    broker.request("client", b"1")
    broker.working("first", b"1")
    broker.request("client", b"2")
    broker.lost("first")
    broker.worker("second")
    assert orders(broker, "second", 2) == [b"1", b"2"]
    assert broker.core.stats["redelivered"] == 1


def test_a_dead_workers_request_goes_to_a_free_worker_at_once() -> None:
    broker = Transcript()
    broker.worker("first")
    broker.worker("second")
    broker.request("client", b"1")
    broker.working("first", b"1")
    broker.lost("first")
    broker.working("second", b"1")


def test_a_broker_that_stood_still_blames_nobody() -> None:
    """It was stopped, or busy for long: what its workers said meanwhile is still unread."""
    broker = Transcript()
    for name in ("a", "b"):
        broker.worker(name)
    broker.request("client", b"q")
    broker.working("a", b"q")
    broker.jump(3600)
    for name in ("a", "b"):
        broker.told(name, b"MDPW02", b"\5")
        broker.told_nothing(name)
    assert broker.core.stats["workers_expired"] == 0


def test_503_is_the_brokers_word() -> None:
    """Nobody has tried, it says. A worker that says so has tried."""
    broker = Transcript()
    broker.worker("a")
    broker.request("client", b"q")
    token = broker.working("a", b"q")
    broker.said("a", b"MDPW02", b"\4", token, b"", b"MDPE01", b"503 busy", b"more")
    broker.told("client", b"MDPC02", b"\3", b"echo", b"MDPE01", b"500 busy", b"more")


@pytest.mark.parametrize("parts", [[[b"MDPE01", b"503 busy"]], [[b"MDPE01"], [b"503 busy"]]])
def test_nor_can_a_worker_say_it_in_parts(parts: list[list[bytes]]) -> None:
    """A client of 0.1 gets them joined."""
    broker = Transcript()
    broker.worker("a")
    broker.said("client", b"", b"MDPC01", b"echo", b"q")
    token = broker.working("a", b"q")
    for part in parts:
        broker.said("a", b"MDPW02", b"\3", token, b"", *part)
    broker.final("a", token, b"")
    broker.told("client", b"", b"MDPC01", b"echo", b"MDPE01", b"500 busy")


def test_workers_that_fall_silent_together_do_not_get_each_others_requests() -> None:
    """The one request must not be used up on workers that are about to expire."""
    broker = Transcript(max_deliveries=3)
    for name in ("a", "b", "c", "d"):
        broker.worker(name)
    broker.request("client", b"q")
    broker.working("a", b"q")
    broker.later(20)
    for name in ("a", "b", "c", "d"):
        assert broker.heard(name)[-1] == [b"MDPW02", b"\6"]
    assert broker.core.stats["redelivered"] == 1
    broker.worker("e")
    broker.working("e", b"q")


@pytest.mark.parametrize("end", ["says good-bye", "is gone"])
def test_a_process_that_ends_is_one_death_however_many_jobs_it_has(end: str) -> None:
    """Its workers leave one after another, and the request passes through the hands of those that have left already."""
    broker = Transcript(max_deliveries=3)
    for name in ("a", "b", "c", "d"):
        broker.worker(name)
    broker.request("client", b"q")
    for name in ("a", "b", "c", "d"):
        (request,) = broker.heard(name)
        if end == "says good-bye":
            broker.said(name, b"MDPW02", b"\6")
        elif name == "a":
            broker.lost(name)
        else:
            broker.unsent(name, request)
    broker.told_nothing("client")
    broker.worker("e")
    broker.final("e", broker.working("e", b"q"), b"r")
    broker.answered("client", b"r")


def test_a_request_that_kills_its_workers_is_given_up() -> None:
    broker = Transcript(max_deliveries=3)
    broker.request("client", b"poison")
    for name in ("a", "b", "c"):
        broker.told_nothing("client")
        broker.worker(name)
        broker.working(name, b"poison")
        broker.lost(name)
    assert broker.failed("client", b"500") == b"500 3 workers died while processing the request"
    check_empty(broker.core)
    assert broker.core.stats["given_up"] == 1


def test_waiting_begins_anew_after_a_death() -> None:
    broker = Transcript(request_expiry=60)
    broker.worker("first")
    broker.request("client", b"q")
    broker.working("first", b"q")
    for _ in range(10):
        broker.later(9)
        broker.said("first", b"MDPW02", b"\5")
    broker.lost("first")
    broker.later(59)
    broker.told_nothing("client")
    broker.later(8)
    broker.failed("client", b"504")


def test_parts_are_not_sent_twice() -> None:
    broker = Transcript()
    broker.worker("first")
    broker.request("client", b"q")
    client = broker.working("first", b"q")
    for part in (b"1", b"2"):
        broker.said("first", b"MDPW02", b"\3", client, b"", part)
        broker.told("client", b"MDPC02", b"\2", b"echo", part)
    broker.lost("first")
    broker.worker("second")
    client = broker.working("second", b"q")
    for part in (b"1", b"2"):
        broker.said("second", b"MDPW02", b"\3", client, b"", part)
    broker.told_nothing("client")
    broker.said("second", b"MDPW02", b"\3", client, b"", b"3")
    broker.told("client", b"MDPC02", b"\2", b"echo", b"3")
    broker.final("second", client, b"4")
    broker.answered("client", b"4")


def test_parts_are_not_joined_twice() -> None:
    broker = Transcript()
    broker.said("client", b"", b"MDPC01", b"echo", b"q")
    for name in ("first", "second"):
        broker.worker(name)
        client = broker.working(name, b"q")
        broker.said(name, b"MDPW02", b"\3", client, b"", b"1")
        if name == "first":
            broker.lost(name)
    broker.final("second", client, b"2")
    broker.told("client", b"", b"MDPC01", b"echo", b"1", b"2")


def test_collected_parts_are_not_in_an_error_reply() -> None:
    broker = Transcript(max_deliveries=1)
    broker.worker("worker")
    broker.said("client", b"", b"MDPC01", b"echo", b"q")
    client = broker.working("worker", b"q")
    broker.said("worker", b"MDPW02", b"\3", client, b"", b"1")
    broker.lost("worker")
    (reply,) = broker.heard("client")
    assert reply[:4] == [b"", b"MDPC01", b"echo", b"MDPE01"]


# -- bounds --------------------------------------------------------------------------------------------------


def test_bound_per_service() -> None:
    broker = Transcript(max_waiting_per_service=2)
    for _ in range(3):
        broker.request("client", b"q")
    assert b"2 requests are waiting for this service" in broker.failed("client", b"503")
    broker.request("client", b"q", service=b"other")
    broker.told_nothing("client")
    assert broker.core.stats["refused"] == 1


def test_bound_in_all() -> None:
    broker = Transcript(max_waiting=2)
    for service in (b"a", b"b", b"c"):
        broker.request("client", b"q", service=service)
    broker.failed("client", b"503", service=b"c")
    assert b"c" not in broker.core.services
    broker.worker("worker", b"a")
    broker.request("client", b"q", service=b"c")
    broker.told_nothing("client")


@pytest.mark.parametrize(
    "message",
    [
        [b"MDPC02", b"\1", b"echo", bytes(1000)],
        [bytes(1000), b"", b"MDPC02", b"\1", b"echo", b"q"],
        [b"MDPC02", b"\1", b"echo", *[b""] * 1000],
    ],
    ids=["body", "stack", "many empty frames"],
)
def test_bound_of_memory(message: list[bytes]) -> None:
    broker = Transcript(max_waiting_bytes=5000)
    for _ in range(10):
        broker.said("client", *message)
    refused = broker.heard("client")
    assert len(refused) >= 5
    assert all(
        b"bytes are waiting in total" in frame for reply in refused for frame in reply if frame.startswith(b"503")
    )
    broker.later(100)
    assert broker.core.waiting.bytes == 0


@pytest.mark.parametrize("served", ["by a worker", "by nobody", "in the broker"])
def test_a_body_that_is_too_large_is_refused(served: str) -> None:
    broker = Transcript(max_body=10)
    if served == "by a worker":
        broker.worker("worker")
    elif served == "in the broker":
        broker.core.integrate(b"echo")
    broker.request("client", b"12345", b"678901")
    assert broker.failed("client", b"413") == b"413 body has 11 bytes; this broker accepts at most 10"
    broker.request("client", b"12345", b"67890")
    broker.told_nothing("client")


@pytest.mark.parametrize("part", [bytes(300), b""])
def test_joined_parts_are_bounded(part: bytes) -> None:
    broker = Transcript(max_body=1000)
    broker.worker("worker")
    broker.said("client", b"", b"MDPC01", b"echo", b"q")
    client = broker.working("worker", b"q")
    said = 0
    while broker.core.workers:
        broker.said("worker", b"MDPW02", b"\3", client, b"", part)
        said += 1
        assert said < 100, "the broker keeps any number of parts"
    (reply,) = broker.heard("client")
    assert reply[4] == b"413 the PARTIALs of the reply exceed 1000 bytes"
    check_empty(broker.core)


def test_redelivery_is_never_refused() -> None:
    broker = Transcript(max_waiting=1, max_waiting_per_service=1)
    broker.worker("worker")
    broker.request("client", b"1")
    broker.working("worker", b"1")
    broker.request("client", b"2")
    broker.lost("worker")
    broker.told_nothing("client")
    broker.worker("second")
    assert orders(broker, "second", 2) == [b"1", b"2"]


def test_a_client_that_vanished_costs_a_reply_only() -> None:
    broker = Transcript()
    broker.worker("worker")
    broker.request("client", b"q")
    client = broker.told("worker", b"MDPW02", b"\2", CLIENT, b"", b"q")[2]
    broker.lost("client")
    broker.final("worker", client, b"a")
    broker.request("other", b"q")
    broker.working("worker", b"q")
