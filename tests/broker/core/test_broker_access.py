"""The broker's core with a guard: what each user may do, in every dialect, and what he is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.broker_invariants import check
from support.secured import user

from broker import NOBODY, Access, BrokerConfig, Reach, User, user_from_json
from broker.access.authorization import Guard, Review
from broker.core import mmi
from broker.core.broker import BrokerCore
from broker.core.mdp import Frames, Peer

CLIENTS: dict[str, Frames] = {
    "0.1": [b"", b"MDPC01"],
    "0.2": [b"MDPC02", b"\1"],
    "majortomo": [b"", b"MDPC02", b"\2"],
    "queue": [b"MDPC02", b"\5"],
}
WORKERS: dict[str, Frames] = {
    "0.1": [b"", b"MDPW01", b"\1"],
    "0.2": [b"MDPW02", b"\1"],
    "majortomo": [b"", b"MDPW02", b"\1"],
}
CALLER = user("caller", call=["echo", "mail.*"])
WORKER = user("worker", work=["echo", "titanic.*"])
CHIEF = user("chief", admin=True)
FIGURES = user("figures", metrics=True)
BUSY = user("busy", call=["*"], limits={"messages": 3})


def rule(who: User, body: Frames) -> Frames | None:
    return None if who.name == "caller" else [b"403 forbidden: no"]


class Played:
    """A core, and what it said."""

    def __init__(self, **settings: Any) -> None:
        self.core = BrokerCore(BrokerConfig(**settings), now=0.0)
        self.guard = Guard(Access([CALLER, WORKER, CHIEF, FIGURES, BUSY]), {b"titanic.submit": rule}, self.core.stats)
        self.core.guard = self.guard
        self.now = 0.0

    def said(self, who: User | None, peer: str, *frames: bytes) -> list[Frames]:
        """What a peer is answered at once."""
        self.core.receive(peer, [*frames], self.now, who)
        check(self.core)
        return [frames or [] for to, frames in self.core.take_output() if to == peer]

    def ask(self, who: User | None, service: bytes, *body: bytes) -> Frames:
        ((*_, service_again, answer),) = [
            (*frames[:2], frames[2], frames[3:])
            for frames in self.said(who, f"asks as {who and who.name}", b"MDPC02", b"\1", service, *(body or (b"",)))
        ]
        assert service_again == service
        return answer

    def document(self, who: User | None, service: bytes) -> Any:
        (document,) = self.ask(who, service)
        return json.loads(document)


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.mark.parametrize("dialect", CLIENTS)
def test_call(played: Played, dialect: str) -> None:
    for who, allowed in {CALLER: True, None: True, WORKER: False, NOBODY: False, CHIEF: False}.items():
        said = played.said(who, "client", *CLIENTS[dialect], b"echo", b"hi")
        assert bool(said) is not allowed
        if not allowed:
            name = who.name if who is not None else ""
            assert said[0][-2] == b"MDPE01"
            expected = f"user '{name}'" if name else "a connection without a user"
            assert said[0][-1] == f"403 forbidden: {expected} may not call 'echo'; it needs call = [\"echo\"]".encode()
    assert len(played.core.services[b"echo"].waiting) == 2
    assert played.core.stats["forbidden"] == 3
    assert played.guard.refusals == {("worker", "call"): 1, ("", "call"): 1, ("chief", "call"): 1}


@pytest.mark.parametrize("dialect", WORKERS)
def test_work(played: Played, dialect: str) -> None:
    for who, allowed in {CALLER: False, NOBODY: False, CHIEF: False, WORKER: True, None: True}.items():
        (answer,) = played.said(who, f"worker {who and who.name}", *WORKERS[dialect], b"echo")
        assert (f"worker {who and who.name}" in played.core.workers) is allowed
        disconnect = {"0.1": [b"", b"MDPW01", b"\5"], "0.2": [b"MDPW02", b"\6"], "majortomo": [b"", b"MDPW02", b"\6"]}
        assert (answer == disconnect[dialect]) is not allowed
    assert played.core.stats["forbidden"] == played.core.stats["workers_refused"] == 3


def test_a_registered_worker_is_not_asked_again(played: Played) -> None:
    played.said(WORKER, "worker", b"MDPW02", b"\1", b"echo")
    played.core.receive("client", [b"MDPC02", b"\1", b"echo", b"hi"], 0.0, CALLER)
    ((_, request),) = played.core.take_output()
    assert request is not None
    assert request[2] == b"%016x" % 1, "a worker of any service is not told who asks"
    played.core.receive("worker", [b"MDPW02", b"\4", request[2], b"", b"ho"], 0.0, WORKER)
    assert played.core.take_output() == [("client", [b"MDPC02", b"\3", b"echo", b"ho"])]


def test_names_that_are_none_are_refused_as_such(played: Played) -> None:
    for name in (b"", b"a\nb", b"\xff", bytes(300)):
        assert played.ask(CALLER, name)[1].startswith(b"400 service name")
    assert played.guard.refusals == {}


def test_a_rule_decides_for_its_service(played: Played) -> None:
    played.core.integrate(b"titanic.submit")
    assert played.ask(WORKER, b"titanic.submit", b"x") == [b"403 forbidden: no"]
    assert played.said(CALLER, "client", b"MDPC02", b"\1", b"titanic.submit", b"x") == []
    ((_, (request,)),) = played.core.take_batches()
    assert request.user is CALLER
    assert played.guard.refusals == {("worker", "titanic.submit"): 1}


def test_a_rule_that_fails_refuses(played: Played) -> None:
    def fail(who: User, body: Frames) -> Frames | None:
        raise KeyError("a body")

    played.guard.rules[b"titanic.submit"] = fail
    played.core.integrate(b"titanic.submit")
    assert played.ask(CALLER, b"titanic.submit", b"x") == [
        b"MDPE01",
        b"500 the permission check of this service failed: KeyError",
    ]
    assert played.core.take_batches() == []


def test_a_queue_apart_is_told_who_asks(played: Played) -> None:
    played.said(WORKER, "queue", b"MDPW02", b"\1", b"titanic.submit")
    played.core.receive("client", [b"MDPC02", b"\1", b"titanic.submit", b"x"], 0.0, CALLER)
    ((_, request),) = played.core.take_output()
    assert request is not None
    number, _, document = request[2].partition(b" ")
    assert number == b"%016x" % 1
    assert user_from_json(document).name == "caller"
    played.core.receive("queue", [b"MDPW02", b"\4", request[2], b"", b"200"], 0.0, WORKER)
    assert played.core.take_output() == [("client", [b"MDPC02", b"\3", b"titanic.submit", b"200"])]
    played.core.receive("own", [b"MDPC02", b"\1", b"titanic.submit", b"x"], 0.0)
    ((_, request),) = played.core.take_output()
    assert request is not None
    assert request[2] == b"%016x" % 2, "this process's own requests are nobody's"


def test_whoever_works_for_all_cannot_take_the_queue_s_services(played: Played) -> None:
    greedy = user("greedy", work=["*"])
    assert played.said(greedy, "worker", b"MDPW02", b"\1", b"titanic.submit") == [[b"MDPW02", b"\6"]]
    assert played.said(greedy, "worker", b"MDPW02", b"\1", b"mmi.services") == [[b"MDPW02", b"\6"]]


# -- mmi ---------------------------------------------------------------------------------------------------


def test_a_user_is_told_of_the_services_that_he_may_use(played: Played) -> None:
    for name in (b"echo", b"mail.send", b"secret"):
        played.said(None, name.decode(), b"MDPW02", b"\1", name)
    everything = ["echo", "mail.send", "secret"]
    seen = {CALLER: ["echo", "mail.send"], WORKER: ["echo"], CHIEF: everything, FIGURES: everything, NOBODY: []}
    for who, names in {**seen, None: everything}.items():
        assert [one["name"] for one in played.document(who, b"mmi.services")] == names
        assert played.document(who, b"mmi.workers") == dict.fromkeys(names, 1)
        for name in everything:
            status = b"200" if name in names else b"404"
            assert played.ask(who, b"mmi.service", name.encode()) == [status]
    assert played.ask(CALLER, b"mmi.service", b"mmi.services") == [b"200"]


def test_services_with_rules_are_seen_by_every_user(played: Played) -> None:
    played.core.integrate(b"titanic.submit")
    for who in (CALLER, WORKER, BUSY):
        assert played.ask(who, b"mmi.service", b"titanic.submit") == [b"200"]
        assert "titanic.submit" in [one["name"] for one in played.document(who, b"mmi.services")]
    assert played.ask(NOBODY, b"mmi.service", b"titanic.submit") == [b"404"]
    assert played.document(NOBODY, b"mmi.services") == []


def test_figures_need_their_permission(played: Played) -> None:
    for who in (CHIEF, FIGURES, None):
        assert played.document(who, b"mmi.stats")["forbidden"] == 0
    assert played.ask(CALLER, b"mmi.stats")[1].startswith(b"403 forbidden: user 'caller' may not see mmi.stats")
    assert played.document(CHIEF, b"mmi.stats")["forbidden"] == 1
    assert played.guard.refusals == {("caller", "metrics"): 1}


def test_the_broker_says_that_it_has_access_control(played: Played) -> None:
    assert played.document(CALLER, b"mmi.broker")["access"] is True
    played.core.guard = None
    assert "access" not in played.document(None, b"mmi.broker")


def test_nobody_can_cancel_what_is_another_s(played: Played) -> None:
    played.said(CALLER, "client", b"mark", b"", b"MDPC02", b"\1", b"echo", b"hi")
    assert played.ask(BUSY, b"mmi.cancel", b"echo", b"mark") == [b"404"]
    assert len(played.core.services[b"echo"].waiting) == 1


@pytest.mark.parametrize("who", [CALLER, user("queue", call=["echo"], work=["titanic.*"])])
def test_only_a_queue_can_have_a_process_killed(played: Played, who: User) -> None:
    """It may have requests of others, too."""
    words = [b"titanic:1", b"titanic:slots=2", b"titanic:children", b"titanic:kill"]
    played.said(WORKER, "works", b"MDPW02", b"\1", b"echo", *words)
    played.said(who, "asks", b"1", b"", b"MDPC02", b"\1", b"echo", b"x")
    cancel = [b"2", b"", b"MDPC02", b"\1", b"mmi.cancel", b"echo", b"1", b"kill"]
    played.core.receive("asks", cancel, played.now, who)
    said = {to: frames for to, frames in played.core.take_output() if frames}
    kills = who is not CALLER
    assert said["asks"][-1] == (b"202" if kills else b"404")
    assert said["works"][1] == b"\7"
    assert said["works"][4:] == ([b"kill"] if kills else [])


def test_sight_is_the_same_as_to_look_at_each() -> None:
    names = [b"echo", b"mail.send", b"titanic.submit", b"titanic.x", b"mmi.stats", b"secret", "é".encode(), b"a\nb"]
    patterns = ["*", "mail.*", "titanic.*", "titanic.?", "[es]*", "é", "mmi.*", "nothing"]
    guard = Guard(Access([]), {b"titanic.submit": rule})
    for first in patterns:
        for second in patterns:
            who = user("somebody", call=[first], work=[second])
            sees = guard.visible_to(who)
            assert [sees(name) for name in names] == [guard.sees(who, name) for name in names], (first, second)
    assert not any(map(guard.visible_to(NOBODY), names))


def test_large_documents_are_kept_for_a_while_for_each_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmi, "SMALL", 1)
    monkeypatch.setattr(mmi, "FRESH_FOR", 1.0)
    monkeypatch.setattr(mmi, "MOST_KEPT", 3)
    played = Played()
    for name in (b"echo", b"mail.send", b"secret"):
        played.said(None, name.decode(), b"MDPW02", b"\1", name)
    assert len(played.document(CALLER, b"mmi.workers")) == 2
    assert len(played.document(WORKER, b"mmi.workers")) == 1, "nobody reads what another may"
    assert len(played.document(CHIEF, b"mmi.workers")) == 3
    played.said(None, "more", b"MDPW02", b"\1", b"mail.more")
    assert len(played.document(CALLER, b"mmi.workers")) == 2, "not made anew"
    assert len(played.document(BUSY, b"mmi.workers")) == 4, "the fourth takes the place of the first"
    assert len(played.document(CALLER, b"mmi.workers")) == 3
    played.core.documents.forget()
    assert len(played.document(CHIEF, b"mmi.workers")) == 4


# -- limits and counting -----------------------------------------------------------------------------------


def test_messages_a_second(played: Played) -> None:
    played.core.integrate(b"titanic.submit")
    said = [played.said(BUSY, "client", b"MDPC02", b"\1", b"x", b"") for _ in range(4)]
    assert [bool(one) for one in said] == [False, False, False, True]
    assert said[3][0][-1] == b"429 user 'busy' sends more than 3 messages a second; try again later"
    assert played.ask(BUSY, b"mmi.broker")[1].startswith(b"429")
    assert played.ask(BUSY, b"titanic.submit")[0].startswith(b"500 busy: user 'busy' sends more")
    assert played.said(CALLER, "other", b"MDPC02", b"\1", b"echo", b"") == [], "others are not held up"
    played.now = 1.0
    assert played.said(BUSY, "client", b"MDPC02", b"\1", b"x", b"") == []
    assert played.guard.refusals == {("busy", "messages"): 3}


def test_what_a_good_worker_says_is_not_limited() -> None:
    played = Played()
    limited = user("limited", work=["echo"], limits={"messages": 1})
    played.said(limited, "worker", b"MDPW02", b"\1", b"echo")
    for _ in range(10):
        assert played.said(limited, "worker", b"MDPW02", b"\5") == []
    assert "worker" in played.core.workers


def test_requests_of_a_user_that_wait(played: Played) -> None:
    """He cannot fill the queue for others, however his requests leave it."""
    one, other = user("one", call=["*"], limits={"waiting": 2}), user("other", call=["*"])

    def asks(who: User, mark: bytes) -> list[Frames]:
        return played.said(who, "client", mark, b"", b"MDPC02", b"\1", b"echo", b"")

    def waits(*marks: bytes) -> None:
        """Two may wait, and no third."""
        for mark in marks:
            assert asks(one, mark) == []
        ((*_, error),) = asks(one, b"more")
        assert error == b"503 queue full: 2 requests of user 'one' are waiting; try again later"

    waits(b"1", b"2")
    assert asks(other, b"3") == []
    assert played.ask(one, b"mmi.cancel", b"echo", b"1") == [b"404"], "that is another connection"
    played.said(one, "client", b"MDPC02", b"\1", b"mmi.cancel", b"echo", b"1")
    waits(b"4")
    played.said(None, "worker", b"MDPW02", b"\1", b"echo")  # takes 2
    waits(b"5")
    played.core.lost("worker", 0.0)  # it waits again: three do
    played.said(None, "worker", b"MDPW02", b"\1", b"echo")
    waits()
    played.core.take_output()
    played.core.tick(played.core.config.request_expiry + 20)
    played.core.take_output()
    assert played.core.waiting.count == 0
    waits(b"6", b"7")
    played.core.revoke(Review(played.guard, lambda peer: NOBODY), 0.0)
    played.core.take_output()
    waits(b"8", b"9")


def test_words_of_workers_are_counted(played: Played) -> None:
    """Apart from requests: neither keeps out the other."""
    busy = user("busy", work=["echo"], call=["echo"], limits={"messages": 3})
    ready, disconnect = (b"MDPW02", b"\1", b"echo"), [b"MDPW02", b"\6"]
    for _ in range(2):
        assert played.said(busy, "worker", *ready) != [disconnect]
        assert played.said(busy, "worker", b"MDPW02", b"\6") == []
    assert played.said(busy, "worker", b"MDPW02", b"\5") == [disconnect], "out of turn, and counted"
    assert played.guard.refusals == {}
    assert played.said(busy, "worker", *ready) == [disconnect]
    assert played.core.workers == {}
    assert played.guard.refusals == {("busy", "messages"): 1}
    (report,) = played.guard.take_reports()
    assert report.first.why == "workers of user 'busy' send more than 3 messages a second"
    assert played.ask(busy, b"mmi.service", b"echo") == [b"404"], "his requests have a bucket of their own"
    played.now += 0.4
    assert played.said(busy, "worker", *ready) != [disconnect]


def test_a_flood_of_heartbeats(played: Played) -> None:
    busy = user("busy", work=["echo"], limits={"messages": 3})
    played.said(busy, "worker", b"MDPW02", b"\1", b"echo")
    sent = 0
    while "worker" in played.core.workers:
        played.now += 0.001
        played.said(busy, "worker", b"MDPW02", b"\5")
        sent += 1
    assert sent < 4 * 15 + 10
    assert played.guard.refusals == {("busy", "messages"): 1}


def test_a_good_worker_is_never_counted(played: Played) -> None:
    """However low the limit is, and however much his user's clients say."""
    busy = user("busy", work=["echo"], call=["echo"], limits={"messages": 1})
    played.said(busy, "worker", b"MDPW02", b"\1", b"echo")
    for _ in range(100):
        played.core.receive("client", [b"MDPC02", b"\1", b"echo", b"hi"], played.now, CALLER)
        ((_, request),) = played.core.take_output()
        assert request is not None
        for word in (b"\3", b"\3", b"\4"):
            assert len(played.said(busy, "worker", b"MDPW02", word, request[2], b"", b"ho")) == 0
        played.said(busy, "other client", b"MDPC02", b"\1", b"mmi.broker", b"")
    for _ in range(100):
        played.now += 0.25
        assert played.said(busy, "worker", b"MDPW02", b"\5") == []
    played.now += 9.0
    for _ in range(36):  # they have waited somewhere
        assert played.said(busy, "worker", b"MDPW02", b"\5") == []
    assert "worker" in played.core.workers
    assert played.guard.refusals == {("busy", "messages"): 99}, "those of the client"
    assert played.said(busy, "worker", b"MDPW02", b"\6") == []


