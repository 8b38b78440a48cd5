"""A store elsewhere: requests are claimed in the writer's thread, and what is claimed is in flight or given back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from support.store_facts import accept_all, state_of
from support.store_remote import OVER, RemoteStore, RemoteWrite
from support.waiting import until

from broker import ErrorReply, Loop
from titanic import ServerConfig
from titanic.cluster import claims_core as claims_module
from titanic.cluster import node as node_module
from titanic.cluster import node_writes
from titanic.cluster.cluster_dispatcher import ClusterDispatcher
from titanic.commit.writer import Writer
from titanic.dispatch import outcomes
from titanic.dispatch.attempts import Send
from titanic.errors import StoreFailed, StoreTooNew
from titanic.services.ask import Arrived, Closed, Returned
from titanic.services.reader import Reader
from titanic.store import LeaseConfig, NewRequest, NodeFacts, Outcome, Pending, State, Status
from titanic.util.clock import elapsed, wall_us

QUICK = LeaseConfig(lease=1000.0, renew=0.1)
"""Renewed often; no lease runs out while a busy machine stands still."""


class Transport:
    """Nobody is asked, and what is sent is written down."""

    most_ahead = 0
    surveys = False

    def __init__(self) -> None:
        self.sent: list[Send] = []
        self.recalled: list[bytes] = []

    def send_requests(self, sends: Sequence[Send], now: float) -> None:
        self.sent += sends

    def recall_request(self, uuid: bytes, now: float) -> None:
        self.recalled.append(uuid)

    def ask_presence(self, names: Sequence[bytes], now: float) -> None: ...

    def survey(self, now: float) -> None: ...

    def push(self, now: float) -> None: ...

    def deliver_results(self, now: float) -> None: ...


class Host:
    """Of a node that runs; it only notes what it is asked for."""

    def __init__(self) -> None:
        self.drains = threading.Event()

    def facts(self) -> NodeFacts:
        return NodeFacts("test", "1")

    def drain(self) -> None:
        self.drains.set()

    def cut_off_changed(self) -> None: ...

    def send_workers_on(self, most: int | None = None) -> None: ...

    def shared_limits_changed(self) -> None: ...


class Node:
    """A dispatcher that runs, with a store that nobody else uses."""

    def __init__(self, store: RemoteStore | None = None, lease: LeaseConfig = QUICK) -> None:
        self.store = store or RemoteStore()
        self.writer, self.reader, self.loop = Writer(self.store), Reader(self.store), Loop()
        self.transport = Transport()
        parts = ServerConfig(lease=lease, retry_first=60.0), self.store, self.writer, self.reader
        self.host = Host()
        self.dispatcher = ClusterDispatcher(*parts, lambda answers: None, self.loop, host=self.host)
        self.core = self.dispatcher.core
        self.dispatcher.connect(self.transport)
        self._thread = threading.Thread(target=self.loop.run, daemon=True)

    def start(self) -> None:
        self.writer.start()
        self.reader.start()
        self._thread.start()
        self.in_loop(lambda: self.store.loops.add(threading.get_ident()))
        self.dispatcher.start()
        self.settle()

    def stop(self) -> None:
        self.dispatcher.stop()
        self.reader.stop()
        self.writer.stop()
        self.loop.stop()
        self._thread.join()

    def in_loop(self, function: Callable[[], object]) -> None:
        """Have it called there, and wait for it."""
        done = threading.Event()
        self.dispatcher.call(function)
        self.dispatcher.call(done.set)
        assert done.wait(30)

    def settle(self) -> None:
        """Wait until nothing is on its way: whatever a thread was told, it has told the next."""
        for _ in range(3):
            for call in (self.reader.call, self.writer.call):
                done = threading.Event()
                call(done.set)
                assert done.wait(30)
            self.in_loop(lambda: None)

    def submit(self, *bodies: bytes, service: bytes = b"echo", priority: int = 4) -> list[bytes]:
        with self.store.write() as txn:
            uuids = accept_all(txn, [NewRequest(service, [body], priority) for body in bodies], wall_us())
        self.dispatcher.post(Arrived({service: priority}, None))
        return uuids

    def workers(self, count: int, service: bytes = b"echo") -> None:
        self.in_loop(lambda: self.core.present(service, count, time.monotonic()))

    @property
    def sent(self) -> list[bytes]:
        return [send.body[0] for send in self.transport.sent]


@pytest.fixture
def rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node looks by itself when it starts, and not again."""
    monkeypatch.setattr(claims_module, "POLL_INTERVAL", 1e6)
    monkeypatch.setattr(node_module, "POLL_INTERVAL", 1e6)


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    node.start()
    yield node
    assert node.dispatcher.alive
    node.stop()


