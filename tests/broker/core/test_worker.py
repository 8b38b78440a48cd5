"""A worker's side of MDP, against raw frames."""

from __future__ import annotations

import json

import pytest
from support.each import each
from support.transcript import WorkerTranscript

from broker.config import WorkerConfig
from broker.core.mdp import EXTENSION
from broker.core.worker import Job, SessionState, WorkerSession
from broker.errors import UsageError


class Work(WorkerTranscript):
    """A worker's session."""

    def __init__(self, *versions: str) -> None:
        super().__init__(WorkerSession(b"echo", WorkerConfig(versions=versions or ("0.2",)), now=self.now))

    def registers(self) -> None:
        self.said(b"MDPW02", b"\1", b"echo")
        self.told(b"MDPW02", b"\5")
        assert self.session.registered

    def works(self) -> Job:
        self.told(b"MDPW02", b"\2", b"client", b"", b"q")
        return self.job()


@pytest.fixture
def work() -> Work:
    work = Work()
    work.registers()
    return work


def test_a_request_and_its_reply(work: Work) -> None:
    work.told(b"MDPW02", b"\2", b"client", b"", b"hello", b"", b"world")
    job = work.job()
    assert job.body == [b"hello", b"", b"world"]
    work.session.partial(job.number, [b"part"], work.now)
    work.said(b"MDPW02", b"\3", b"client", b"", b"part")
    work.final(job, b"end")
    work.said(b"MDPW02", b"\4", b"client", b"", b"end")
    work.said_nothing()
    assert work.session.state is SessionState.IDLE


def test_version_01_joins_the_parts() -> None:
    work = Work("0.1")
    work.said(b"", b"MDPW01", b"\1", b"echo")
    work.told(b"", b"MDPW01", b"\2", b"client", b"", b"q")
    job = work.job()
    work.session.partial(job.number, [b"1", b"2"], work.now)
    work.said_nothing()
    work.final(job, b"3")
    work.said(b"", b"MDPW01", b"\3", b"client", b"", b"1", b"2", b"3")
    work.told(b"", b"MDPW01", b"\2", b"client", b"", b"q")
    work.final(work.job(), b"4")
    work.said(b"", b"MDPW01", b"\3", b"client", b"", b"4")
    work.later(2.6)
    work.said(b"", b"MDPW01", b"\4")
    work.session.leave(work.now)
    work.said(b"", b"MDPW01", b"\5")


def test_version_01_sends_an_error_without_the_parts_before_it() -> None:
    work = Work("0.1")
    work.said(b"", b"MDPW01", b"\1", b"echo")
    work.told(b"", b"MDPW01", b"\2", b"client", b"", b"q")
    job = work.job()
    work.session.partial(job.number, [b"1"], work.now)
    work.final(job, b"MDPE01", b"500 broken")
    work.said(b"", b"MDPW01", b"\3", b"client", b"", b"MDPE01", b"500 broken")


def test_heartbeats_while_nothing_else_is_said(work: Work) -> None:
    work.later(2.4)
    work.said_nothing()
    work.later(0.2)
    work.said(b"MDPW02", b"\5")
    for _ in range(5):
        work.later(2)
        work.final(work.works(), b"a")
        work.said(b"MDPW02", b"\4", b"client", b"", b"a")
    work.said_nothing()


def test_heartbeats_while_busy(work: Work) -> None:
    work.works()
    for _ in range(10):
        work.later(2.6)
        work.said(b"MDPW02", b"\5")
        work.told(b"MDPW02", b"\5")
    assert work.session.state is SessionState.BUSY


def test_silence_ends_the_connection(work: Work) -> None:
    work.later(9.9)
    assert work.session.registered
    for _ in range(3):
        work.said(b"MDPW02", b"\5")
    work.later(0.2)
    work.closed(1)
    assert not work.session.registered
    work.later(0.9)
    assert work.session.connection == 2
    work.said(b"MDPW02", b"\1", b"echo")


