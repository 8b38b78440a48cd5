"""A worker with several services and slots on one connection, as the broker sees it."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import pytest
from support.broker_invariants import check, check_empty
from support.each import each
from support.transcript import CLIENT, Transcript

from broker.access.authorization import Guard, Review
from broker.access.users import NOBODY, Access, Permission, User
from broker.core.broker import BrokerCore
from broker.core.mdp import MAX_SERVICES, MAX_SLOTS
from broker.core.worker_registry import MAX_OFFERS

QUEUE = "queue"
HEARTBEAT, DISCONNECT, CANCEL = (b"MDPW02", b"\5"), (b"MDPW02", b"\6"), b"\7"


class Play(Transcript):
    """A queue, and workers with slots."""

    def ready(self, name: str, slots: int, *services: str, process: str = "p") -> None:
        """`services`: names, or LIMIT:NAME; the first one without a limit unless it says one."""
        names = [service.rpartition(":") for service in services]
        words = [f"titanic:service={limit or 0}:{service}" for limit, _, service in names]
        self.said(
            name,
            b"MDPW02",
            b"\1",
            names[0][2].encode(),
            b"titanic:1",
            b"titanic:slots=%d" % slots,
            f"titanic:process={process}".encode(),
            *(word.encode() for word in words[not names[0][0] :]),
        )

    def registered(self, name: str, slots: int, *services: str, process: str = "p") -> None:
        self.ready(name, slots, *services, process=process)
        assert self._inboxes[name].popleft() == [*HEARTBEAT]

    def sends(self, body: bytes, service: bytes = b"echo", **context: Any) -> None:
        """The queue sends a request, named by its body."""
        said = json.dumps({"uuid": body.decode(), "attempt": 1, **context}, separators=(",", ":"))
        self.said(QUEUE, said.encode(), body, b"", b"MDPC02", b"\5", service, body)

    def given(self, worker: str, body: bytes, service: bytes = b"echo") -> bytes:
        """The worker has got this request next; its client frame."""
        return self.told(worker, b"MDPW02", b"\11", CLIENT, b"", service, body)[2]

    def all_given(self, worker: str) -> dict[bytes, bytes]:
        """The client frames of all that it has got, by their bodies, in order."""
        return {frames[5]: frames[2] for frames in self.heard(worker) if frames[1] == b"\11"}

    def ends(self, worker: str, token: bytes) -> None:
        self.final(worker, token, b"done")

    def slots(self, worker: str, number: int, *tokens: bytes) -> None:
        self.said(worker, b"MDPW02", b"\12", b"%d" % number, *tokens)

    def statuses(self) -> dict[bytes, bytes]:
        """What the queue was told of its requests: the status of an error, or the reply."""
        told = {}
        for frames in self.heard(QUEUE):
            if frames[4] in (b"\3", b"\7"):
                assert frames[1] not in told
                told[frames[1]] = frames[7][:3] if frames[6] == b"MDPE01" else frames[6]
        return told

    def document(self, name: bytes) -> Any:
        self.request("asker", b"", service=name)
        return json.loads(self.heard("asker")[0][3])


@pytest.fixture
def broker() -> Play:
    return Play()


# -- registration --------------------------------------------------------------------------------------------


def test_it_gets_as_many_as_it_has_slots_of_all_its_services(broker: Play) -> None:
    broker.registered("w", 2, "echo", "upper")
    broker.sends(b"1")
    broker.sends(b"2", b"upper")
    broker.sends(b"3")
    first = broker.given("w", b"1")
    broker.given("w", b"2", b"upper")
    broker.told_nothing("w")
    broker.ends("w", first)
    broker.given("w", b"3")
    assert broker.statuses() == {b"1": b"done"}


def test_what_waits_is_given_when_it_registers(broker: Play) -> None:
    for number in range(5):
        broker.sends(b"%d" % number)
    broker.registered("w", 3, "echo", "upper")
    assert list(broker.all_given("w")) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "words",
    [
        [b"titanic:slots="],
        [b"titanic:slots=0"],
        [b"titanic:slots=-1"],
        [b"titanic:slots=x"],
        [b"titanic:slots=\xc2\xb2"],
        [b"titanic:slots=%d" % (MAX_SLOTS + 1)],
        [b"titanic:slots=" + b"9" * 9999],
        [b"titanic:slots=2", b"titanic:service="],
        [b"titanic:slots=2", b"titanic:service=1"],
        [b"titanic:slots=2", b"titanic:service=:a"],
        [b"titanic:slots=2", b"titanic:service=1:"],
        [b"titanic:slots=2", b"titanic:service=x:a"],
        [b"titanic:slots=2", b"titanic:service=1:a\0b"],
        [b"titanic:slots=2", b"titanic:service=1:mmi.service"],
        [b"titanic:slots=2", b"titanic:service=1:integrated"],
        [b"titanic:slots=2", b"titanic:service=%d:a" % (MAX_SLOTS + 1)],
        [b"titanic:slots=2", *(b"titanic:service=0:%d" % number for number in range(MAX_SERVICES))],
    ],
    ids=lambda words: repr(words[-1])[:40],
)
def test_a_bad_ready_is_refused(broker: Play, words: list[bytes]) -> None:
    broker.core.integrate(b"integrated")
    broker.said("w", b"MDPW02", b"\1", b"echo", b"titanic:1", *words)
    broker.told("w", *DISCONNECT)
    assert list(broker.core.services) == [b"integrated"]
    assert not broker.core.registry.groups


def test_as_much_as_there_may_be_is_accepted(broker: Play) -> None:
    broker.registered("w", MAX_SLOTS, *(f"s{number}" for number in range(MAX_SERVICES)))
    assert len(broker.core.services) == MAX_SERVICES
    broker.said("w", *DISCONNECT)
    check_empty(broker.core)


def test_workers_together_have_so_many_services(broker: Play) -> None:
    """What has the same services as another one adds none."""
    count = MAX_OFFERS // MAX_SERVICES
    assert all(registers(broker, f"w{number}", many(number)) for number in range(count))
    left = MAX_OFFERS - broker.core.registry.offers
    assert not registers(broker, "more", many(count)[: left + 1])
    assert registers(broker, "same", many(0))
    assert registers(broker, "more", many(count)[:left])
    broker.core.receive("w0", [*DISCONNECT], broker.now)
    assert broker.core.registry.offers == MAX_OFFERS, "the other one has them still"
    broker.core.receive("same", [*DISCONNECT], broker.now)
    assert broker.core.registry.offers == MAX_OFFERS - MAX_SERVICES
    assert registers(broker, "again", many(count + 1))


def test_a_user_has_half_of_these_services(broker: Play) -> None:
    one, other = (User(name, services={Permission.WORK: ("*",)}) for name in ("one", "other"))
    broker.core.guard = Guard(Access([one, other]))
    share = MAX_OFFERS // 2
    count = share // MAX_SERVICES
    assert all(registers(broker, f"one {number}", many(number), one) for number in range(count))
    assert not registers(broker, "more", many(count), one)
    (report,) = broker.core.guard.take_reports()
    assert report.first.why == (
        f"user 'one' has {(count + 1) * MAX_SERVICES - 1} services of workers; the maximum per user is {share} of"
        f" {MAX_OFFERS}"
    )
    assert registers(broker, "same", many(0), other)
    assert registers(broker, "another", many(count), other)


def registers(broker: Play, peer: str, services: list[str], user: User | None = None) -> bool:
    """Whether a worker of these services may register."""
    words = [b"titanic:service=0:%b" % name.encode() for name in services]
    ready = [b"MDPW02", b"\1", services[0].encode(), b"titanic:1", b"titanic:slots=1", *words]
    broker.core.receive(peer, ready, broker.now, user)
    return peer in broker.core.workers


def many(number: int) -> list[str]:
    """Services of no other number."""
    return [f"{at}-{number}" for at in range(MAX_SERVICES)]


def test_slots_cost_the_same_however_many_services_there_are(broker: Play) -> None:
    """Else a worker with many could stop the broker by a few small messages."""
    broker.registered("few", 1, "one")
    broker.registered("many", 1, *(f"s{number}" for number in range(MAX_SERVICES)))
    spent = {}
    for worker in ("few", "many"):
        before = time.thread_time()
        for number in range(1000):
            broker.core.receive(worker, [b"MDPW02", b"\n", b"%d" % (1 + number % 2)], broker.now)
        spent[worker] = time.thread_time() - before
    assert {service.workers for service in broker.core.services.values()} == {2}
    assert spent["many"] < 20 * spent["few"]


@pytest.mark.parametrize("head", [[b"MDPW02"], [b"", b"MDPW01"], [b"", b"MDPW02"]])
def test_without_the_extension_the_words_are_ignored(broker: Play, head: list[bytes]) -> None:
    extension = [] if head == [b"MDPW02"] else [b"titanic:1"]
    broker.said("w", *head, b"\1", b"echo", *extension, b"titanic:slots=5", b"titanic:service=0:upper")
    assert {name: service.workers for name, service in broker.core.services.items()} == {b"echo": 1}
    broker.heard("w")
    broker.sends(b"1")
    broker.told("w", *head, b"\2", CLIENT, b"", b"1")


def test_slots_count_as_workers(broker: Play) -> None:
    broker.registered("w", 4, "echo", "3:upper")
    broker.worker("x", b"upper")
    broker.sends(b"1")
    assert broker.document(b"mmi.workers") == {"echo": 4, "upper": 4}
    services = {service["name"]: service for service in broker.document(b"mmi.services")}
    assert (services["echo"]["idle"], services["upper"]["idle"]) == (3, 4)
    stats = broker.document(b"mmi.stats")
    assert (stats["workers"], stats["workers_busy"]) == (5, 1)
    assert "titanic:slots" in broker.document(b"mmi.broker")["knows"]


def test_a_connection_is_one_of_the_workers_that_there_may_be() -> None:
    broker = Play(max_workers=1)
    broker.registered("w", 100, "echo", "upper")
    broker.said("x", b"MDPW02", b"\1", b"echo")
    broker.told("x", *DISCONNECT)


def test_it_must_be_permitted_to_work_for_each_service() -> None:
    user = User("u", {Permission.WORK: ["echo", "upper"]})
    core = BrokerCore()
    core.guard = Guard(Access([user]), {}, core.stats)

    def said(service: bytes) -> list[bytes] | None:
        words = [b"titanic:1", b"titanic:slots=2", b"titanic:service=0:" + service]
        core.receive("w", [b"MDPW02", b"\1", b"echo", *words], 0.0, user)
        check(core)
        ((_, frames),) = core.take_output()
        return frames

    assert said(b"lower") == [*DISCONNECT]
    assert said(b"upper") == [*HEARTBEAT]
    less = User("u", {Permission.WORK: ["echo"]})
    core.revoke(Review(core.guard, lambda peer: less), 0.0)
    assert core.take_output() == [("w", [*DISCONNECT])]
    check_empty(core)


def test_a_report_has_the_workers_by_process(broker: Play) -> None:
    broker.registered("w", 4, "echo", "3:upper", process="host:7/a")
    broker.later(1)
    broker.registered("x", 2, "lower", process="host:7/a")
    broker.said("y", b"MDPW02", b"\1", b"echo")
    broker.sends(b"1", b"upper")
    broker.request("asker", b"plain", service=b"lower")
    began = broker.now - 1
    broker.later(0.5)
    broker.said("x", *HEARTBEAT)
    reports, omitted = broker.core.registry.report(100)
    assert omitted == 0
    process, single = reports
    assert (process.name, process.user, process.services, process.slots) == (
        *("host:7", None, [b"echo", b"lower", b"upper"]),
        6,
    )
    assert (process.registered_at, process.heard_at) == (began, began + 1.5)
    assert [(service, at) for _, service, at in process.requests] == [(b"upper", began + 1), (b"lower", began + 1)]
    assert json.loads(process.requests[0][0])["uuid"] == "1"
    assert process.requests[1][0] == b""
    assert (single.name, single.services, single.slots, single.requests) == ("", [b"echo"], 1, [])


@pytest.mark.parametrize(
    ("word", "version"),
    [
        ("v2 \u00e9".encode(), "v2 \u00e9"),
        (b"x" * 64, "x" * 64),
        (b"x" * 65, ""),
        (b"a\x1b[2J", ""),
        (b"\xff", ""),
        (b"", ""),
    ],
)
def test_a_report_has_the_version_that_a_worker_says(broker: Play, word: bytes, version: str) -> None:
    broker.said("w", b"MDPW02", b"\1", b"echo", b"titanic:version=" + word)
    assert [report.version for report in broker.core.registry.report(100)[0]] == [version]
    assert "titanic:version" in broker.document(b"mmi.broker")["knows"]


def test_a_long_report_leaves_out_the_latest(broker: Play) -> None:
    for number in range(5):
        broker.registered(f"w{number}", 1, "a", "b", process=f"host:{number}/")
    reports, omitted = broker.core.registry.report(4)
    assert [report.name for report in reports] == ["host:0", "host:1"]
    assert omitted == 3


# -- which one next ------------------------------------------------------------------------------------------


def test_the_most_urgent_comes_first_then_services_in_turns_the_oldest_first(broker: Play) -> None:
    broker.registered("w", 1, "a", "b", "c")
    broker.sends(b"first", b"a")
    token = broker.given("w", b"first", b"a")
    for number in range(3):
        broker.sends(b"a%d" % number, b"a", priority=4)
        broker.sends(b"b%d" % number, b"b", priority=4)
        broker.sends(b"c%d" % number, b"c", priority=9 if number == 0 else 0)
    order = []
    for _ in range(9):
        broker.ends("w", token)
        ((body, token),) = broker.all_given("w").items()
        order.append(body)
    assert order == [b"c0", b"a0", b"b0", b"a1", b"b1", b"a2", b"b2", b"c1", b"c2"]


def test_what_says_no_priority_has_0(broker: Play) -> None:
    broker.registered("w", 1, "a", "b", "c")
    broker.sends(b"first", b"a")
    token = broker.given("w", b"first", b"a")
    broker.request("client", b"plain", service=b"b")
    broker.sends(b"odd", b"b", priority="x")
    broker.sends(b"1", b"c", priority=1)
    broker.ends("w", token)
    token = broker.given("w", b"1", b"c")
    broker.ends("w", token)
    broker.given("w", b"plain", b"b")


def test_the_order_follows_what_is_taken_out_and_put_back(broker: Play) -> None:
    broker.registered("w", 1, "a", "b")
    broker.sends(b"first", b"a")
    token = broker.given("w", b"first", b"a")
    broker.sends(b"a9", b"a", priority=9)
    broker.sends(b"a1", b"a", priority=1)
    broker.sends(b"b5", b"b", priority=5)
    assert broker.core.cancel(QUEUE, b"a", b"a9", broker.now) == b"200"
    broker.collect()
    broker.ends("w", token)
    broker.given("w", b"b5", b"b")
    broker.said("w", *DISCONNECT)  # b5 waits again
    broker.registered("w", 1, "a", "b")
    broker.given("w", b"b5", b"b")


def test_only_a_queue_may_say_what_is_urgent() -> None:
    user = User("u", {Permission.CALL: ["*"]})
    core = BrokerCore()
    core.guard = Guard(Access([user]), {}, core.stats)
    core.receive("w", [b"MDPW02", b"\1", b"a", b"titanic:1", b"titanic:slots=1", b"titanic:service=0:b"], 0.0)
    for body, service in ((b"1", b"a"), (b"2", b"a"), (b"3", b"b")):
        context = b'{"attempt":1,"priority":%b,"alone":true}' % body
        core.receive("c", [context, body, b"", b"MDPC02", b"\5", service, body], 0.0, user)
        check(core)
    token = next(frames[2] for _, frames in core.take_output() if frames is not None and frames[1] == b"\11")
    core.receive("w", [b"MDPW02", b"\4", token, b"", b""], 0.0)
    assert next(frames[5] for _, frames in core.take_output() if frames is not None and frames[1] == b"\11") == b"2"


def test_a_limit_holds_and_others_go_past(broker: Play) -> None:
    broker.registered("w", 3, "1:slow", "quick")
    for body in (b"s1", b"s2"):
        broker.sends(body, b"slow", priority=9)
    for body in (b"q1", b"q2", b"q3"):
        broker.sends(body, b"quick", priority=1)
    tokens = broker.all_given("w")
    assert list(tokens) == [b"s1", b"q1", b"q2"]
    broker.ends("w", tokens[b"q1"])
    broker.given("w", b"q3", b"quick")
    broker.ends("w", tokens[b"q2"])
    broker.told_nothing("w")
    broker.ends("w", tokens[b"s1"])
    broker.given("w", b"s2", b"slow")


def test_processes_get_requests_in_turns(broker: Play) -> None:
    for name in ("v", "w"):
        broker.registered(name, 2, "echo", "upper", process=name)
    broker.worker("x")
    for number in range(5):
        broker.sends(b"%d" % number)
    counts = [len(broker.all_given(name)) for name in ("v", "w")]
    assert counts == [2, 2]
    broker.heard("x")
    assert not broker.core.services[b"echo"].waiting


# -- while requests wait -------------------------------------------------------------------------------------


def test_a_queue_is_told_when_a_worker_begins_late_and_the_deadline_moves(broker: Play) -> None:
    broker.registered("w", 1, "echo", "upper")
    broker.sends(b"1", deadline=1000.5)
    token = broker.given("w", b"1")
    assert b'"deadline":1000.5' in token
    broker.sends(b"soon", deadline=2000.5)
    broker.sends(b"late", deadline=3000.5)
    broker.sends(b"none")
    broker.later(0.2)
    broker.ends("w", token)
    token = broker.given("w", b"soon")
    assert b'"deadline":2000.5' in token
    assert broker.statuses() == {b"1": b"done"}
    broker.later(0.8)
    broker.ends("w", token)
    token = broker.given("w", b"late")
    assert b'"deadline":3001.5' in token
    assert broker.heard(QUEUE)[-1][1:] == [b"late", b"", b"MDPC02", b"\6", b"echo"]
    broker.ends("w", token)
    token = broker.given("w", b"none")
    assert b"deadline" not in token
    assert broker.heard(QUEUE)[-1][1:] == [b"none", b"", b"MDPC02", b"\6", b"echo"]


def test_the_deadline_of_what_runs_alone_counts_from_its_begin(broker: Play) -> None:
    broker.registered("w", 2, "echo", "upper")
    broker.sends(b"1")
    token = broker.given("w", b"1")
    broker.sends(b"suspect", alone=True, deadline=1000.5)
    broker.later(2)
    broker.ends("w", token)
    token = broker.given("w", b"suspect")
    assert b'"deadline":1002.5' in token
    broker.ends("w", token)
    assert broker.statuses() == {b"1": b"done", b"suspect": b"done"}


# -- what is said of a request -------------------------------------------------------------------------------


def test_parts_progress_and_cancellation_name_their_request(broker: Play) -> None:
    broker.registered("w", 3, "echo", "upper")
    for body in (b"1", b"2"):
        broker.sends(body)
    tokens = broker.all_given("w")
    for body, token in tokens.items():
        broker.said("w", b"MDPW02", b"\3", token, b"", b"part")
        broker.told(QUEUE, CLIENT, body, b"", b"MDPC02", b"\2", b"echo", b"part")
        broker.said("w", b"MDPW02", b"\10", token, b"", b'{"done":1}')
        broker.told(QUEUE, CLIENT, body, b"", b"MDPC02", b"\10", b"echo", b'{"done":1}')
    broker.said("w", b"MDPW02", b"\10", tokens[b"1"], b"", b'{"done":2}')
    broker.told_nothing(QUEUE)  # too soon
    assert broker.core.cancel(QUEUE, b"echo", b"2", broker.now, b"running") == b"404"
    broker.collect()
    broker.told("w", b"MDPW02", CANCEL, tokens[b"2"], b"")
    broker.said("w", *DISCONNECT)
    assert broker.statuses() == {b"2": b"499"}
    assert len(broker.core.services[b"echo"].waiting) == 1


@pytest.mark.parametrize("code", [b"\3", b"\4", b"\10"])
def test_a_wrong_client_frame_makes_the_worker_invalid(broker: Play, code: bytes) -> None:
    broker.registered("w", 3, "echo", "upper")
    broker.sends(b"1")
    broker.said("w", b"MDPW02", code, b"0000000000000009", b"", b"x")
    assert not broker.core.workers
    assert broker.statuses() == {b"1": b"500"}


@pytest.mark.parametrize("command", [b"\3", b"\4"])
def test_a_reply_that_is_too_large_fails_its_request_and_no_other(broker: Play, command: bytes) -> None:
    broker.registered("w", 2, "echo", "upper")
    for body in (b"1", b"2", b"3"):
        broker.sends(body)
    tokens = broker.all_given("w")
    broker.core.too_large("w", [b"MDPW02", command, tokens[b"1"], b"", b"x"], "too much", broker.now)
    broker.collect()
    assert broker.statuses() == {b"1": b"413"}
    broker.told("w", b"MDPW02", CANCEL, tokens[b"1"], b"")
    if command == b"\3":
        broker.told_nothing("w")
        broker.said("w", b"MDPW02", b"\3", tokens[b"1"], b"", b"more")
        broker.ends("w", tokens[b"1"])
    broker.given("w", b"3")
    broker.ends("w", tokens[b"2"])
    assert broker.statuses() == {b"2": b"done"}


def test_parts_that_a_client_gets_in_one_are_too_large(broker: Play) -> None:
    broker = Play(max_body=10)
    broker.registered("w", 2, "echo", "upper")
    broker.said("client", b"", b"MDPC01", b"echo", b"q")
    broker.sends(b"1")
    tokens = broker.all_given("w")
    for _ in range(3):
        broker.said("w", b"MDPW02", b"\3", tokens[b"q"], b"", b"123456")
    assert broker.heard("client")[0][4][:4] == b"413 "
    broker.ends("w", tokens[b"q"])
    broker.told_nothing("client")
    broker.ends("w", tokens[b"1"])
    assert broker.statuses() == {b"1": b"done"}


# -- other numbers of slots ----------------------------------------------------------------------------------


def test_fewer_slots_and_none(broker: Play) -> None:
    broker.registered("w", 3, "echo", "upper")
    broker.sends(b"1")
    broker.sends(b"2")
    tokens = broker.all_given("w")
    broker.slots("w", 0)
    assert broker.document(b"mmi.workers") == {}
    broker.sends(b"3")
    broker.ends("w", tokens[b"1"])
    broker.told_nothing("w")
    broker.slots("w", 1)
    broker.told_nothing("w")
    broker.ends("w", tokens[b"2"])
    broker.given("w", b"3")
    broker.slots("w", 5)
    assert broker.document(b"mmi.workers") == {"echo": 5, "upper": 5}


def test_what_it_has_not_begun_goes_to_another_and_is_no_delivery(broker: Play) -> None:
    broker.registered("w", 2, "echo", "upper", process="w")
    for body in (b"1", b"2", b"3"):
        broker.sends(body)
    tokens = broker.all_given("w")
    broker.slots("w", 0, tokens[b"2"], tokens[b"1"])
    broker.told_nothing("w")
    broker.registered("x", 2, "echo", "upper", process="x")
    given = broker.all_given("x")
    assert list(given) == [b"2", b"1"], "before those that never were with a worker"
    assert b"delivery" not in given[b"1"]
    assert [one.deliveries for one in broker.core.workers["x"].requests.values()] == [1, 1]
    for token in given.values():
        broker.ends("x", token)
    broker.slots("w", 1)
    assert broker.core.stats["redelivered"] == 2


def test_what_is_given_back_may_return_to_its_worker(broker: Play) -> None:
    broker.registered("w", 1, "echo", "upper")
    broker.sends(b"1")
    token = broker.given("w", b"1")
    broker.slots("w", 1, token)
    assert broker.given("w", b"1") != token


@pytest.mark.parametrize("rest", [[], [b""], [b"x"], [b"-1"], [b"9999"], [b"1", b"wrong"], [b"1", CLIENT, CLIENT]])
def test_wrong_slots_make_the_worker_invalid(broker: Play, rest: list[bytes]) -> None:
    broker.registered("w", 1, "echo", "upper")
    broker.sends(b"1")
    token = broker.given("w", b"1")
    broker.said("w", b"MDPW02", b"\12", *[token if frame is CLIENT else frame for frame in rest])
    assert not broker.core.workers
    assert broker.statuses() == {b"1": b"500"}


def test_who_has_no_slots_cannot_have_others(broker: Play) -> None:
    broker.worker("w")
    broker.slots("w", 2)
    assert not broker.core.workers
    broker.slots("stranger", 2)
    broker.told("stranger", *DISCONNECT)


# -- the ways to go ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["lost", "silent", "malformed"])
def test_of_several_in_hand_each_may_be_the_cause(broker: Play, way: str) -> None:
    broker.registered("w", 3, "echo", "upper")
    for body in (b"1", b"2"):
        broker.sends(body)
    broker.request("client", b"plain", service=b"upper")
    broker.heard("w")
    if way == "lost":
        broker.lost("w")
    elif way == "silent":
        broker.later(60)
    else:
        broker.said("w", b"garbage")
    assert broker.statuses() == {b"1": b"502", b"2": b"502"}
    broker.registered("x", 3, "upper")
    broker.given("x", b"plain", b"upper")


def test_of_two_connections_of_a_process_each_may_be_the_cause(broker: Play) -> None:
    broker.registered("w", 1, "echo", "upper")
    broker.registered("x", 1, "lower", "upper")
    broker.sends(b"1")
    broker.sends(b"2", b"lower")
    broker.lost("w")
    broker.lost("x")
    assert broker.statuses() == {b"1": b"502", b"2": b"502"}
    check_empty(broker.core)


def test_a_death_with_one_in_hand(broker: Play) -> None:
    broker.registered("w", 3, "echo", "upper")
    broker.sends(b"1")
    broker.lost("w")
    assert broker.statuses() == {b"1": b"500"}
    check_empty(broker.core)


def test_what_never_reached_the_worker_is_not_the_cause(broker: Play) -> None:
    broker.registered("w", 3, "echo", "upper")
    for body in (b"1", b"2", b"3"):
        broker.sends(body)
    first, *unsent = broker.heard("w")
    assert first[5] == b"1"
    broker.unsent("w", [frame for frames in unsent for frame in frames])
    assert broker.statuses() == {b"1": b"500"}
    broker.registered("x", 3, "echo", process="x")
    assert list(broker.all_given("x")) == [b"2", b"3"]


def test_a_good_bye_is_no_death_and_the_order_stays(broker: Play) -> None:
    broker.registered("w", 3, "echo", "upper")
    for number in range(5):
        broker.sends(b"%d" % number)
    broker.said("w", *DISCONNECT)
    broker.registered("x", 5, "echo", process="x")
    given = broker.all_given("x")
    assert list(given) == [b"0", b"1", b"2", b"3", b"4"]
    assert b'"delivery":2' in given[b"0"]
    assert not broker.statuses()


def test_the_death_of_what_passes_requests_on_says_nothing_of_them(broker: Play) -> None:
    broker.registered("w", 3, "echo", "upper", process="")
    broker.sends(b"1", alone=True)
    broker.sends(b"2", alone=True)
    assert list(broker.all_given("w")) == [b"1", b"2"]
    broker.lost("w")
    broker.registered("x", 3, "echo", process="x")
    broker.given("x", b"1")
    assert not broker.statuses()


def test_a_broker_that_stood_still_blames_nobody(broker: Play) -> None:
    broker.registered("w", 2, "echo", "upper")
    broker.sends(b"1")
    broker.jump(600)
    assert broker.core.workers
    assert not broker.statuses()


def test_alone_nothing_else_runs_in_the_process(broker: Play) -> None:
    broker.registered("w", 3, "echo", "upper")
    broker.sends(b"1")
    broker.sends(b"suspect", alone=True)
    broker.sends(b"2", b"upper")
    token = broker.given("w", b"1")
    broker.told_nothing("w")
    broker.ends("w", token)
    token = broker.given("w", b"suspect")
    broker.sends(b"3")
    broker.told_nothing("w")
    broker.ends("w", token)
    assert set(broker.all_given("w")) == {b"2", b"3"}


@pytest.mark.parametrize("way", ["cancel", "withhold", "drain", "leaves", "dies", "is given back"])
def test_while_it_waits_to_run_alone_it_is_with_no_worker(broker: Play, way: str) -> None:
    broker.registered("w", 3, "echo", "upper")
    broker.sends(b"1")
    broker.sends(b"suspect", alone=True)
    token = broker.given("w", b"1")
    status = b"499"
    if way == "cancel":
        assert broker.core.cancel(QUEUE, b"echo", b"suspect", broker.now, b"running") == b"200"
    elif way == "withhold":
        broker.core.withhold(QUEUE, broker.now)
    elif way == "drain":
        broker.core.drain(broker.now)
        status = b"503"
    elif way == "leaves":
        broker.said("w", *DISCONNECT)
    elif way == "is given back":
        broker.slots("w", 0, token)
    else:
        broker.lost("w")
    broker.collect()
    if way in ("cancel", "withhold", "drain"):
        assert broker.statuses() == {b"suspect": status}
        broker.told_nothing("w")
        broker.ends("w", token)
        assert broker.statuses() == {b"1": b"done"}
        return
    if way == "is given back":
        broker.given("w", b"suspect")
        return
    assert broker.statuses() == ({b"1": b"500"} if way == "dies" else {})
    broker.registered("x", 3, "echo", process="x")
    if way == "leaves":
        broker.ends("x", broker.given("x", b"1"))
    broker.given("x", b"suspect")


def test_what_is_on_its_way_is_withheld_and_the_rest_stays(broker: Play) -> None:
    broker.registered("w", 2, "echo", "upper")
    broker.sends(b"1")
    token = broker.given("w", b"1")
    context = b'{"attempt":1}'
    broker.core.receive(QUEUE, [context, b"2", b"", b"MDPC02", b"\5", b"echo", b"2"], broker.now)
    broker.core.receive("other", [b"MDPC02", b"\1", b"echo", b"3"], broker.now)
    broker.core.withhold(QUEUE, broker.now)
    broker.collect()
    broker.given("w", b"3")
    assert broker.statuses() == {b"2": b"499"}
    broker.ends("w", token)
    assert broker.statuses() == {b"1": b"done"}


def test_it_is_dismissed_when_it_has_nothing_left_while_the_broker_drains(broker: Play) -> None:
    broker.registered("w", 3, "echo", "upper")
    for body in (b"1", b"2"):
        broker.sends(body)
    broker.registered("idle", 3, "echo", "upper", process="q")
    broker.core.drain(broker.now)
    broker.collect()
    broker.told("idle", *DISCONNECT)
    tokens = list(broker.all_given("w").values())
    broker.sends(b"late")
    assert broker.statuses() == {b"late": b"503"}
    assert broker.document(b"mmi.workers") == {"echo": 3, "upper": 3}, "it still has something"
    for token in tokens[:-1]:
        broker.ends("w", token)
        broker.told_nothing("w")
    broker.ends("w", tokens[-1])
    broker.told("w", *DISCONNECT)
    check_empty(broker.core)


def test_a_broker_that_is_cut_off_gives_it_nothing_more(broker: Play) -> None:
    broker.registered("busy", 3, "echo", "upper")
    broker.sends(b"1")
    token = broker.given("busy", b"1")
    broker.registered("idle", 3, "echo", "upper", process="q")
    broker.core.cut_off(True, broker.now)
    broker.collect()
    broker.told("idle", *DISCONNECT)
    broker.sends(b"2")
    broker.slots("busy", 3)
    assert broker.statuses() == {b"2": b"503"}
    broker.told_nothing("busy")
    broker.ends("busy", token)
    broker.told("busy", *DISCONNECT)


def test_it_is_sent_on_if_each_of_its_services_has_others(broker: Play) -> None:
    words = [b"titanic:1", b"titanic:slots=2", b"titanic:service=0:upper", b"titanic:elsewhere"]
    broker.said("w", b"MDPW02", b"\1", b"echo", *words)
    broker.heard("w")
    broker.worker("x")
    broker.core.send_on(2, broker.now)
    broker.collect()
    broker.told_nothing("w")
    broker.worker("y", b"upper")
    broker.core.send_on(0, broker.now)
    broker.collect()
    broker.told_nothing("w")
    broker.core.send_on(1, broker.now)
    broker.collect()
    broker.told("w", *DISCONNECT)
    broker.said("w", b"MDPW02", b"\1", b"echo", *words)
    broker.heard("w")
    broker.core.send_on(None, broker.now)
    broker.collect()
    broker.told("w", *DISCONNECT)


def test_a_request_of_another_user_is_not_given_again(broker: Play) -> None:
    user = User("u", {Permission.CALL: ["*"]})
    core = broker.core
    core.guard = Guard(Access([user]), {}, core.stats)
    broker.registered("w", 3, "echo", "upper")
    core.receive("client", [b"MDPC02", b"\1", b"echo", b"q"], broker.now, user)
    broker.collect()
    broker.sends(b"1")
    core.revoke(Review(core.guard, lambda peer: NOBODY if peer == "client" else None), broker.now)
    broker.collect()
    assert core.workers, "it may go on"
    broker.heard("w")
    broker.said("w", *DISCONNECT)
    broker.failed("client", b"499")
    assert len(core.services[b"echo"].waiting) == 1


def test_the_shut_down(broker: Play) -> None:
    broker.registered("w", 3, "echo", "upper")
    broker.sends(b"1")
    broker.sends(b"suspect", alone=True)
    broker.given("w", b"1")
    broker.core.shut_down(broker.now)
    broker.collect()
    broker.told("w", *DISCONNECT)
    check_empty(broker.core)


# -- at random -----------------------------------------------------------------------------------------------

SERVICES = ["a", "b", "c"]


@each("seed", range(60))
def test_whatever_happens_each_request_is_answered_once(seed: int) -> None:
    """And the invariants hold after each step (`support.broker_invariants`)."""
    dice = random.Random(seed)
    broker = Play(max_deliveries=9)
    hands: dict[str, dict[bytes, bytes]] = {}
    told: Counter[bytes] = Counter()
    sent = 0

    def look() -> None:
        told.update(broker.statuses().keys())
        for name in list(hands):
            for frames in broker.heard(name):
                if frames == [*DISCONNECT]:
                    del hands[name]
                    break
                if frames[1] in (b"\2", b"\11"):
                    hands[name][frames[2]] = frames[-1]

    def join() -> None:
        name = f"worker{len(broker._inboxes)}"
        process = f"p{dice.randrange(3)}"
        if dice.random() < 0.3:
            broker.said(name, b"MDPW02", b"\1", dice.choice(SERVICES).encode(), b"titanic:process=" + process.encode())
        else:
            services = dice.sample(SERVICES, dice.randint(1, 3))
            limits = [dice.choice(["", "0:", "1:", "2:"]) for _ in services]
            broker.ready(name, dice.randint(1, 4), *map("".join, zip(limits, services, strict=True)), process=process)
        hands[name] = {}

    def step() -> None:
        nonlocal sent
        what = dice.random()
        name = dice.choice(list(hands)) if hands else ""
        if what < 0.35 or not name:
            sent += 1
            context = {"alone": True} if dice.random() < 0.1 else {}
            body = b"%d" % sent
            broker.sends(body, dice.choice(SERVICES).encode(), priority=dice.randrange(10), **context)
        elif what < 0.75 and hands[name]:
            token = dice.choice(list(hands[name]))
            del hands[name][token]
            broker.ends(name, token)
        elif what < 0.8 and broker.core.workers[name].names_services:
            back = dice.sample(list(hands[name]), dice.randint(0, len(hands[name])))
            for token in back:
                del hands[name][token]
            broker.slots(name, dice.randint(0, 4), *back)
        elif what < 0.85 and sent:
            mark = b"%d" % dice.randint(1, sent)
            for service in SERVICES:
                broker.core.cancel(QUEUE, service.encode(), mark, broker.now, b"running")
            broker.collect()
        elif what < 0.88:
            broker.core.withhold(QUEUE, broker.now)
            broker.collect()
        elif what < 0.91:
            del hands[name]
            broker.lost(name)
        elif what < 0.93:
            del hands[name]
            broker.said(name, *DISCONNECT)

    for _ in range(150):
        if len(hands) < 3:
            join()
        look()
        step()
        look()
    for name in list(hands):
        if broker.core.workers[name].names_services:
            broker.slots(name, 4)
    for service in SERVICES:
        broker.ready(f"last {service}", 4, service, process="last")
        hands[f"last {service}"] = {}
    look()
    while any(hands.values()):
        for name in list(hands):
            for token in list(hands.get(name, ())):
                del hands[name][token]
                broker.ends(name, token)
                look()
    assert told == {b"%d" % number: 1 for number in range(1, sent + 1)}
    for name in list(hands):
        broker.said(name, *DISCONNECT)
    check_empty(broker.core)
