"""The order in which the dispatcher's thread does things."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn

import pytest
from support.store_facts import accept_all

from broker import Loop
from titanic import ServerConfig
from titanic.commit.writer import Writer
from titanic.dispatch.attempts import Finish, Send
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.dispatcher import Dispatcher
from titanic.dispatch.fetching import FETCH_BYTES
from titanic.dispatch.maintenance import PAUSE_US, STEP, MaintenanceWrite
from titanic.dispatch.outcomes import ENOUGH, OutcomeWrite
from titanic.errors import StoreFailed
from titanic.services.ask import Returned
from titanic.services.reader import Reader
from titanic.store import MIN_CAPACITY, NewRequest, Status, Store
from titanic.util.clock import wall_us


class Transport:
    """One that writes down what it is told."""

    most_ahead = 0
    surveys = False

    def __init__(self) -> None:
        self.told: list[str] = []
        self.sent: list[Send] = []
        self.presence: DispatchCore | None = None
        """To which it says at once that a service has two workers."""

    def send_requests(self, sends: Sequence[Send], now: float) -> None:
        self.sent += sends

    def recall_request(self, uuid: bytes, now: float) -> None:
        self.told.append(f"recall {uuid.hex()}")

    def ask_presence(self, names: Sequence[bytes], now: float) -> None:
        if self.presence is not None:
            for name in names:
                self.presence.present(name, 2, now)

    def survey(self, now: float) -> None: ...

    def push(self, now: float) -> None: ...

    def deliver_results(self, now: float) -> None:
        self.told.append("deliver")


def make(store: Store) -> Dispatcher:
    return Dispatcher(ServerConfig(), store, Writer(store), Reader(store), lambda answers: None, Loop())


def unreadable() -> NoReturn:
    raise StoreFailed("the store failed", "an error of the disk", "look at it")


class Rounds:
    """A dispatcher with requests in a real store, whose rounds are made by hand."""

    def __init__(self, store: Store, services: dict[bytes, int], body: bytes) -> None:
        """`services`: how many requests each has. Each has a worker more than that."""
        self.store = store
        self.transport = Transport()
        self.dispatcher = make(store)
        self.dispatcher.connect(self.transport)
        for service, count in services.items():
            self.submit(service, *[body] * count)
            self.dispatcher.core.present(service, count + 1, 0.0)

    def submit(self, service: bytes, *bodies: bytes, priority: int = 4) -> None:
        with self.store.write() as txn:
            accept_all(txn, [NewRequest(service, [body], priority) for body in bodies], wall_us())
        self.dispatcher.core.arrived({service: priority}, 0.0)

    def next(self) -> list[bytes]:
        """A round: the services to which something was sent."""
        self.transport.sent.clear()
        self.dispatcher.flush(0.0)
        return [send.service for send in self.transport.sent]


pytestmark = pytest.mark.settings(capacity=MIN_CAPACITY)


def test_without_a_broker_no_worker_is_known(store: Store) -> None:
    assert make(store).worker_of(bytes(16)) == ""


def test_what_was_closed_is_not_wanted_any_more_before_a_broker_is_found_dead(store: Store) -> None:
    """Delivering finds that out, and then all that is wanted is sent to the next broker."""
    rounds = Rounds(store, {b"echo": 1}, b"x")
    assert rounds.next() == [b"echo"]
    (send,) = rounds.transport.sent
    rounds.transport.told.clear()
    rounds.dispatcher.core.closed([send.uuid])
    rounds.next()
    assert rounds.transport.told == [f"recall {send.uuid.hex()}", "deliver"]
    rounds.dispatcher.loop.stop()


def test_workers_that_a_round_hears_of_at_its_end_have_work_at_once(store: Store) -> None:
    """A broker in this process answers in the round; perhaps there is no other one for a while."""
    rounds = Rounds(store, {}, b"x")
    dispatcher = rounds.dispatcher
    dispatcher.tick(time.monotonic())
    rounds.submit(b"echo", b"1", b"2")
    dispatcher.core.present(b"echo", 1, 0.0)
    rounds.transport.presence = dispatcher.core
    assert rounds.next() == [b"echo"]
    assert dispatcher.next_deadline() == 0.0
    assert rounds.next() == [b"echo"]
    assert dispatcher.next_deadline() != 0.0


def test_a_queue_that_could_not_be_read_is_read_again_after_a_pause(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(store, {b"echo": 1}, b"x")
    core = rounds.dispatcher.core
    rounds.transport.presence = core
    with monkeypatch.context() as failing:
        failing.setattr(store, "read", unreadable)
        assert rounds.next() == []
    assert rounds.next() == []
    again = core.next_deadline()
    assert again is not None
    rounds.dispatcher.flush(again)
    assert [send.service for send in rounds.transport.sent] == [b"echo"]
    rounds.dispatcher.loop.stop()


def test_of_a_service_those_in_flight_are_shown_and_no_closed_ones(store: Store) -> None:
    rounds = Rounds(store, {b"echo": 2, b"other": 1}, b"x")
    rounds.next()
    sent = [send.uuid for send in rounds.transport.sent if send.service == b"echo"]
    rounds.dispatcher.core.closed(sent[:1])
    assert rounds.dispatcher.view(bytes(16), b"echo").in_flight == sent[1:]
    rounds.dispatcher.loop.stop()


def test_a_large_request_that_a_change_holds_delays_no_other(store: Store) -> None:
    rounds = Rounds(store, {}, b"")
    rounds.submit(b"echo", bytes(FETCH_BYTES), b"small")
    rounds.dispatcher.core.present(b"echo", 2, 0.0)
    with store.read() as transaction:
        uuids = sorted(row.uuid for row in transaction.select())
    assert rounds.dispatcher.hold(uuids[0])
    assert rounds.next() == [b"echo"]
    assert [send.body for send in rounds.transport.sent] == [[b"small"]]
    rounds.dispatcher._take(Returned([b"echo"], [uuids[0]]))
    assert rounds.next() == [b"echo"]
    assert rounds.next() == []


def test_a_request_that_two_changes_hold_is_sent_after_both(store: Store) -> None:
    """The second one may not be committed yet when the first one is."""
    rounds = Rounds(store, {b"echo": 1}, b"x")
    dispatcher = rounds.dispatcher
    with store.read() as transaction:
        (row,) = transaction.select()
    assert [dispatcher.hold(row.uuid) for _ in range(2)] == [True, True]
    for _ in range(2):
        assert rounds.next() == []
        dispatcher._take(Returned([b"echo"], [row.uuid]))
        dispatcher.core.present(b"echo", 1, 0.0)
    assert rounds.next() == [b"echo"]
    assert not dispatcher.hold(row.uuid)
    dispatcher.loop.stop()


def test_a_request_that_is_held_delays_no_other(store: Store) -> None:
    rounds = Rounds(store, {b"echo": 2}, b"x")
    rounds.dispatcher.core.present(b"echo", 1, 0.0)
    with store.read() as transaction:
        first, second = transaction.select()
    assert rounds.dispatcher.hold(first.uuid)
    rounds.next()
    assert [send.uuid for send in rounds.transport.sent] == [second.uuid]
    rounds.dispatcher.loop.stop()


def test_times_are_in_order_however_long_a_round_or_a_commit_waits(store: Store) -> None:
    rounds = Rounds(store, {b"echo": 1}, b"x")
    dispatcher = rounds.dispatcher
    dispatcher.flush(time.monotonic() - 60)  # a round that began before the request was submitted
    (send,) = rounds.transport.sent
    started = dispatcher.core.flights[send.uuid].started
    write = OutcomeWrite([Finish(send.uuid, Status.DONE, [], 1, "", started)], dispatcher, dispatcher.completions)
    now_us = store.now_us()
    end = time.monotonic() + 0.01
    while time.monotonic() < end:  # another process has the store
        pass
    with store.write() as transaction:
        write.apply(transaction, now_us)
    with store.read() as transaction:
        row = transaction.describe(send.uuid)
    assert row is not None
    assert row.submitted_at <= row.dispatched_at <= row.finished_at == now_us
    dispatcher.loop.stop()


def replace(store: Store, rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Put these into the place of requests; what was there."""
    with store.environment.env.begin(write=True, db=store.environment.databases.requests) as raw:
        before = {uuid: bytes(raw.get(uuid)) for uuid in rows}
        for uuid, row in rows.items():
            raw.put(uuid, row)
    return before