@pytest.mark.parametrize(
    "frames",
    [
        [b"MDPW02", b"\6"],
        [b"MDPW02", b"\1", b"echo"],
        [b"MDPW02", b"\3", b"client", b"", b"x"],
        [b"MDPW02", b"\7"],
        [b"MDPW02"],
        [b"", b"MDPW02", b"\5"],
        [b"", b"MDPW01", b"\4"],
        [b"MDPC02", b"\3", b"echo", b"x"],
        [b"MDPW02", b"\2"],
        [b"MDPW02", b"\2", b"client"],
        [b"MDPW02", b"\2", b"client", b"x", b"q"],
        [b"garbage"],
        [b""],
        [],
    ],
    ids=repr,
)
def test_what_a_broker_may_not_say_ends_the_connection(work: Work, frames: list[bytes]) -> None:
    work.told(*frames)
    work.closed(1)
    assert work.session.take_jobs() == []
    work.later(0.9)
    work.said_nothing()
    work.later(0.2)
    work.said(b"MDPW02", b"\1", b"echo")


def test_a_second_request_while_busy_ends_the_connection(work: Work) -> None:
    job = work.works()
    work.told(b"MDPW02", b"\2", b"other", b"", b"q")
    work.closed(1)
    work.later(5)
    work.said_nothing()
    work.final(job, b"too late")
    work.later(0)
    work.said(b"MDPW02", b"\1", b"echo")
    assert work.session.dropped_replies == 1


@pytest.mark.parametrize("then", [[b"MDPW02", b"\6"], [b"MDPW02", b"\2", b"other", b"", b"q"], [b"garbage"]])
def test_a_request_that_nobody_began_is_forgotten_with_its_connection(work: Work, then: list[bytes]) -> None:
    """REQUEST and DISCONNECT read in one go: no handler will ever say that it has finished."""
    work.told(b"MDPW02", b"\2", b"client", b"", b"q")
    work.told(*then)
    assert work.session.take_jobs() == []
    work.closed(1)
    work.later(1.1)
    work.said(b"MDPW02", b"\1", b"echo")


def test_what_comes_from_an_old_connection_is_ignored(work: Work) -> None:
    work.told(b"MDPW02", b"\6")
    work.closed(1)
    work.told(b"MDPW02", b"\2", b"client", b"", b"q", connection=1)
    work.later(1.1)
    work.said(b"MDPW02", b"\1", b"echo")
    work.told(b"MDPW02", b"\2", b"client", b"", b"q", connection=1)
    assert work.session.take_jobs() == []
    assert not work.session.registered


def test_the_reply_of_a_job_whose_connection_went_is_dropped(work: Work) -> None:
    job = work.works()
    work.told(b"MDPW02", b"\6")
    work.closed(1)
    work.later(60)
    work.said_nothing()  # one thing at a time: no READY while the handler works
    assert work.session.next_deadline() is None
    work.session.partial(job.number, [b"late part"], work.now)
    work.final(job, b"late")
    work.said_nothing()
    assert work.session.dropped_replies == 1
    work.later(0)
    work.said(b"MDPW02", b"\1", b"echo")
    work.final(job, b"later still")
    work.said_nothing()


def test_a_reply_is_given_once(work: Work) -> None:
    job = work.works()
    work.final(job, b"a")
    work.said(b"MDPW02", b"\4", b"client", b"", b"a")
    second = work.works()
    work.final(job, b"again")
    work.session.partial(job.number, [b"again"], work.now)
    work.said_nothing()
    work.final(second, b"b")
    work.said(b"MDPW02", b"\4", b"client", b"", b"b")


# -- coming back ---------------------------------------------------------------------------------------------


def test_the_wait_doubles_up_to_the_most() -> None:
    work = Work()
    waits = []
    for number in range(1, 9):
        work.said(b"MDPW02", b"\1", b"echo")
        work.told(b"MDPW02", b"\6")
        work.closed(number)
        deadline = work.session.next_deadline()
        assert deadline is not None
        waits.append(round(deadline - work.now, 6))
        work.later(waits[-1])
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32]
    work.registers()
    work.told(b"MDPW02", b"\6")
    work.closed(9)
    assert work.session.next_deadline() == work.now + 1