def test_reports_are_bounded_and_have_no_body(played: Played) -> None:
    for number in range(100):
        played.said(CALLER, "client", b"MDPC02", b"\1", b"secret%d" % number, b"a body")
    (report,) = played.guard.take_reports()
    why = "forbidden: user 'caller' may not call 'secret0'; it needs call = [\"secret0\"]"
    assert report.first == ("caller", "call", "secret0", "client", why)
    assert report.last == ("caller", "call", "secret99", "client", why.replace("secret0", "secret99"))
    assert report.count == 100
    assert list(played.guard.take_reports()) == []
    assert played.guard.refusals == {("caller", "call"): 100}


def test_counts_of_users_that_are_gone_go(played: Played) -> None:
    played.said(CALLER, "client", b"MDPC02", b"\1", b"secret", b"")
    played.said(NOBODY, "client", b"MDPC02", b"\1", b"secret", b"")
    played.guard.swap(Access([WORKER]))
    assert played.guard.refusals == {("", "call"): 1}


# -- other users -------------------------------------------------------------------------------------------


def test_revoked(played: Played) -> None:
    """Workers go, requests that wait are answered with 499; what is done for others goes on."""
    played.said(WORKER, "worker", b"MDPW02", b"\1", b"echo")
    played.said(None, "own worker", b"MDPW02", b"\1", b"own")
    for number in range(3):
        played.core.receive("client", [b"%d" % number, b"", b"MDPC02", b"\1", b"mail.x", b""], 0.0, CALLER)
    played.core.receive("other", [b"", b"MDPC02", b"\1", b"mail.x", b""], 0.0, BUSY)
    played.core.receive("own", [b"", b"MDPC02", b"\1", b"mail.x", b""], 0.0)
    assert played.core.take_output() == []
    whose: dict[Peer, User | None] = {"other": BUSY, "own": None, "own worker": None}
    played.core.revoke(Review(played.guard, lambda peer: whose.get(peer, NOBODY)), 0.0)
    check(played.core)
    assert list(played.core.workers) == ["own worker"]
    assert len(played.core.services[b"mail.x"].waiting) == 2
    output = played.core.take_output()
    assert [peer for peer, _ in output] == ["worker", "client", "client", "client"]
    assert all(b"499 " in frames[-1] for _, frames in output[1:] if frames is not None)


