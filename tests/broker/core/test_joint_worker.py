"""A worker's side of one connection for several services and requests, against raw frames."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from support.transcript import SessionTranscript, WorkerTranscript

from broker.config import WorkerConfig
from broker.core.joint_worker import KEEP_ENDED, LEAVE_MOST, MOST_ENDED, MOST_ENDED_BYTES, MOST_PARTS, JointSession
from broker.core.mdp import Capacity
from broker.core.worker import SOON, Job, SessionState

NEW = ("titanic:1", "titanic:process", "titanic:slots")
NEWEST = (*NEW, "titanic:children")
OLD = ("titanic:1", "titanic:process")
ASKED = [[b"", b"MDPC01", name, name] for name in (b"mmi.broker", b"mmi.service")]


class Work(WorkerTranscript):
    """A worker's session."""

    def __init__(self, slots: int = 3, *, children: bool = False, **limits: int) -> None:
        capacity = Capacity(slots, {name.encode(): limit for name, limit in (limits or {"a": 0, "b": 0}).items()})
        super().__init__(JointSession(capacity, WorkerConfig(), now=self.now, process="p", children=children))

    store = ""

    def finds(self, *knows: str) -> None:
        """The broker on a new connection says what it knows."""
        for question in ASKED:
            self.said(*question)
        about = {"software": "titanic", "knows": knows, "store": self.store}
        self.told(b"", b"MDPC01", b"mmi.broker", json.dumps(about).encode())

    def registers(self, slots: int = 3) -> None:
        self.finds(*NEW)
        words = [b"titanic:process=p", b"titanic:slots=%d" % slots, b"titanic:service=0:b"]
        self.said(b"MDPW02", b"\1", b"a", b"titanic:1", *words)
        self.told(b"MDPW02", b"\5")
        assert self.session.registered

    def given(self, client: bytes, service: bytes = b"a") -> Job:
        self.told(b"MDPW02", b"\11", client, b"", service, b"q", client)
        job = self.job()
        assert (job.client, job.service, job.body) == (client, service, [b"q", client])
        return job

    def back(self) -> None:
        """The wait after a loss is over."""
        deadline = self.session.next_deadline()
        assert deadline is not None
        self.later(deadline - self.now)


@pytest.fixture
def work() -> Work:
    work = Work()
    work.registers()
    return work


def test_it_says_its_services_slots_and_limits() -> None:
    work = Work(5, a=2, b=0, c=1)
    work.finds(*NEW)
    words = [b"titanic:slots=5", b"titanic:service=2:a", b"titanic:service=0:b", b"titanic:service=1:c"]
    work.said(b"MDPW02", b"\1", b"a", b"titanic:1", b"titanic:process=p", *words)
    assert work.session.slots == 5


def test_several_requests_and_their_replies(work: Work) -> None:
    one, two = work.given(b"1"), work.given(b"2", b"b")
    work.session.partial(two.number, [b"part"], work.now)
    work.said(b"MDPW02", b"\3", b"2", b"", b"part")
    work.final(one, b"x")
    work.said(b"MDPW02", b"\4", b"1", b"", b"x")
    assert work.session.state is SessionState.BUSY
    work.session.progress(two.number, b"half", work.now)
    work.said(b"MDPW02", b"\10", b"2", b"", b"half")
    work.final(two, b"MDPE01", b"500 broken")
    work.said(b"MDPW02", b"\4", b"2", b"", b"MDPE01", b"500 broken")
    assert work.session.state is SessionState.IDLE
    work.final(two, b"again")
    work.session.partial(two.number, [b"again"], work.now)
    work.said_nothing()