WHO = (b"", b"MDPC01", b"mmi.broker", b"mmi.broker")
ANY = (b"", b"MDPC01", b"mmi.service", b"mmi.service")


def asking(*versions: str) -> Work:
    work = Work(*versions or ("0.2", "0.1"))
    work.said(*WHO)
    work.said(*ANY)
    work.said_nothing()
    return work


def test_a_broker_of_this_project_is_spoken_to_in_the_best_version() -> None:
    work = asking()
    work.told(b"", b"MDPC01", b"mmi.broker", b'{"software": "titanic"}')
    work.said(b"MDPW02", b"\1", b"echo")
    work.told(b"", b"MDPC01", b"mmi.service", b"200")
    work.told(b"MDPW02", b"\5")
    assert work.session.registered
    work.told(b"MDPW02", b"\6")
    work.closed(1)
    work.later(1)
    work.said(*WHO)  # it may be another one by now


def test_who_may_not_work_yet_is_soon_back_when_he_may() -> None:
    """A broker with access control refuses until its access file is another one: that may be at any time."""
    work = asking()
    waits = []
    for number in range(1, 9):
        work.told(b"", b"MDPC01", b"mmi.broker", b'{"software": "titanic", "access": true}')
        work.said(b"MDPW02", b"\1", b"echo")
        work.told(b"MDPW02", b"\6")
        assert work.session.refused
        work.closed(number)
        deadline = work.session.next_deadline()
        assert deadline is not None
        waits.append(round(deadline - work.now, 6))
        work.later(waits[-1])
        work.said(*WHO)
        work.said(*ANY)
    assert waits == [1, 2, *[2.5] * 6]
    for number in range(9, 13):  # what is no refusal waits as ever
        work.session.lost(work.now)
        work.closed(number)
        deadline = work.session.next_deadline()
        assert deadline is not None
        waits.append(round(deadline - work.now, 6))
        work.later(waits[-1])
        work.said(*WHO)
        work.said(*ANY)
    assert max(waits) == 32


@pytest.mark.parametrize("first", [[b"mmi.broker", b"501"], [b"mmi.broker", b"{"], [b"mmi.service", b"404"]])
def test_another_broker_is_spoken_to_in_the_version_of_its_answer(first: list[bytes]) -> None:
    work = asking()
    work.told(b"", b"MDPC01", *first)
    work.said(b"", b"MDPW01", b"\1", b"echo")
    work.told(b"", b"MDPC01", b"mmi.service", b"404")
    work.told(b"", b"MDPW01", b"\4")
    assert work.session.registered


def fell_silent(*versions: str) -> Work:
    """A worker that has asked twice, the second time on a new connection."""
    work = asking(*versions)
    work.later(2.5)
    work.closed(1)
    work.said(*WHO)
    work.said(*ANY)
    work.said_nothing()
    return work


def test_versions_that_were_not_asked_for_are_tried_when_nobody_answers() -> None:
    work = fell_silent("0.2", "0.1", "majortomo")
    work.later(2.5)
    work.said(b"MDPW02", b"\1", b"echo")
    work.later(10)
    for _ in range(3):
        work.said(b"MDPW02", b"\5")
    work.closed(2)
    work.later(1)
    work.said(*WHO)
    work.said(*ANY)
    work.later(2.5)
    work.said(b"", b"MDPW02", b"\1", b"echo")
    work.told(b"", b"MDPW02", b"\5")
    assert work.session.registered
    work.told(b"", b"MDPW02", b"\6")
    work.closed(3)
    work.later(1)
    work.said(*WHO)
    work.said(*ANY)
    work.later(2.5)
    work.said(b"", b"MDPW02", b"\1", b"echo")