def test_a_user_who_may_do_less(played: Played) -> None:
    played.said(WORKER, "worker", b"MDPW02", b"\1", b"echo")
    played.core.receive("client", [b"MDPC02", b"\1", b"echo", b""], 0.0, CALLER)
    played.core.receive("client", [b"MDPC02", b"\1", b"mail.x", b""], 0.0, CALLER)
    played.core.take_output()
    less = user("caller", call=["echo"])
    whose: dict[Peer, User | None] = {"client": less, "worker": user("worker", work=["titanic.*"])}
    played.core.revoke(Review(played.guard, lambda peer: whose.get(peer, NOBODY)), 0.0)
    check(played.core)
    assert played.core.workers == {}
    assert list(played.core.services) == [b"echo"], "the request that the worker had waits for another"
    assert [peer for peer, _ in played.core.take_output()] == ["worker", "client"]


def test_a_request_that_another_worker_gets_is_of_a_user_who_may_do_less(played: Played) -> None:
    played.said(None, "worker", b"MDPW02", b"\1", b"titanic.x")
    played.said(None, "second", b"MDPW02", b"\1", b"titanic.x")
    played.core.receive(
        "client", [b"MDPC02", b"\1", b"titanic.x", b""], 0.0, user("all", call=["titanic.*"], read="all")
    )
    played.core.take_output()
    less = user("all", call=["titanic.*"], read="own")
    whose: dict[Peer, User | None] = {"client": less, "worker": None, "second": None}
    played.core.revoke(Review(played.guard, lambda peer: whose.get(peer, NOBODY)), 0.0)
    played.core.lost("worker", 0.0)
    check(played.core)
    (frames,) = (frames for peer, frames in played.core.take_output() if peer == "second" and frames is not None)
    assert user_from_json(frames[2].partition(b" ")[2]).read is Reach.OWN