def test_progress_of_each_is_sent_now_and_then(work: Work) -> None:
    one, two = work.given(b"1"), work.given(b"2")
    work.session.progress(one.number, b"1", work.now)
    work.said(b"MDPW02", b"\10", b"1", b"", b"1")
    for said in (b"2", b"3"):
        for job in (one, two):
            work.session.progress(job.number, said, work.now)
    work.said_nothing()
    work.later(0.2)
    for client in (b"1", b"2"):
        work.said(b"MDPW02", b"\10", client, b"", b"3")
    work.session.progress(one.number, b"4", work.now)
    work.final(one, b"x")
    work.said(b"MDPW02", b"\4", b"1", b"", b"x")
    work.later(0.2)
    work.said_nothing()


def test_a_cancellation_names_its_request(work: Work) -> None:
    work.given(b"1")
    two = work.given(b"2")
    for client in (b"2", b"3"):
        work.told(b"MDPW02", b"\7", client, b"")
    work.told(b"MDPW02", b"\7")
    assert work.session.take_cancelled() == [(two.number, b"")]
    assert work.session.take_cancelled() == []


@pytest.mark.parametrize(
    "frames",
    [
        [b"MDPW02", b"\6"],
        [b"MDPW02", b"\2", b"client", b"", b"q"],
        [b"MDPW02", b"\11"],
        [b"MDPW02", b"\11", b"client", b"", b"a"],
        [b"MDPW02", b"\11", b"client", b"x", b"a", b"q"],
        [b"MDPW02", b"\11", b"client", b"", b"unknown", b"q"],
        [b"MDPW02", b"\11", b"1", b"", b"a", b"q"],
        [b"MDPW02", b"\12", b"1"],
        [b"garbage"],
    ],
    ids=repr,
)
def test_what_a_broker_may_not_say_ends_the_connection(work: Work, frames: list[bytes]) -> None:
    work.given(b"1")
    work.told(*frames)
    work.closed(1)
    assert work.session.take_jobs() == []


def test_it_comes_back_without_the_slots_whose_handlers_are_at_work(work: Work) -> None:
    one, two = work.given(b"1"), work.given(b"2")
    work.told(b"MDPW02", b"\11", b"3", b"", b"a", b"q")  # no handler has begun it
    work.session.lost(work.now)
    work.closed(1)
    assert work.session.take_jobs() == []
    assert work.session.stranded
    work.back()
    work.registers(slots=1)
    work.final(one, b"late")
    work.said(b"MDPW02", b"\12", b"2")
    three = work.given(b"3")
    work.final(two, b"late")
    work.said(b"MDPW02", b"\12", b"3")
    assert work.session.dropped_replies == 2
    assert not work.session.stranded
    work.final(three, b"x")
    work.said(b"MDPW02", b"\4", b"3", b"", b"x")


def test_with_all_slots_taken_it_stays_away() -> None:
    work = Work(1, a=0, b=0)
    work.registers(1)
    job = work.given(b"1")
    work.told(b"MDPW02", b"\6")
    work.closed(1)
    assert work.session.next_deadline() is None
    work.later(60)
    work.said_nothing()
    work.final(job, b"late")
    work.back()
    work.registers(1)


def test_jobs_of_other_connections_take_slots(work: Work) -> None:
    work.session.note_elsewhere(2, work.now)
    work.said(b"MDPW02", b"\12", b"1")
    work.session.note_elsewhere(2, work.now)
    work.said_nothing()
    work.session.note_elsewhere(5, work.now)
    work.said(b"MDPW02", b"\12", b"0")
    work.session.note_elsewhere(0, work.now)
    work.said(b"MDPW02", b"\12", b"3")


def test_it_leaves_when_it_has_finished_and_returns_the_rest(work: Work) -> None:
    one, two = work.given(b"1"), work.given(b"2")
    work.told(b"MDPW02", b"\11", b"3", b"", b"a", b"q")  # no handler has begun it
    work.session.leave(work.now)
    work.said(b"MDPW02", b"\12", b"0", b"3")
    assert work.session.take_jobs() == []
    work.session.leave(work.now)
    work.told(b"MDPW02", b"\11", b"4", b"", b"b", b"q")
    work.said(b"MDPW02", b"\12", b"0", b"4")
    work.final(two, b"x")
    work.said(b"MDPW02", b"\4", b"2", b"", b"x")
    assert not work.session.stopped
    work.final(one, b"y")
    work.said(b"MDPW02", b"\4", b"1", b"", b"y")
    work.said(b"MDPW02", b"\6")
    assert work.session.stopped