def replied(node: Node, uuid: bytes) -> None:
    node.in_loop(lambda: node.core.replied(uuid, [b"done"], time.monotonic()))


def test_as_many_are_claimed_as_can_be_sent_and_the_next_when_a_reply_is_on_disk(node: Node) -> None:
    uuids = node.submit(b"1", b"2", b"3")
    node.workers(2)
    until(lambda: node.sent == [b"1", b"2"])
    assert node.store.claimed == set(uuids[:2])
    replied(node, uuids[0])
    until(lambda: node.sent == [b"1", b"2", b"3"])
    for uuid in uuids[1:]:
        replied(node, uuid)
    until(lambda: not node.core.flights)
    node.settle()
    assert node.store.claimed == set()
    assert not node.core.backlogs


def test_what_was_stored_before_the_start_is_sent() -> None:
    node = Node()
    with node.store.write() as txn:
        accept_all(txn, [NewRequest(b"echo", [b"old"])], wall_us())
    node.start()
    node.workers(1)
    until(lambda: node.sent == [b"old"])
    node.stop()


def test_a_store_that_is_away_at_the_start_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "POLL_INTERVAL", 0.01)
    node = Node()
    with node.store.write() as txn:
        accept_all(txn, [NewRequest(b"echo", [b"old"])], wall_us())
    node.store.away = True
    node.start()
    node.settle()
    node.store.away = False
    until(lambda: b"echo" in node.core.backlogs)
    node.workers(1)
    until(lambda: node.sent == [b"old"])
    node.stop()


def test_what_nobody_can_take_any_more_is_given_back(node: Node) -> None:
    """The claim was on its way when the workers went."""
    node.submit(b"0")
    node.workers(1)
    until(lambda: node.sent == [b"0"])
    with node.store.write() as txn:
        accept_all(txn, [NewRequest(b"echo", [b"%d" % n]) for n in range(1, 5)], wall_us())
    with node.store.stalled():
        node.dispatcher.post(Arrived({b"echo": 4}, None))
        node.workers(4)
        assert node.store.waits.wait(30)
        node.workers(2)
    until(lambda: node.sent == [b"0", b"1"])
    until(lambda: len(node.store.claimed) == 2)
    assert node.store.claimed == set(node.core.flights)


def test_what_the_broker_gives_back_is_released_and_claimed_again(node: Node) -> None:
    (uuid,) = node.submit(b"x")
    node.workers(1)
    until(lambda: node.sent == [b"x"])
    node.in_loop(lambda: node.core.refused(uuid, ErrorReply(503, "no worker", []), time.monotonic()))
    until(lambda: not node.store.claimed)
    node.workers(1)
    until(lambda: node.sent == [b"x", b"x"])
    assert node.store.claimed == {uuid}


@pytest.mark.usefixtures("rare")
def test_a_claim_of_which_nobody_was_told_is_given_back_and_made_again(node: Node) -> None:
    (running,) = node.submit(b"running", service=b"other")
    node.workers(1, b"other")
    until(lambda: node.sent == [b"running"])
    (uuid,) = node.submit(b"x")
    node.store.silent = 1
    node.workers(1)
    until(lambda: not node.store.silent)
    until(lambda: node.store.claimed == {running})
    assert node.sent == [b"running"]
    node.dispatcher.post(Returned([b"echo"]))
    until(lambda: node.sent == [b"running", b"x"])
    assert node.store.claimed == {running, uuid}


def test_a_service_for_which_the_bytes_did_not_suffice_is_not_taken_for_empty(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_writes, "CLAIM_BYTES", 100)
    for service in (b"a", b"b", b"c"):
        node.submit(*[b"%b%d" % (service, n) + bytes(90) for n in range(3)], service=service)
    with node.store.stalled():
        for service in (b"a", b"b", b"c"):
            node.in_loop(lambda name=service: node.core.present(name, 3, time.monotonic()))
    until(lambda: len(node.sent) == 9)
    node.settle()
    assert len(set(node.sent)) == 9


@pytest.mark.usefixtures("rare")
def test_what_comes_while_a_claim_finds_nothing_is_found_by_the_next(node: Node) -> None:
    """It was not stored yet when the store was asked, and stored before the answer came: by another node, perhaps."""
    claim, late = node.store.write().__class__.claim, threading.Event()

    def claims(self: object, *args: object) -> object:
        found = claim(self, *args)
        if not late.is_set():
            late.set()
            node.dispatcher.post(Arrived({b"echo": 4}, None))
        return found

    def comes() -> None:
        """At once: a service without workers that has nothing is soon forgotten."""
        node.dispatcher._take(Arrived({b"echo": 4}, None))
        node.core.present(b"echo", 1, time.monotonic())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.store.write().__class__, "claim", claims)
        node.in_loop(comes)
        assert late.wait(30)
        until(lambda: len(node.store.claims) == 2)
        node.settle()
    assert not node.core.backlogs