def test_what_a_worker_was_told_of_a_user_who_may_do_less_is_asked_anew(played: Played) -> None:
    """A queue apart answers by what he was allowed when he asked, and that may take an hour."""
    for name in ("worker", "second", "third"):
        played.said(WORKER, name, b"MDPW02", b"\1", b"titanic.wait")
    reader, auditor = (user(name, call=["titanic.*"], read="all") for name in ("reader", "auditor"))
    played.core.receive("reads", [b"MDPC02", b"\1", b"titanic.wait", b""], 0.0, reader)
    played.core.receive("audits", [b"MDPC02", b"\1", b"titanic.wait", b""], 0.0, auditor)
    (_, first), (_, other) = played.core.take_output()
    assert first is not None
    assert other is not None
    whose: dict[Peer, User | None] = {
        "reads": user("reader", call=["titanic.*"], read="own"),
        "audits": user("auditor", call=["titanic.*"], read="all"),
        **dict.fromkeys(("worker", "second", "third"), WORKER),
    }
    played.guard.swap(played.guard.access)
    played.core.revoke(Review(played.guard, lambda peer: whose.get(peer, NOBODY)), 0.0)
    check(played.core)
    dismissed, again = played.core.take_output()
    assert dismissed == ("worker", [b"MDPW02", b"\6"])
    assert again[0] == "third"
    assert again[1] is not None
    assert user_from_json(again[1][2].partition(b" ")[2]).read is Reach.OWN
    assert played.core.stats["given_up"] == 0
    (held,) = played.core.workers["third"].requests.values()
    assert held.deliveries == 1, "the one before did not die of it"
    said = played.said(WORKER, "worker", b"MDPW02", b"\4", first[2], b"", b"200", b"secret")
    assert said == [[b"MDPW02", b"\6"]], "nobody gets its reply"
    played.core.receive("second", [b"MDPW02", b"\4", other[2], b"", b"200"], 0.0, WORKER)
    assert played.core.take_output() == [("audits", [b"MDPC02", b"\3", b"titanic.wait", b"200"])], (
        "of him it still holds"
    )


