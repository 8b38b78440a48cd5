"""A worker's life as the broker sees it: registration, requests, replies, the ways to go."""

from __future__ import annotations

import pytest
from support.broker_invariants import check_empty
from support.transcript import CLIENT, Transcript

from broker.core.mdp import WORKER_MAJORTOMO, WORKER_V01, WORKER_V02, Command, WorkerDialect

HEADS = {"0.1": [b"", b"MDPW01"], "0.2": [b"MDPW02"], "majortomo": [b"", b"MDPW02"]}
READY, REQUEST = b"\1", b"\2"
PARTIAL = {"0.2": b"\3", "majortomo": b"\3"}
FINAL = {"0.1": b"\3", "0.2": b"\4", "majortomo": b"\4"}
HEARTBEAT = {"0.1": b"\4", "0.2": b"\5", "majortomo": b"\5"}
DISCONNECT = {"0.1": b"\5", "0.2": b"\6", "majortomo": b"\6"}


class One:
    """A broker and one worker, which speaks the version that the test is run for."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.broker = Transcript()
        self.core = self.broker.core

    def says(self, *rest: bytes) -> None:
        self.broker.said("worker", *HEADS[self.version], *rest)

    def is_told(self, *rest: bytes) -> list[bytes]:
        return self.broker.told("worker", *HEADS[self.version], *rest)[len(HEADS[self.version]) :]

    def registers(self) -> None:
        self.says(READY, b"echo")
        self.is_told(HEARTBEAT[self.version])

    def works(self) -> bytes:
        self.broker.request("client", b"q")
        return self.is_told(REQUEST, CLIENT, b"", b"q")[1]

    def is_disconnected(self) -> None:
        self.is_told(DISCONNECT[self.version])
        self.is_gone()

    def is_gone(self) -> None:
        self.broker.told_nothing("worker")
        assert not self.core.workers
        self.broker.later(30)
        self.broker.told_nothing("worker")


@pytest.fixture(params=["0.1", "0.2", "majortomo"])
def one(request: pytest.FixtureRequest) -> One:
    return One(request.param)


@pytest.mark.parametrize(
    ("dialect", "version"), [(WORKER_V01, "0.1"), (WORKER_V02, "0.2"), (WORKER_MAJORTOMO, "majortomo")]
)
def test_names_of_the_dialects(dialect: WorkerDialect, version: str) -> None:
    assert dialect.name == version


# -- none: not registered ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["partial", "final", "heartbeat"])
def test_commands_before_ready_are_answered_with_disconnect(one: One, command: str) -> None:
    if command == "partial" and one.version == "0.1":
        command = "final"
    code = {"partial": PARTIAL, "final": FINAL, "heartbeat": HEARTBEAT}[command][one.version]
    one.says(code, *([] if command == "heartbeat" else [b"client", b"", b"body"]))
    one.is_disconnected()
    check_empty(one.core)


def test_disconnect_before_ready_is_ignored(one: One) -> None:
    one.says(DISCONNECT[one.version])
    one.is_gone()


def test_a_request_from_a_worker_is_refused(one: One) -> None:
    one.says(REQUEST, b"client", b"", b"q")
    one.is_disconnected()


@pytest.mark.parametrize(
    "rest", [[], [b""], [b"", b"echo"], [b"\xff"], [b"a\0b"], [b"x" * 256], [b"mmi."], [b"mmi.service"]]
)
def test_ready_for_what_cannot_be_served_is_refused(one: One, rest: list[bytes]) -> None:
    one.says(READY, *rest)
    one.is_disconnected()
    check_empty(one.core)
    assert one.core.stats["workers_refused"] == 1


def test_words_behind_the_service_that_nobody_knows_are_ignored(one: One) -> None:
    one.says(READY, b"echo", b"titanic:99", b"titanic:process=" + b"x" * 99)
    assert one.core.services[b"echo"].workers == 1
    assert not one.core.registry.processes


@pytest.mark.parametrize("words", [[b"more"], [b"titanic:2", b""], [b"later", b"titanic:1"]])
def test_words_of_later_versions_behind_ready_are_ignored(one: One, words: list[bytes]) -> None:
    one.says(READY, b"echo", *words)
    one.is_told(HEARTBEAT[one.version])
    (worker,) = one.core.workers.values()
    assert worker.extended is (one.version == "0.2" and b"titanic:1" in words)


def test_ready_for_an_integrated_service_is_refused(one: One) -> None:
    one.core.integrate(b"titanic.request")
    one.says(READY, b"titanic.request")
    one.is_disconnected()


def test_ready_when_there_are_too_many_is_refused() -> None:
    broker = Transcript(max_workers=1)
    broker.worker("first")
    broker.said("second", b"MDPW02", b"\1", b"echo")
    broker.told("second", b"MDPW02", b"\6")
    broker.said("first", b"MDPW02", b"\6")
    broker.worker("second")


# -- idle ----------------------------------------------------------------------------------------------------


def test_ready_is_answered_at_once(one: One) -> None:
    one.registers()
    one.broker.told_nothing()


def test_a_second_ready_is_an_error(one: One) -> None:
    one.registers()
    one.says(READY, b"echo")
    one.is_disconnected()


def test_a_second_ready_while_busy_is_an_error_and_the_request_goes_elsewhere(one: One) -> None:
    one.registers()
    one.works()
    one.says(READY, b"echo")
    one.is_disconnected()
    one.broker.worker("other")
    one.broker.working("other", b"q")


def test_after_a_disconnect_ready_is_welcome_again(one: One) -> None:
    one.registers()
    one.says(READY, b"echo")
    one.is_disconnected()
    one.registers()
    one.works()


@pytest.mark.parametrize("command", ["partial", "final"])
def test_a_reply_without_request_is_refused(one: One, command: str) -> None:
    one.registers()
    code = (PARTIAL if command == "partial" else FINAL).get(one.version, b"\3")
    one.says(code, b"client", b"", b"a")
    one.is_disconnected()


def test_disconnect_while_idle(one: One) -> None:
    one.registers()
    one.says(DISCONNECT[one.version])
    one.is_gone()
    check_empty(one.core)
    assert one.core.stats["workers_left"] == 1


# -- busy ----------------------------------------------------------------------------------------------------


def test_disconnect_while_busy_gives_the_request_to_another(one: One) -> None:
    one.registers()
    one.works()
    one.broker.worker("other")
    one.says(DISCONNECT[one.version])
    one.broker.final("other", one.broker.working("other", b"q"), b"a")
    one.broker.answered("client", b"a")


def test_one_request_at_a_time(one: One) -> None:
    one.registers()
    client = one.works()
    one.broker.request("client", b"q2")
    one.broker.told_nothing("worker")
    one.says(HEARTBEAT[one.version])
    one.broker.told_nothing("worker")
    one.says(FINAL[one.version], client, b"", b"a")
    one.is_told(REQUEST, CLIENT, b"", b"q2")


def test_nothing_more_goes_to_the_client_after_final(one: One) -> None:
    one.registers()
    client = one.works()
    one.says(FINAL[one.version], client, b"", b"a")
    one.broker.answered("client", b"a")
    one.says(FINAL[one.version], client, b"", b"again")
    one.is_disconnected()
    one.broker.told_nothing("client")


@pytest.mark.parametrize("rest", [[], [CLIENT], [CLIENT, b"x", b"a"], [b"wrong", b"", b"a"], [b"", b"", b"a"]])
def test_a_reply_with_a_wrong_client_frame_makes_the_worker_invalid(one: One, rest: list[bytes]) -> None:
    one.registers()
    client = one.works()
    one.says(FINAL[one.version], *[client if frame is CLIENT else frame for frame in rest])
    one.broker.told_nothing("client")
    one.broker.told_nothing("worker")
    assert not one.core.workers
    assert one.core.stats["malformed"] == 1
    one.says(HEARTBEAT[one.version])
    one.is_told(DISCONNECT[one.version])
    one.broker.worker("other")
    one.broker.working("other", b"q")


def test_the_reply_of_an_earlier_delivery_is_stale(one: One) -> None:
    """Each delivery has its own client frame: a worker that was given up cannot answer for the next one."""
    one.registers()
    client = one.works()
    one.says(DISCONNECT[one.version])
    one.registers()
    again = one.is_told(REQUEST, CLIENT, b"", b"q")[1]
    assert again != client
    one.says(FINAL[one.version], client, b"", b"stale")
    one.broker.told_nothing("client")


def test_garbage_from_a_worker_makes_it_invalid(one: One) -> None:
    one.registers()
    one.works()
    one.broker.said("worker", b"garbage")
    assert not one.core.workers
    one.broker.worker("other")
    one.broker.working("other", b"q")


def test_a_lost_connection_is_no_need_to_wait(one: One) -> None:
    one.registers()
    one.works()
    one.broker.worker("other")
    one.broker.lost("worker")
    one.broker.working("other", b"q")
    one.broker.lost("worker")
    one.broker.lost("client")
    one.broker.lost("nobody")


def test_least_recently_used_first() -> None:
    broker = Transcript()
    for name in ("a", "b", "c"):
        broker.worker(name)
    clients = {}
    for body, name in ((b"1", "a"), (b"2", "b"), (b"3", "c")):
        broker.request("client", body)
        clients[name] = broker.working(name, body)
    for name in ("b", "c", "a"):
        broker.final(name, clients[name], b"x")
    for body, name in ((b"4", "b"), (b"5", "c"), (b"6", "a")):
        broker.request("client", body)
        broker.working(name, body)


def test_nothing_is_left_when_everybody_has_gone(one: One) -> None:
    for number in range(60):
        service = b"service-%d" % number
        one.says(READY, service)
        one.broker.request("client", b"q", service=service)
        client = one.broker.heard("worker")[-1][-3]
        one.says(FINAL[one.version], client, b"", b"a")
        one.says(DISCONNECT[one.version])
        one.broker.request("client", b"q", service=service)
    one.broker.later(100)
    one.broker.heard("client")
    check_empty(one.core)


def test_shut_down_says_good_bye_to_all_and_gives_the_work_to_nobody() -> None:
    broker = Transcript()
    for name in ("a", "b", "c"):
        broker.worker(name)
    broker.request("client", b"q")
    broker.working("a", b"q")
    broker.core.shut_down(broker.now)
    broker.collect()
    for name in ("a", "b", "c"):
        broker.told(name, b"MDPW02", b"\6")
    broker.told_nothing()
    check_empty(broker.core)


def test_a_broker_that_drains_sends_workers_away_as_they_become_free() -> None:
    broker = Transcript()
    broker.worker("busy")
    broker.worker("free", b"other")
    broker.request("client", b"q")
    token = broker.working("busy", b"q")
    broker.request("client", b"waits")
    broker.core.drain(broker.now)
    broker.collect()
    broker.told("free", b"MDPW02", b"\6")
    assert broker.failed("client", b"503").startswith(b"503 draining: ")
    broker.request("client", b"late")
    assert broker.failed("client", b"503").startswith(b"503 draining: ")
    broker.said("new", b"MDPW02", READY, b"echo")
    broker.told("new", b"MDPW02", b"\6")
    assert len(broker.core.workers) == 1
    broker.final("busy", token, b"a")
    broker.told("busy", b"MDPW02", b"\6")
    broker.answered("client", b"a")
    check_empty(broker.core)


def test_the_request_of_a_worker_that_dies_while_the_broker_drains_is_refused() -> None:
    broker = Transcript()
    broker.worker("a")
    broker.request("client", b"q")
    broker.working("a", b"q")
    broker.core.drain(broker.now)
    broker.lost("a")
    assert broker.failed("client", b"503").startswith(b"503 draining: ")
    check_empty(broker.core)


def test_a_broker_that_is_cut_off_sends_idle_workers_away_and_takes_in_those_that_come() -> None:
    broker = Transcript()
    broker.worker("busy")
    broker.worker("free", b"other")
    broker.request("client", b"q")
    token = broker.working("busy", b"q")
    broker.core.cut_off(True, broker.now)
    broker.collect()
    broker.told("free", b"MDPW02", b"\6")
    broker.request("client", b"waits")
    broker.told_nothing("client")
    broker.said("client", b"MDPC02", b"\1", b"other", b"x")
    assert broker.failed("client", b"503", b"other").startswith(b"503 draining: ")
    broker.final("busy", token, b"a")
    broker.answered("client", b"a")
    broker.final("busy", broker.working("busy", b"waits"), b"b")
    broker.answered("client", b"b")
    broker.worker("new", b"other")
    broker.core.cut_off(True, broker.now)
    broker.collect()
    broker.told_nothing("new")
    assert len(broker.core.workers) == 2


def test_idle_workers_that_have_other_brokers_are_sent_there_but_not_the_last_of_a_service() -> None:
    broker = Transcript()
    for name, service, words in (
        ("one", b"echo", [b"titanic:1", b"titanic:elsewhere"]),
        ("two", b"echo", [b"titanic:1", b"titanic:elsewhere"]),
        ("silent", b"echo", [b"titanic:1"]),
        ("last", b"other", [b"titanic:1", b"titanic:elsewhere"]),
    ):
        broker.said(name, b"MDPW02", READY, service, *words)
        broker.told(name, *WORKER_V02.encode(Command.HEARTBEAT))
    broker.core.send_on(1, broker.now)
    broker.collect()
    broker.told("one", b"MDPW02", b"\6")
    broker.core.send_on(9, broker.now)
    broker.collect()
    broker.told("two", b"MDPW02", b"\6")
    broker.told_nothing("last")
    broker.core.send_on(None, broker.now)
    broker.collect()
    broker.told("last", b"MDPW02", b"\6")
    broker.told_nothing("silent")
    assert len(broker.core.workers) == 1