def test_without_a_job_it_leaves_at_once(work: Work) -> None:
    work.told(b"MDPW02", b"\11", b"1", b"", b"a", b"q")
    work.session.leave(work.now)
    work.said(b"MDPW02", b"\12", b"0", b"1")
    work.said(b"MDPW02", b"\6")
    assert work.session.stopped


def test_it_leaves_when_handlers_have_finished_whose_connection_is_gone(work: Work) -> None:
    one = work.given(b"1")
    work.session.lost(work.now)
    work.closed(1)
    work.session.leave(work.now)
    assert not work.session.stopped
    assert work.session.next_deadline() is None
    work.final(one, b"late")
    assert work.session.stopped


def test_silence_of_the_broker(work: Work) -> None:
    work.later(10.1)
    for _ in range(3):
        work.said(b"MDPW02", b"\5")
    work.closed(1)


def test_it_sends_heartbeats_while_it_works(work: Work) -> None:
    work.given(b"1")
    work.later(60)
    assert len(work.session.take_output()) > 20
    assert work.session.registered, "whatever the broker is doing, it has the request"


def test_a_broker_that_does_not_know_slots_has_one_worker_of_the_first_service() -> None:
    work = Work()
    work.finds(*OLD)
    work.said(b"MDPW02", b"\1", b"a", b"titanic:1", b"titanic:process=p")
    work.told(b"MDPW02", b"\5")
    assert (work.session.joint, work.session.slots) == (False, 1)
    work.told(b"MDPW02", b"\2", b"1", b"", b"q")
    job = work.job()
    assert job.service == b"a"
    work.session.lost(work.now)
    work.closed(1)
    assert work.session.next_deadline() is None, "a handler is at work"
    work.final(job, b"late")
    work.back()
    work.registers()
    work.session.lost(work.now)
    work.closed(2)
    work.back()
    for question in ASKED:
        work.said(*question)
    work.told(b"", b"MDPC01", b"mmi.broker", b"501")
    work.said(b"", b"MDPW01", b"\1", b"a")
    assert not work.session.joint


# -- processes that execute its requests ---------------------------------------------------------------------


@pytest.fixture
def parent() -> Work:
    parent = Work(children=True)
    parent.finds(*NEWEST)
    words = [b"titanic:slots=3", b"titanic:service=0:b", b"titanic:children"]
    parent.said(b"MDPW02", b"\1", b"a", b"titanic:1", b"titanic:process=p", *words)
    parent.told(b"MDPW02", b"\5")
    return parent


def test_a_process_dies_with_its_requests(parent: Work) -> None:
    one, two, three = (parent.given(client) for client in (b"1", b"2", b"3"))
    parent.session.note_elsewhere(2, parent.now)
    parent.said(b"MDPW02", b"\12", b"1")
    parent.session.lose([one.number], [two.number], parent.now)
    parent.said(b"MDPW02", b"\13", b"1", b"", b"2")
    parent.final(one, b"late")
    parent.said_nothing()
    parent.session.lose([three.number], [], parent.now)
    parent.said(b"MDPW02", b"\13", b"3")
    assert parent.session.state is SessionState.IDLE


def test_one_that_is_not_begun_is_given_back(parent: Work) -> None:
    one = parent.given(b"1")
    parent.session.give_back(one.number, parent.now)
    parent.said(b"MDPW02", b"\12", b"3", b"1")
    assert parent.session.state is SessionState.IDLE