def test_what_is_asked_by_who_is_nobody_any_more_no_other_worker_gets(played: Played) -> None:
    for name in ("worker", "second"):
        played.said(WORKER, name, b"MDPW02", b"\1", b"titanic.wait")
    played.core.receive("gone", [b"MDPC02", b"\1", b"titanic.wait", b""], 0.0, user("gone", call=["titanic.*"]))
    played.core.take_output()
    whose: dict[Peer, User | None] = {"worker": WORKER, "second": WORKER}
    played.core.revoke(Review(played.guard, lambda peer: whose.get(peer, NOBODY)), 0.0)
    check(played.core)
    assert [peer for peer, _ in played.core.take_output()] == ["worker", "gone"]


def test_what_was_read_before_a_reload_is_handed_over_as_what_holds_after_it(played: Played) -> None:
    """Or who had just asked to wait got the reply within the hour, though a reload had taken his read permission."""
    for service in (b"titanic.wait", b"echo"):
        played.core.integrate(service)
    played.guard.rules[b"titanic.wait"] = lambda who, body: None
    reader, late = user("reader", read="own", call=["echo"]), user("late", call=["echo"])
    for peer, who in (("reads", reader), ("gone", reader), ("late", late), ("here", None)):
        played.core.receive(peer, [b"MDPC02", b"\1", b"titanic.wait", b"60"], 0.0, who)
    played.core.receive("late", [b"MDPC02", b"\1", b"echo", b"x"], 0.0, late)
    whose: dict[Peer, User | None] = {"reads": user("reader"), "late": user("late"), "here": None}
    played.core.revoke(Review(played.guard, lambda peer: whose.get(peer, NOBODY)), 0.0)
    check(played.core)
    told = played.core.take_output()
    assert [peer for peer, _ in told] == ["gone", "late"]
    played.core.receive("late", [b"MDPC02", b"\1", b"echo", b"y"], 0.0, user("late", call=["echo"]))
    (_, waits), (_, echoed) = played.core.take_batches()
    assert [(request.peer, request.user) for request in waits] == [
        (peer, whose[peer]) for peer in ("reads", "late", "here")
    ]
    assert [request.body for request in echoed] == [[b"y"]]
    assert played.core.take_batches() == []