def test_no_later_version_is_tried_where_0_1_was_ever_answered() -> None:
    work = asking()
    work.told(b"", b"MDPC01", b"mmi.broker", b"501")
    work.said(b"", b"MDPW01", b"\1", b"echo")
    work.session.lost(work.now)
    work.closed(1)
    work.later(1)
    for number in range(2, 10):
        work.said(*WHO)
        work.said(*ANY)
        work.later(2.5)
        work.closed(number)


@pytest.mark.parametrize(
    ("late", "closes"), [([b"mmi.service", b"404"], True), ([b"mmi.broker", b'{"software": 1}'], False)]
)
def test_an_answer_that_is_late(late: list[bytes], closes: bool) -> None:
    work = fell_silent()
    work.later(2.5)
    work.said(b"MDPW02", b"\1", b"echo")
    work.told(b"", b"MDPC01", *late)
    if closes:
        work.closed(2)
    work.said_nothing()


def test_nothing_is_tried_at_a_broker_that_is_not_there() -> None:
    """It would be there when that one starts, and some brokers do not bear it."""
    work = asking()
    for number in range(1, 10):
        work.session.link(False, work.now)
        work.later(10)
        work.closed(number)
        work.said(*WHO)
        work.said(*ANY)
        work.said_nothing()
    work.session.link(False, work.now)
    work.later(9)
    work.session.link(True, work.now)
    work.later(2.4)
    work.said_nothing()
    work.told(b"", b"MDPC01", b"mmi.broker", b"501")
    work.said(b"", b"MDPW01", b"\1", b"echo")


def at_another_broker() -> Work:
    work = asking()
    work.told(b"", b"MDPC01", b"mmi.broker", b"501")
    work.said(b"", b"MDPW01", b"\1", b"echo")
    work.told(b"", b"MDPW01", b"\4")
    return work


def test_another_broker_is_left_when_it_has_forgotten_the_worker() -> None:
    """The Guide's in Python ends after a DISCONNECT."""
    work = at_another_broker()
    work.session.leave(work.now)
    work.later(5)
    work.said_nothing()
    work.told(b"", b"MDPW01", b"\2", b"client", b"", b"late")
    (job,) = work.session.take_jobs()
    work.session.final(job.number, [b"done"], work.now)
    work.said(b"", b"MDPW01", b"\3", b"client", b"", b"done")
    work.later(9.9)
    work.said_nothing()
    assert not work.session.stopped
    work.later(0.1)
    work.closed(1)
    assert work.session.stopped


def test_another_broker_that_never_stops_is_left_all_the_same() -> None:
    work = at_another_broker()
    work.session.leave(work.now)
    for _ in range(6):
        assert not work.session.stopped
        work.later(5)
        if not work.session.stopped:
            work.told(b"", b"MDPW01", b"\2", b"client", b"", b"more")
            (job,) = work.session.take_jobs()
            work.session.final(job.number, [b"done"], work.now)
            work.said(b"", b"MDPW01", b"\3", b"client", b"", b"done")
    work.closed(1)
    assert work.session.stopped


def test_leaving_while_asking() -> None:
    work = asking()
    work.session.leave(work.now)
    work.said_nothing()
    assert work.session.stopped


def test_a_broker_that_answers_disconnect_speaks_the_version() -> None:
    work = Work()
    for number in (1, 2, 3):
        work.said(b"MDPW02", b"\1", b"echo")
        work.told(b"MDPW02", b"\6")
        work.closed(number)
        work.later(2 ** (number - 1))


def test_the_transport_knows_that_the_connection_is_gone(work: Work) -> None:
    work.session.lost(work.now)
    work.closed(1)
    work.session.lost(work.now)
    work.said_nothing()
    work.later(1)
    work.said(b"MDPW02", b"\1", b"echo")
    work.session.lost(work.now)  # before the broker was heard: that says nothing of the version
    work.closed(2)
    work.later(2)
    work.said(b"MDPW02", b"\1", b"echo")