def test_the_last_death_is_the_end_of_a_worker_that_leaves(parent: Work) -> None:
    one = parent.given(b"1")
    parent.session.leave(parent.now)
    parent.said(b"MDPW02", b"\12", b"0")
    parent.session.lose([one.number], [], parent.now)
    parent.said(b"MDPW02", b"\13", b"1")
    parent.said(b"MDPW02", b"\6")
    assert parent.session.stopped


def test_of_requests_whose_connection_is_gone_nothing_is_said(parent: Work) -> None:
    one, two = parent.given(b"1"), parent.given(b"2")
    parent.session.lost(parent.now)
    parent.closed(1)
    assert not parent.session.says_lost
    parent.session.lose([one.number], [two.number], parent.now)
    parent.said_nothing()
    assert parent.session.dropped_replies == 2
    parent.back()
    parent.finds(*NEWEST)
    assert parent.next()[1][5] == b"titanic:slots=3"  # type: ignore[index]


def test_an_older_broker_is_not_told_of_deaths() -> None:
    parent = Work(children=True)
    parent.finds(*NEW)
    parent.said(b"MDPW02", b"\1", b"a", b"titanic:1", b"titanic:process=p", b"titanic:slots=3", b"titanic:service=0:b")
    assert not parent.session.says_lost


def test_it_is_told_that_a_request_exceeds_its_limit(parent: Work) -> None:
    one, two = parent.given(b"1"), parent.given(b"2")
    parent.told(b"MDPW02", b"\7", b"1", b"", b"limit")
    parent.told(b"MDPW02", b"\7", b"2", b"")
    assert parent.session.take_cancelled() == [(one.number, b"limit"), (two.number, b"")]


HELD = (*NEWEST, "titanic:held")
ENDED = (*HELD, "titanic:ended")


class Keeping(Work):
    """A session that returns with its jobs."""

    def __init__(self, slots: int = 2, *, children: bool = False, store: str | None = None) -> None:
        """`store`: that of the broker, of several; None: there is only one."""
        SessionTranscript.__init__(
            self,
            JointSession(
                Capacity(slots, {b"a": 0, b"b": 0}),
                WorkerConfig(),
                now=self.now,
                process="p",
                children=children,
                keeper=b"k",
            ),
        )
        self.words = [b"titanic:children"] if children else []
        self.session.has_other_endpoints, self.store = store is not None, store or ""
        self.returns()

    def returns(self, *held: bytes, slots: int = 2, ended: Sequence[bytes] | None = None) -> None:
        """It registers at a broker that knows HELD, and with `ended` ENDED."""
        self.finds(*(HELD if ended is None else ENDED))
        words = [b"titanic:process=p", b"titanic:slots=%d" % slots, b"titanic:service=0:b", *self.words]
        if self.store or not self.session.has_other_endpoints:
            words += [b"titanic:keeper=k", *(b"titanic:held=" + token for token in held)]
        words += [b"titanic:ended=" + token for token in ended or ()]
        self.said(b"MDPW02", b"\1", b"a", b"titanic:1", *words)
        self.told(b"MDPW02", b"\5")

    def loses(self) -> None:
        self.session.lost(self.now)
        assert self.next() == (self.session.connection, None)


def test_it_returns_with_what_is_at_work_and_what_has_ended() -> None:
    work = Keeping()
    one, two = work.given(b"1"), work.given(b"2")
    work.loses()
    work.final(one, b"x")
    work.said_nothing()
    assert not work.session.stranded
    work.back()
    work.returns(b"1", b"2")
    work.said(b"MDPW02", b"\4", b"1", b"", b"x")
    work.final(two, b"y")
    work.said(b"MDPW02", b"\4", b"2", b"", b"y")
    assert work.session.state is SessionState.IDLE
    assert work.session.dropped_replies == 0