def test_a_worker_whose_connection_is_gone_was_refused_nothing(played: Played) -> None:
    """A reload finds it before its silence does: the log said that somebody without a name was refused."""
    for name in ("gone", "lacks"):
        played.said(WORKER, name, b"MDPW02", b"\1", b"echo")
    whose: dict[Peer, User | None] = {"lacks": user("worker", work=["other"])}
    played.core.revoke(Review(played.guard, lambda peer: whose.get(peer, NOBODY)), 0.0)
    check(played.core)
    assert not played.core.workers
    assert played.guard.refusals == {("worker", "work"): 1}


def test_a_revoked_worker_gets_nothing_of_another(played: Played) -> None:
    """Neither is one left that had nothing to do while the other is sent away."""
    for name in ("busy", "idle"):
        played.said(WORKER, name, b"MDPW02", b"\1", b"echo")
    played.core.receive("client", [b"MDPC02", b"\1", b"echo", b"secret"], 0.0, CALLER)
    ((to, _),) = played.core.take_output()
    assert to == "busy"
    played.core.revoke(Review(played.guard, lambda peer: CALLER if peer == "client" else NOBODY), 0.0)
    check(played.core)
    assert played.core.take_output() == [("busy", [b"MDPW02", b"\6"]), ("idle", [b"MDPW02", b"\6"])]
    assert len(played.core.services[b"echo"].waiting) == 1