@pytest.mark.usefixtures("rare")
def test_a_service_of_which_all_is_closed_is_forgotten_but_not_one_where_something_came_meanwhile(node: Node) -> None:
    (one,) = node.submit(b"1", service=b"absent")
    node.workers(0, b"absent")
    with node.store.write() as txn:
        txn.close(one)
    with node.store.stalled():
        node.dispatcher.post(Closed([one], [b"absent"], []))
        for _ in range(2):
            node.in_loop(lambda: None)  # it has asked what is left
        node.dispatcher.post(Arrived({b"absent": 4}, None))
        node.in_loop(lambda: None)
    node.settle()
    assert b"absent" in node.core.backlogs
    node.dispatcher.post(Closed([one], [b"absent"], []))
    until(lambda: b"absent" not in node.core.backlogs)


def test_outcomes_are_kept_in_peace_while_nobody_knows_what_became_of_a_commit(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = node.submit(b"1", b"2")
    node.workers(2)
    until(lambda: len(node.sent) == 2)
    join, tries, away = node.store.join, [0], [True]
    finish, unheard = RemoteWrite.finish, [uuids[0]]

    def fail(*args: object) -> object:
        tries[0] += 1
        if away[0]:
            raise StoreFailed("the store could not be reached", "it is away", "wait")
        return join(*args)

    def finishes(self: RemoteWrite, uuid: bytes, *args: Any, **options: Any) -> bool:
        if uuid in unheard:
            unheard.remove(uuid)
            node.store.silent = 1  # of this commit; a claim may be before it
        return finish(self, uuid, *args, **options)

    node.store.join = fail  # type: ignore[method-assign]
    monkeypatch.setattr(RemoteWrite, "finish", finishes)
    replied(node, uuids[0])
    until(lambda: tries[0])
    replied(node, uuids[1])
    until(lambda: tries[0] > 3)
    with node.store.read() as txn:
        assert isinstance(txn.reply(uuids[1]), Pending)
    assert len(node.core.flights) == 2
    assert outcomes.GATHERED not in node.core.timers, "it would be due all the time"
    away[0] = False
    until(lambda: not node.core.flights)
    with node.store.read() as txn:
        assert isinstance(txn.reply(uuids[1]), Outcome)


def test_what_is_finished_is_written_before_the_end_also_when_commits_were_in_doubt(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit fails before the end begins, the others of these afterwards."""
    monkeypatch.setattr(outcomes, "WRITE_AGAIN_FIRST", 1e6)
    (uuid,) = node.submit(b"1")
    node.workers(1)
    until(lambda: node.sent == [b"1"])
    node.store.lost = 3
    replied(node, uuid)
    until(lambda: node.store.lost < 3)
    node.settle()
    node.dispatcher.wind_down(60)
    assert not node.core.flights
    with node.store.read() as txn:
        assert isinstance(txn.reply(uuid), Outcome)


def test_a_drained_node_leaves_as_soon_as_nothing_is_left() -> None:
    node = Node(lease=LeaseConfig(lease=1e6, renew=1e5))
    node.start()
    (uuid,) = node.submit(b"1")
    node.workers(1)
    until(lambda: node.sent == [b"1"])
    assert node.dispatcher.node is not None
    node.in_loop(node.dispatcher.node.drain)
    replied(node, uuid)
    until(lambda: node.dispatcher.node and node.dispatcher.node.has_left)
    assert not node.store.living()
    node.stop()


def test_when_its_lease_has_run_out_a_node_asks_back_what_no_worker_has_begun_and_sends_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own clock, and a little earlier than the others end it."""
    (uuid,) = node.submit(b"1")
    node.workers(2)
    until(lambda: node.sent == [b"1"])
    renew, away = node.store.renew, threading.Event()

    def renewed(*args: object) -> object:
        if away.is_set():
            raise StoreFailed("the store could not be reached", "it is away", "wait")
        return renew(*args)

    node.store.renew = renewed  # type: ignore[method-assign]
    stands, leap = elapsed(), [5.0]
    monkeypatch.setattr(node_module, "elapsed", lambda: stands + leap[0])
    until(lambda: node.dispatcher.node and node.dispatcher.node.lease_left == pytest.approx(999.0))
    away.set()
    node.settle()
    leap[0] += 998.0
    node.submit(b"2")
    until(lambda: node.sent == [b"1", b"2"])
    assert not node.transport.recalled
    leap[0] += 1.2
    node.submit(b"3")
    until(lambda: len(node.transport.recalled) == 2)
    node.settle()
    assert uuid in node.transport.recalled
    assert node.sent == [b"1", b"2"]
    replied(node, uuid)
    until(lambda: uuid not in node.core.flights)
    node.settle()
    assert node.sent == [b"1", b"2"], "its reply is written, for nobody has ended it"
    away.clear()
    monkeypatch.setattr(node_module, "elapsed", lambda: elapsed() + leap[0])
    until(lambda: node.sent == [b"1", b"2", b"3"])


def test_a_node_that_others_have_ended_begins_anew_and_keeps_what_nobody_has_taken(node: Node) -> None:
    first, second, third = node.submit(b"1", b"2", b"3")
    node.workers(3)
    until(lambda: len(node.sent) == 3)
    (before,) = node.store.living()
    with node.store.lease() as tables:
        tables.nodes |= {before: OVER, 7: 1}
        tables.claimed |= dict.fromkeys((first, second), 7)
    until(lambda: len(node.store.living()) == 2)
    node.in_loop(lambda: node.core.failed(second, ErrorReply(500, "no", []), time.monotonic()))
    node.in_loop(lambda: node.core.failed(third, ErrorReply(500, "no", []), time.monotonic()))
    replied(node, first)
    until(lambda: not node.core.flights)
    with node.store.read() as txn:
        assert isinstance(txn.reply(first), Outcome), "the work is done"
        assert state_of(txn, second) is State.WAITING, "a failure counts under an own claim only"
        assert state_of(txn, third) is State.DELAYED
    assert node.store.claimed == {second}
    node.store.leave([7])
    node.dispatcher.post(Returned([b"echo"]))
    node.workers(3)
    until(lambda: node.sent.count(b"2") == 2)
    assert node.core.counts["retried"] == 1


def test_a_request_that_cannot_be_read_fails_and_those_behind_it_get_their_turn(node: Node) -> None:
    with node.store.stalled():
        damaged, _ = node.submit(b"1", b"2")
        node.store.damaged.add(damaged)
        node.workers(2)
    until(lambda: isinstance(reply_of(node, damaged), Outcome))
    assert reply_of(node, damaged).status is Status.FAILED
    until(lambda: node.sent == [b"2"] or node.workers(2))


def reply_of(node: Node, uuid: bytes) -> Outcome | Pending | None:
    """Whatever its damage."""
    with node.store.read() as txn:
        return txn.tables.requests[uuid].outcome or Pending(State.WAITING)


def test_a_node_that_an_operator_drains_gives_back_what_it_can_finishes_the_rest_and_leaves(node: Node) -> None:
    begun, waits = node.submit(b"1", b"2")
    node.workers(2)
    until(lambda: len(node.sent) == 2)
    node.store.drained.update(node.store.living())
    until(lambda: len(node.transport.recalled) == 2)
    node.in_loop(lambda: node.core.refused(waits, ErrorReply(499, "given back", []), time.monotonic()))
    until(lambda: node.store.claimed == {begun})
    node.submit(b"3")
    node.workers(2)
    node.settle()
    assert len(node.sent) == 2
    replied(node, begun)
    until(lambda: not node.store.living())
    until(lambda: node.dispatcher.node.has_left)


def test_a_node_of_an_earlier_version_says_so_and_dispatches_nothing(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.store.too_new = StoreTooNew("the store was written by a later version", "it has format 3", "use that version")
    until(lambda: node.dispatcher.node.problem)
    node.submit(b"1")
    node.workers(2)
    node.settle()
    assert not node.sent
    (line,) = [line for line in caplog.records if getattr(line, "event", "") == "store-too-new"]
    assert "later version" in line.getMessage()


@pytest.mark.usefixtures("rare")
def test_the_loop_goes_on_while_the_network_is_silent(node: Node) -> None:
    (first,) = node.submit(b"1")
    node.workers(2)
    until(lambda: node.sent == [b"1"])
    with node.store.write() as txn:
        accept_all(txn, [NewRequest(b"echo", [b"2"])], wall_us())
    with node.store.stalled():
        node.dispatcher.post(Arrived({b"echo": 4}, wall_us()))
        node.dispatcher.post(Returned([b"echo"]))
        node.dispatcher.post(Closed([bytes(16)], [b"echo"], []))
        replied(node, first)
        assert node.store.waits.wait(30)
        for _ in range(100):
            node.in_loop(lambda: None)  # each is a round of the loop
        assert node.sent == [b"1"]
    until(lambda: node.sent == [b"1", b"2"])