def test_with_requests_in_hand_it_is_back_soon_however_often_it_is_turned_away() -> None:
    """They wait for it half a minute, by default."""
    work = Keeping()
    work.given(b"1")
    for _ in range(9):
        work.loses()
        deadline = work.session.next_deadline()
        assert deadline is not None
        assert deadline - work.now <= SOON
        work.back()
        work.finds(*HELD)
        work.next()
    work.loses()
    work.back()
    work.returns(b"1")


def test_of_several_brokers_it_goes_to_another_of_the_same_store() -> None:
    work = Keeping(store="s")
    one = work.given(b"1")
    assert work.session.returns
    work.loses()
    work.back()
    work.returns(b"1")
    work.final(one, b"x")
    work.said(b"MDPW02", b"\4", b"1", b"", b"x")
    assert not work.session.returns


@pytest.mark.parametrize("store", ["other", ""])
def test_to_a_broker_of_another_store_it_brings_nothing(store: str) -> None:
    work = Keeping(store="s")
    one = work.given(b"1")
    work.loses()
    work.back()
    work.store = store
    work.returns(slots=1)
    work.final(one, b"x")
    work.said(b"MDPW02", b"\12", b"2")
    assert work.session.dropped_replies == 1


def test_of_several_brokers_without_a_store_it_keeps_nothing() -> None:
    work = Keeping(store="")
    one = work.given(b"1")
    assert not work.session.returns
    work.loses()
    assert work.session.stranded
    work.final(one, b"x")
    assert work.session.dropped_replies == 1


def replying(*replies: tuple[bytes, bytes], away: float | None = None) -> Keeping:
    """One that has replied to these, and has lost the connection then."""
    work = Keeping()
    work.loses()
    work.back()
    work.returns(ended=())
    for client, reply in replies:
        work.final(work.given(client), reply)
        work.said(b"MDPW02", b"\4", client, b"", reply)
    work.loses()
    if away is None:
        work.back()
    else:
        work.jump(away)
    return work


def test_a_reply_that_was_lost_is_sent_again() -> None:
    work = Keeping()
    work.loses()
    work.back()
    work.returns(ended=())
    one, two = work.given(b"1"), work.given(b"2")
    work.session.partial(one.number, [b"part"], work.now)
    work.said(b"MDPW02", b"\3", b"1", b"", b"part")
    work.final(one, b"x")
    work.said(b"MDPW02", b"\4", b"1", b"", b"x")
    work.loses()
    work.final(two, b"y")
    work.back()
    work.returns(b"2", ended=[b"1"])
    work.said(b"MDPW02", b"\4", b"2", b"", b"y")
    work.loses()
    work.back()
    work.returns(ended=[b"1", b"2"])
    work.told(b"MDPW02", b"\11", b"1", b"", b"a", b"q", b"1")
    work.said(b"MDPW02", b"\3", b"1", b"", b"part")
    work.said(b"MDPW02", b"\4", b"1", b"", b"x")
    work.told(b"MDPW02", b"\11", b"2", b"", b"a", b"q", b"2")
    work.said(b"MDPW02", b"\4", b"2", b"", b"y")
    assert (work.session.state, work.session.take_jobs()) == (SessionState.IDLE, [])


def test_replies_are_kept_for_a_while() -> None:
    replying((b"1", b"x"), away=KEEP_ENDED - 1).returns(ended=[b"1"])
    replying((b"1", b"x"), away=KEEP_ENDED + 1).returns(ended=[])