HALVES: Any = pytest.mark.parametrize(
    ("settings", "size", "told"),
    [
        ({"max_waiting": 10}, 1, b"503 queue full: 5 requests of user 'busy' are waiting; try again later"),
        ({"max_waiting_per_service": 10}, 1, b"503 queue full: 5 requests of user 'busy' are waiting; try again later"),
        ({"max_waiting_bytes": 10_000}, 807, b"503 queue full: 5000 bytes of user 'busy' are waiting; try again later"),
    ],
    ids=["in all", "for a service", "bytes"],
)


@HALVES
def test_one_user_has_half_of_what_may_wait(settings: dict[str, int], size: int, told: bytes) -> None:
    """However many connections he has. What he may send no more of is free again when it has been taken."""
    played = Played(**settings, request_expiry=10.0)
    busy = user("busy", call=["*"])

    def asked(who: User, peer: int) -> Frames:
        answers = played.said(who, f"{who.name} {peer}", b"m", b"", b"MDPC02", b"\1", b"echo", b"x" * size)
        return answers[0][-1:] if answers else []

    assert [asked(busy, peer) for peer in range(8)] == [[]] * 5 + [[told]] * 3
    assert asked(CALLER, 0) == [], "there is room for others"
    assert played.said(busy, "busy 0", b"MDPC02", b"\1", b"mmi.cancel", b"echo", b"m")[-1][-1] == b"200"
    assert [asked(busy, 0), asked(busy, 1)] == [[], [told]]
    assert played.said(WORKER, "worker", *WORKERS["0.2"], b"echo")
    assert [asked(busy, 5), asked(busy, 6)] == [[], [told]]
    played.core.lost("worker", played.now)  # what it had waits again, before all others
    check(played.core)
    assert asked(busy, 6)[-1].startswith(b"503 queue full: 6")
    played.core.take_output()
    played.now = 11.0
    played.core.tick(played.now)
    check(played.core)
    assert played.core.waiting.of_users == {}
    assert asked(busy, 6) == []