def test_a_request_that_is_just_coming_in_is_no_silence(work: Work) -> None:
    class Line:
        def __init__(self) -> None:
            self.answers = [True, True, False]

        def goes_on(self, now: float, patience: float) -> bool:
            return self.answers.pop(0)

    work.session.inflow = Line()
    work.later(29.9)
    assert work.session.registered
    work.later(0.2)
    assert not work.session.registered


def test_a_busy_worker_bears_silence_and_goes_on_afterwards(work: Work) -> None:
    """Some brokers send no heartbeats to who is busy, and the reply would be lost."""
    job = work.works()
    work.later(100)
    for _ in range(40):
        work.said(b"MDPW02", b"\5")
    work.final(job, b"a")
    work.said(b"MDPW02", b"\4", b"client", b"", b"a")
    work.later(9.9)
    for _ in range(3):
        work.said(b"MDPW02", b"\5")
    work.later(0.2)
    work.closed(1)


# -- leaving -------------------------------------------------------------------------------------------------


def test_leaving_while_idle(work: Work) -> None:
    work.session.leave(work.now)
    work.said(b"MDPW02", b"\6")
    assert work.session.stopped
    assert work.session.next_deadline() is None
    work.session.leave(work.now)
    work.later(1000)
    work.said_nothing()


def test_leaving_while_busy_waits_for_the_reply(work: Work) -> None:
    job = work.works()
    work.session.leave(work.now)
    assert not work.session.stopped
    work.later(2.6)
    work.said(b"MDPW02", b"\5")
    work.final(job, b"a")
    work.said(b"MDPW02", b"\4", b"client", b"", b"a")
    work.said(b"MDPW02", b"\6")
    assert work.session.stopped


def test_leaving_while_away(work: Work) -> None:
    work.told(b"MDPW02", b"\6")
    work.closed(1)
    work.session.leave(work.now)
    assert work.session.stopped
    work.later(1000)
    work.said_nothing()


def test_leaving_when_the_connection_goes_before_the_reply(work: Work) -> None:
    job = work.works()
    work.session.leave(work.now)
    work.told(b"MDPW02", b"\6")
    work.closed(1)
    work.later(100)
    assert not work.session.stopped
    work.final(job, b"late")
    assert work.session.stopped
    work.later(100)
    work.said_nothing()


def test_leaving_when_the_connection_goes_before_the_job_began(work: Work) -> None:
    work.told(b"MDPW02", b"\2", b"client", b"", b"q")
    work.session.leave(work.now)
    work.told(b"MDPW02", b"\6")
    work.closed(1)
    assert work.session.stopped


# -- several brokers -----------------------------------------------------------------------------------------


def test_it_steps_aside_and_comes_back(work: Work) -> None:
    work.told(b"MDPW02", b"\2", b"client", b"", b"q")
    work.job()
    work.session.step_aside(work.now)
    work.said(b"MDPW02", b"\6")
    assert work.session.aside
    assert not work.session.registered
    work.told(b"MDPW02", b"\2", b"client", b"", b"crossed")
    work.later(1000)
    work.said_nothing()
    assert work.session.take_jobs() == []
    work.session.come_back()
    work.later(0)
    work.registers()


def test_it_need_not_wait_where_there_is_another_endpoint(work: Work) -> None:
    for _ in range(5):
        work.told(b"MDPW02", b"\6")
        work.session.hurry(work.now)
        work.later(0)
        work.output.clear()
        assert work.session.state is SessionState.IDLE
    work.told(b"MDPW02", b"\6")
    assert work.session.next_deadline() == work.now + 1.0, "what was not waited does not count"


def test_the_process_is_named_where_the_broker_knows_that_word() -> None:
    session = WorkerSession(b"echo", WorkerConfig(versions=("0.2", "0.1")), now=0.0, process="p1")
    for knows, words in (
        ([], []),
        (["titanic:process"], []),
        (["titanic:1", "titanic:process"], [EXTENSION, b"titanic:process=p1"]),
    ):
        session.tick(session.next_deadline() or 0.0)
        session.take_output()
        answer = json.dumps({"software": "titanic", "knows": knows}).encode()
        session.receive(session.connection, [b"", b"MDPC01", b"mmi.broker", answer], 0.0)
        assert session.take_output() == [(session.connection, [b"MDPW02", b"\1", b"echo", *words])]
        session.lost(0.0)
        session.take_output()