def test_of_many_or_long_replies_the_last_ones_are_kept() -> None:
    replies = [(b"%d" % number, b"x") for number in range(MOST_ENDED + 1)]
    replying(*replies).returns(ended=[client for client, _ in replies[1:]])
    half = bytes(MOST_ENDED_BYTES // 2)
    replying((b"1", half), (b"2", b"x"), (b"3", half), (b"4", bytes(MOST_ENDED_BYTES))).returns(ended=[b"2", b"3"])


def test_what_no_handler_has_begun_is_not_kept() -> None:
    work = Keeping()
    work.told(b"MDPW02", b"\11", b"1", b"", b"a", b"q")
    work.loses()
    assert work.session.take_jobs() == []
    work.back()
    work.returns()
    work.said_nothing()


def test_a_cancellation_reaches_what_it_has_kept() -> None:
    work = Keeping()
    one = work.given(b"1")
    work.loses()
    work.back()
    work.returns(b"1")
    work.told(b"MDPW02", b"\7", b"1", b"")
    assert work.session.take_cancelled() == [(one.number, b"")]


def test_parts_are_sent_again() -> None:
    work = Keeping()
    one = work.given(b"1")
    work.session.partial(one.number, [b"p1"], work.now)
    work.said(b"MDPW02", b"\3", b"1", b"", b"p1")
    work.loses()
    work.session.partial(one.number, [b"p2"], work.now)
    work.final(one, b"x")
    work.said_nothing()
    work.back()
    work.returns(b"1")
    work.said(b"MDPW02", b"\3", b"1", b"", b"p1")
    work.said(b"MDPW02", b"\3", b"1", b"", b"p2")
    work.said(b"MDPW02", b"\4", b"1", b"", b"x")
    work.said_nothing()


@pytest.mark.parametrize("away", [False, True])
def test_parts_that_are_too_many_to_keep(away: bool) -> None:
    work = Keeping()
    one = work.given(b"1")
    if away:
        work.loses()
    for _ in range(2):
        work.session.partial(one.number, [bytes(MOST_PARTS // 2 + 1)], work.now)
    work.session.take_output()
    if not away:
        work.loses()
    assert work.session.take_cancelled() == [(one.number, b"")]
    assert work.session.stranded
    work.back()
    work.returns(slots=1)
    work.final(one, b"x")
    assert work.session.dropped_replies == 1
    work.said(b"MDPW02", b"\12", b"2")


def test_a_broker_that_does_not_know_it() -> None:
    work = Keeping()
    one, two = work.given(b"1"), work.given(b"2")
    work.loses()
    work.final(one, b"x")
    work.back()
    work.registers(1)
    assert work.session.dropped_replies == 1
    work.final(two, b"x")
    work.said(b"MDPW02", b"\12", b"2")
    assert work.session.dropped_replies == 2


def test_a_child_that_died_meanwhile() -> None:
    work = Keeping(children=True)
    one, two = work.given(b"1"), work.given(b"2")
    work.loses()
    assert work.session.says_lost
    work.session.lose([one.number], [two.number], work.now)
    work.said_nothing()
    work.back()
    work.returns(b"1", b"2")
    work.said(b"MDPW02", b"\13", b"1", b"", b"2")
    assert work.session.state is SessionState.IDLE


def refused(work: Keeping) -> None:
    """The broker drains, or the worker's user has no place left."""
    work.said_nothing()
    work.told(b"MDPW02", b"\6")
    assert work.next() == (work.session.connection, None)
    assert not work.session.stopped
    work.back()


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("when", ["away", "READY was sent"])
@pytest.mark.parametrize("reply", [b"x", bytes(MOST_ENDED_BYTES + 1)], ids=["short", "long"])
def test_it_replies_when_a_broker_has_accepted_ready(reply: bytes, when: str, leaves: bool) -> None:
    work = Keeping()
    one = work.given(b"1")
    work.loses()
    if leaves:
        work.session.leave(work.now)
    if when == "away":
        work.final(one, reply)
    work.back()
    work.finds(*ENDED)
    assert b"titanic:held=1" in (work.next()[1] or [])
    if when == "READY was sent":
        work.session.progress(one.number, b"half", work.now)
        work.final(one, reply)
    refused(work)
    work.returns(b"1", slots=1 if leaves else 2)
    work.said(b"MDPW02", b"\4", b"1", b"", reply)
    if leaves:
        work.said(b"MDPW02", b"\12", b"0")
        work.said(b"MDPW02", b"\6")
    work.said_nothing()
    assert work.session.stopped == leaves


@pytest.mark.parametrize("when", ["away", "READY was sent"])
def test_it_says_that_a_child_has_died_when_a_broker_has_accepted_ready(when: str) -> None:
    work = Keeping(children=True)
    one = work.given(b"1")
    work.loses()
    if when == "away":
        work.session.lose([one.number], [], work.now)
    work.back()
    work.finds(*HELD)
    work.next()
    if when == "READY was sent":
        work.session.lose([one.number], [], work.now)
    refused(work)
    work.returns(b"1")
    work.said(b"MDPW02", b"\13", b"1")


def test_many_parts_before_the_answer_to_ready() -> None:
    """The broker counts on all that READY has named."""
    half = bytes(MOST_PARTS // 2)
    work = Keeping()
    one = work.given(b"1")
    work.loses()
    work.back()
    work.finds(*HELD)
    work.next()
    for _ in range(3):
        work.session.partial(one.number, [half], work.now)
    work.said_nothing()
    work.told(b"MDPW02", b"\5")
    for _ in range(3):
        work.said(b"MDPW02", b"\3", b"1", b"", half)
    work.session.partial(one.number, [half], work.now)
    work.said(b"MDPW02", b"\3", b"1", b"", half)
    work.loses()
    assert work.session.take_cancelled() == [(one.number, b"")]


def test_it_leaves_while_it_is_away() -> None:
    work = Keeping()
    one = work.given(b"1")
    work.loses()
    work.session.leave(work.now)
    work.back()
    work.returns(b"1", slots=1)
    work.said(b"MDPW02", b"\12", b"0")
    work.final(one, b"x")
    work.said(b"MDPW02", b"\4", b"1", b"", b"x")
    work.said(b"MDPW02", b"\6")
    assert work.session.stopped


def test_it_leaves_and_no_broker_comes() -> None:
    work = Keeping()
    one = work.given(b"1")
    work.loses()
    work.session.leave(work.now)
    work.later(60)
    assert not work.session.stopped
    work.final(one, b"x")
    work.later(LEAVE_MOST - 1)
    assert not work.session.stopped
    work.later(2)
    assert work.session.stopped
    assert work.session.dropped_replies == 1


@pytest.mark.parametrize("last", ["abandoned", "given back"])
def test_it_leaves_and_no_broker_comes_and_its_last_job_has_no_reply(last: str) -> None:
    work = Keeping()
    one, two = work.given(b"1"), work.given(b"2")
    work.loses()
    if last == "abandoned":
        work.session.partial(one.number, [bytes(MOST_PARTS)], work.now)
    work.session.leave(work.now)
    work.final(two, b"x")
    if last == "given back":
        work.session.give_back(one.number, work.now)
    else:
        work.final(one, b"late")
    work.later(LEAVE_MOST - 1)
    assert not work.session.stopped
    work.later(2)
    assert work.session.stopped


def test_a_reply_that_was_dropped_before_does_not_count_when_it_leaves() -> None:
    work = Keeping()
    one = work.given(b"1")
    work.loses()
    work.final(one, b"x")
    work.back()
    work.registers(2)
    work.loses()
    work.back()
    work.returns()
    two = work.given(b"2")
    work.loses()
    work.session.link(False, work.now)
    work.session.leave(work.now)
    work.later(LEAVE_MOST + 1)
    assert not work.session.stopped, "its handler is at work"
    work.final(two, b"x")
    work.later(LEAVE_MOST + 1)
    assert work.session.stopped


def test_a_busy_worker_notices_silence() -> None:
    work = Keeping()
    work.given(b"1")
    before = work.session.connection
    work.later(20)
    assert work.session.connection > before or work.session.state is SessionState.AWAY