def test_one_user_has_half_of_the_workers_places() -> None:
    played = Played(max_workers=6)
    for number in range(3):
        assert played.said(WORKER, f"w{number}", b"MDPW02", b"\1", b"echo")[0][1] == b"\5"
    assert played.said(WORKER, "one more", b"MDPW02", b"\1", b"echo")[0][1] == b"\6"
    (report,) = played.guard.take_reports()
    assert (report.first.user, report.first.action) == ("worker", "workers")
    assert report.first.why == "user 'worker' has 3 workers; the maximum per user is 3 of 6"
    other = user("other", work=["echo"])
    assert played.said(other, "o", b"MDPW02", b"\1", b"echo")[0][1] == b"\5"
    played.core.lost("w0", played.now)
    check(played.core)
    assert played.said(WORKER, "one more", b"MDPW02", b"\1", b"echo")[0][1] == b"\5"


def test_an_only_user_has_all_places() -> None:
    played = Played(max_workers=4)
    played.guard.swap(Access([WORKER]))
    for number in range(4):
        assert played.said(WORKER, f"w{number}", b"MDPW02", b"\1", b"echo")[0][1] == b"\5"


def test_workers_of_a_revoked_user_have_no_places() -> None:
    played = Played(max_workers=2)
    assert played.said(WORKER, "w", b"MDPW02", b"\1", b"echo")[0][1] == b"\5"
    played.core.revoke(Review(played.guard, lambda peer: NOBODY), played.now)
    check(played.core)
    assert not played.core.registry.of_users


def test_who_is_revoked_has_no_share_any_more(played: Played) -> None:
    played.said(CALLER, "client", *CLIENTS["0.2"], b"echo", b"x")
    assert played.core.waiting.of_users.keys() == {"caller"}
    played.core.revoke(Review(played.guard, lambda peer: NOBODY), played.now)
    check(played.core)
    assert played.core.waiting.of_users == {}


def test_only_a_queue_may_say_what_a_request_is(played: Played) -> None:
    """Anybody else could have a worker take one request for another, or another user's."""
    context = b'{"uuid":"00"}'
    queue = user("queue", work=["titanic.*"], call=["*"])
    for who, said in ((CALLER, b""), (queue, context), (None, context)):
        played.said(WORKER, f"worker of {who}", b"MDPW02", b"\1", b"echo")
        played.core.receive("client", [context, b"mark", b"", b"MDPC02", b"\5", b"echo", b"hi"], 0.0, who)
        ((_, request),) = played.core.take_output()
        assert request is not None
        assert request[2][16:] == said
    played.said(queue, "queue", b"MDPW02", b"\1", b"titanic.submit")
    played.core.receive("own", [context, b"mark", b"", b"MDPC02", b"\5", b"titanic.submit", b"x"], 0.0)
    ((_, request),) = played.core.take_output()
    assert request is not None
    assert len(request[2]) == 16, "there the broker says who asks"


def test_what_is_no_context_is_an_address(played: Played) -> None:
    for frame, dialect in ((b"x", b"\5"), (b"{" + bytes(5000), b"\5"), (b"{}", b"\1")):
        played.said(WORKER, repr(frame[:9]), b"MDPW02", b"\1", b"echo")
        played.core.receive("client", [frame, b"mark", b"", b"MDPC02", dialect, b"echo", b"hi"], 0.0)
        ((peer, request),) = played.core.take_output()
        assert request is not None
        assert len(request[2]) == 16
        played.core.receive(peer, [b"MDPW02", b"\4", request[2], b"", b"ho"], 0.0, WORKER)
        ((_, reply),) = played.core.take_output()
        assert reply is not None
        assert reply[:3] == [frame, b"mark", b""]