def test_the_version_is_said_where_the_broker_knows_that_word() -> None:
    session = WorkerSession(b"echo", WorkerConfig(versions=("0.2", "0.1"), deploy="v2 \u00e9"), now=0.0)
    for knows, words in (
        ([], []),
        (["titanic:1", "titanic:version"], [EXTENSION, "titanic:version=v2 \u00e9".encode()]),
    ):
        session.tick(session.next_deadline() or 0.0)
        session.take_output()
        answer = json.dumps({"software": "titanic", "knows": knows}).encode()
        session.receive(session.connection, [b"", b"MDPC01", b"mmi.broker", answer], 0.0)
        assert session.take_output() == [(session.connection, [b"MDPW02", b"\1", b"echo", *words])]
        session.lost(0.0)
        session.take_output()


@each("version", ["a\nb", "x" * 65, "\u00e9" * 33, "\udcff"])
def test_a_version_that_lists_cannot_show_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="at most 64 bytes"):
        WorkerConfig(deploy=version)


# -- cancelling and progress ---------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
def test_it_says_that_it_has_other_brokers_to_go_to(several: bool) -> None:
    for knows, words in (("", []), (', "titanic:elsewhere"', [b"titanic:elsewhere"] * several)):
        work = Work("0.2", "0.1")
        work.session.has_other_endpoints = several
        work.session.take_output()
        work.told(b"MDPC01", b"mmi.broker", b'{"software": "titanic", "knows": ["titanic:1"%s]}' % knows.encode())
        work.said(b"MDPW02", b"\1", b"echo", b"titanic:1", *words)


@pytest.fixture
def extended() -> Work:
    """At a broker that says that it knows CANCEL and PROGRESS."""
    work = Work("0.2", "0.1")
    work.session.take_output()
    work.told(b"MDPC01", b"mmi.broker", b'{"software": "titanic", "knows": ["titanic:1"]}')
    work.said(b"MDPW02", b"\1", b"echo", b"titanic:1")
    work.told(b"MDPW02", b"\5")
    return work


def test_it_learns_that_nobody_wants_the_reply(extended: Work) -> None:
    job = extended.works()
    extended.told(b"MDPW02", b"\7", b"another", b"")
    assert extended.session.take_cancelled() == []
    extended.told(b"MDPW02", b"\7", b"client", b"")
    assert extended.session.take_cancelled() == [(job.number, b"")]
    assert extended.session.take_cancelled() == []
    extended.final(job, b"late")
    extended.said(b"MDPW02", b"\4", b"client", b"", b"late")
    extended.told(b"MDPW02", b"\7", b"client", b"")  # it crossed the reply
    extended.said_nothing()
    assert (extended.session.take_cancelled(), extended.session.state) == ([], SessionState.IDLE)


def test_it_says_how_far_it_is_and_of_much_the_last(extended: Work) -> None:
    job = extended.works()
    for said in (b"1", b"2", b"3"):
        extended.session.progress(job.number, said, extended.now)
    extended.said(b"MDPW02", b"\10", b"client", b"", b"1")
    extended.said_nothing()
    extended.later(0.2)
    extended.said(b"MDPW02", b"\10", b"client", b"", b"3")
    extended.session.progress(job.number, b"4", extended.now)
    extended.final(job, b"done")
    extended.said(b"MDPW02", b"\4", b"client", b"", b"done")
    extended.later(1)
    extended.session.progress(job.number, b"5", extended.now)
    extended.said_nothing()


def test_a_broker_that_does_not_know_it_is_told_nothing(work: Work) -> None:
    job = work.works()
    work.session.progress(job.number, b"1", work.now)
    work.said_nothing()
    work.told(b"MDPW02", b"\7", b"client", b"")
    assert work.session.take_cancelled() == []
    assert work.session.state is SessionState.AWAY