def test_what_is_in_flight_is_not_read_again(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Its bodies may be large, and are not even looked at when others of the service come."""
    rounds = Rounds(store, {b"echo": 40}, b"x" * 1000)
    assert rounds.next() == [b"echo"] * 40
    rounds.dispatcher.core.present(b"echo", 42, 0.0)
    rounds.submit(b"echo", b"next")
    rounds.submit(b"echo", b"urgent", priority=9)
    uuids = [send.uuid for send in rounds.transport.sent]
    rows = replace(store, dict.fromkeys(uuids, b"damaged"))  # to read them would be noticed
    assert rounds.next() == [b"echo"] * 2
    assert [send.body for send in rounds.transport.sent] == [[b"urgent"], [b"next"]]
    assert not caplog.records
    replace(store, rows)
    rounds.dispatcher.loop.stop()


def test_a_round_reads_no_more_than_is_good_for_all_and_services_take_turns(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.dispatch.fetching.FETCH_BYTES", 3000)
    rounds = Rounds(store, {b"a": 6, b"b": 6, b"c": 1, b"d": 1}, b"x" * 1000)
    sent = []
    while services := rounds.next():
        sent.append(services)
        assert len(services) <= 4
        assert rounds.dispatcher.next_deadline() == 0.0 or sum(map(len, sent)) == 14
    assert sum(map(len, sent)) == 14
    assert set(sent[0] + sent[1]) == {b"a", b"b", b"c", b"d"}
    rounds.dispatcher.loop.stop()


def test_it_knows_which_services_have_workers_when_the_broker_does_not_tell_how_many(store: Store) -> None:
    dispatcher = Rounds(store, {b"some": 0, b"none": 1}, b"x").dispatcher
    dispatcher.core.arrived({b"some": 4, b"not asked": 4}, 0.0)
    dispatcher.core.present(b"none", 0, 0.0)
    assert dispatcher.workers() == {b"some": None, b"none": 0, b"not asked": None}
    dispatcher.loop.stop()


def assert_pause(began: float, deadline: float | None) -> None:
    """The next look is a pause later than something that was done since."""
    assert deadline is not None
    assert deadline - began > PAUSE_US / 2e6
    assert deadline - time.monotonic() <= PAUSE_US / 1e6


def test_what_is_due_and_cannot_be_done_is_not_insisted_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that nobody fetched, which there is no room to close before the archive has caught up."""
    dispatcher = Rounds(store, {}, b"").dispatcher
    with store.write() as txn:
        txn.update_archive(register=True)
        (uuid,) = accept_all(txn, [NewRequest(b"echo", [b"x"])], wall_us())
        assert txn.finish(uuid, Status.DONE, [], attempts=1, dispatched_at=1, finished_at=1)

    def keep() -> float | None:
        """Do what is due; when it is looked at again."""
        one = MaintenanceWrite(dispatcher.maintenance, STEP)
        with store.write() as txn:
            one.apply(txn, wall_us())
        dispatcher._take(one)
        return dispatcher.core.next_deadline()

    with monkeypatch.context() as full:
        environment = store.environment
        full.setattr(store, "environment", environment._replace(room=environment.room._replace(least=0)))
        assert_pause(time.monotonic(), keep())
    keep()
    assert keep() is None, "it is closed now"
    dispatcher.loop.stop()


def test_a_store_that_can_not_be_read_is_looked_at_again_after_a_pause(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = Rounds(store, {}, b"").dispatcher
    monkeypatch.setattr(store, "read", unreadable)
    dispatcher.maintenance.refresh_alarm()
    began = time.monotonic()
    dispatcher.maintenance.tick(began + 1)
    assert_pause(began, dispatcher.core.next_deadline())
    dispatcher.loop.stop()


def test_as_many_outcomes_as_gather_are_a_light_write(store: Store) -> None:
    dispatcher = make(store)
    end = Finish(bytes(16), Status.DONE, [], 1, "", 0.0)
    for count, light in ((ENOUGH, True), (ENOUGH + 1, False)):
        assert OutcomeWrite([end] * count, dispatcher, dispatcher.completions).light is light
