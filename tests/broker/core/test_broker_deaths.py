"""A worker dies with a request of a queue in hand: the queue is told, and whether others of its process had some."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.broker_invariants import check_empty
from support.transcript import Transcript

from broker.access.users import User
from broker.core.routing import MOST_NOTED

QUEUE = "queue"


class Play(Transcript):
    """A queue, and workers that name their processes."""

    def worker_of(self, process: str, name: str, service: bytes = b"echo") -> None:
        self.said(name, b"MDPW02", b"\1", service, b"titanic:process=" + process.encode())
        self.told(name, b"MDPW02", b"\5")

    def parent(self, name: str, slots: int = 3) -> None:
        """A worker whose requests processes of its own execute."""
        words = [b"titanic:process=" + name.encode(), b"titanic:slots=%d" % slots, b"titanic:children"]
        self.said(name, b"MDPW02", b"\1", b"echo", b"titanic:1", *words)
        self.told(name, b"MDPW02", b"\5")

    def given(self, name: str, body: bytes) -> bytes:
        """The `client` frame of the next request of a parent."""
        (message,) = self.heard(name)
        assert message[1] == b"\11"
        assert message[-1] == body
        return message[2]

    def sends(self, body: bytes, service: bytes = b"echo", **context: Any) -> None:
        """The queue sends a request, named by its body."""
        said = json.dumps({"uuid": body.decode(), "attempt": 1, **context}, separators=(",", ":"))
        self.said(QUEUE, said.encode(), body, b"", b"MDPC02", b"\5", service, body)

    def context(self, worker: str, body: bytes) -> dict[str, Any]:
        """What a worker is told of the request that it was given."""
        return dict(json.loads(self.working(worker, body)[16:]))

    def refused(self, body: bytes, status: bytes, service: bytes = b"echo") -> None:
        """The broker has given a request back to the queue."""
        error = next(frames for frames in self._inboxes[QUEUE] if frames[1] == body)
        self._inboxes[QUEUE].remove(error)
        assert error[3:7] == [b"MDPC02", b"\7", service, b"MDPE01"]
        assert error[7][:3] == status

    def ends(self, name: str, token: bytes) -> None:
        self.final(name, token, b"done")
        self._inboxes[QUEUE].popleft()


@pytest.fixture
def broker() -> Play:
    return Play()


@pytest.mark.parametrize("way", ["lost", "silent"])
def test_a_death_with_one_request_in_hand_is_told_to_the_queue(broker: Play, way: str) -> None:
    """It counts attempts: no second worker is given the request by the broker."""
    broker.worker_of("p", "a")
    broker.worker_of("p", "b")
    broker.worker_of("other", "c")
    broker.sends(b"poison")
    broker.working("a", b"poison")
    if way == "lost":
        broker.lost("a")
    else:
        for _ in range(9):
            broker.later(2.5)
            for name in ("b", "c"):
                broker.said(name, b"MDPW02", b"\5")
    broker.refused(b"poison", b"500")
    assert not any(frames[1] == b"\2" for name in ("b", "c") for frames in broker.heard(name))


def test_where_attempts_of_other_queues_failed_is_not_remembered_for_ever(broker: Play) -> None:
    """Only the queue in this process takes that."""
    broker.worker_of("p", "a")
    (worker,) = broker.core.workers.values()
    noted = broker.core.failed_at = {b"%d" % number: worker.identity for number in range(MOST_NOTED)}
    broker.sends(b"poison")
    broker.lost("a")
    assert (len(noted), next(iter(noted)), noted.popitem()[1]) == (MOST_NOTED, b"1", worker.identity)


def test_of_a_process_with_several_in_hand_each_may_be_the_cause(broker: Play) -> None:
    for name in ("a", "b", "c"):
        broker.worker_of("p", name)
    broker.worker_of("other", "d")
    for body in (b"1", b"2", b"3", b"4"):
        broker.sends(body)
    for name in ("a", "b", "c"):
        broker.lost(name)
    for body in (b"1", b"2", b"3"):
        broker.refused(body, b"502")
    broker.lost("d")
    broker.refused(b"4", b"500")
    check_empty(broker.core)


def test_of_those_that_fall_silent_together_each_may_be_the_cause(broker: Play) -> None:
    for name in ("a", "b", "c"):
        broker.worker_of("p", name)
    for body in (b"1", b"2"):
        broker.sends(body)
    broker.later(60)
    for body in (b"1", b"2"):
        broker.refused(body, b"502")
    check_empty(broker.core)


def test_what_never_reached_a_worker_is_not_the_cause_and_shares_no_blame(broker: Play) -> None:
    """The process is dead, which shows when something is sent to another of its workers."""
    for name in ("a", "b"):
        broker.worker_of("p", name)
    broker.sends(b"poison")
    broker.sends(b"innocent")
    broker.working("a", b"poison")
    (request,) = broker.heard("b")
    broker.unsent("b", request)
    broker.told_nothing(QUEUE)
    broker.lost("a")
    broker.refused(b"poison", b"500")
    broker.worker_of("q", "c")
    broker.working("c", b"innocent")


@pytest.mark.parametrize("way", ["good-bye", "drain"])
def test_a_worker_that_leaves_has_not_died_and_deliveries_are_counted(broker: Play, way: str) -> None:
    broker.worker_of("p", "a")
    broker.worker_of("q", "b")
    broker.sends(b"1", delivery=4)
    assert broker.context("a", b"1")["delivery"] == 4
    if way == "drain":
        broker.core.drain(broker.now)
        broker.collect()
    broker.said("a", b"MDPW02", b"\6")
    if way == "drain":
        broker.refused(b"1", b"503")
        return
    assert broker.context("b", b"1")["delivery"] == 5
    broker.lost("b")
    broker.refused(b"1", b"500")


def test_the_death_of_what_passes_requests_on_says_nothing_of_them(broker: Play) -> None:
    """A gateway has many workers: none of them runs alone in it, or is charged for its end."""
    for name in ("a", "b"):
        broker.worker_of("", name)
    broker.sends(b"1", alone=True)
    broker.sends(b"2", alone=True)
    for name, body in (("a", b"1"), ("b", b"2")):
        broker.working(name, body)
        broker.lost(name)
        broker.told_nothing(QUEUE)
        broker.worker_of(f"p{name}", f"{name}'s successor")
        broker.working(f"{name}'s successor", body)


def test_plain_requests_keep_their_deliveries(broker: Play) -> None:
    for name in ("a", "b"):
        broker.worker_of("p", name)
    broker.request("client", b"plain")
    broker.sends(b"stored")
    broker.lost("a")
    broker.lost("b")
    broker.refused(b"stored", b"502")
    broker.worker_of("q", "c")
    broker.working("c", b"plain")


# -- alone ---------------------------------------------------------------------------------------------------


def test_alone_nothing_else_is_given_to_the_process(broker: Play) -> None:
    for name in ("a", "b"):
        broker.worker_of("p", name)
    broker.worker_of("p", "other service", b"upper")
    broker.sends(b"suspect", alone=True)
    token = broker.working("a", b"suspect")
    broker.sends(b"1")
    broker.sends(b"2", b"upper")
    broker.told_nothing("b", "other service")
    broker.ends("a", token)
    broker.working("a", b"1")
    broker.working("other service", b"2")
    broker.told_nothing("b")


def test_alone_waits_for_what_its_process_does(broker: Play) -> None:
    for name in ("a", "b", "c"):
        broker.worker_of("p", name)
    broker.sends(b"1")
    broker.sends(b"2")
    broker.sends(b"suspect", alone=True)
    tokens = [broker.working("a", b"1"), broker.working("b", b"2")]
    broker.told_nothing("c")
    broker.ends("a", tokens[0])
    broker.sends(b"3")
    broker.told_nothing("a", "c")
    broker.ends("b", tokens[1])
    broker.working("c", b"suspect")
    broker.lost("c")
    broker.refused(b"suspect", b"500")
    assert [broker.heard(name) for name in ("a", "b")].count([]) == 1, "one of them does what waited"


def test_alone_takes_the_process_that_has_least_in_hand(broker: Play) -> None:
    for name in ("a", "b"):
        broker.worker_of("p", name)
    broker.worker_of("q", "c")
    broker.sends(b"1")
    broker.working("a", b"1")
    broker.sends(b"suspect", alone=True)
    broker.working("c", b"suspect")
    broker.sends(b"2")
    broker.working("b", b"2")


@pytest.mark.parametrize("way", ["cancel", "withhold", "drain", "its worker leaves", "its worker dies"])
def test_while_it_waits_it_is_with_no_worker(broker: Play, way: str) -> None:
    for name in ("a", "b", "c"):
        broker.worker_of("p", name)
    broker.sends(b"1")
    token = broker.working("a", b"1")
    broker.sends(b"suspect", alone=True)
    if way == "cancel":
        assert broker.core.cancel(QUEUE, b"echo", b"suspect", broker.now, b"running") == b"200"
        broker.collect()
        broker.refused(b"suspect", b"499")
    elif way == "withhold":
        broker.core.withhold(QUEUE, broker.now)
        broker.collect()
        broker.refused(b"suspect", b"499")
    elif way == "drain":
        broker.core.drain(broker.now)
        broker.collect()
        broker.refused(b"suspect", b"503")
    elif way == "its worker leaves":
        broker.said("b", b"MDPW02", b"\6")
        broker.told_nothing("c", QUEUE)
    else:
        broker.lost("b")
        broker.told_nothing("c", QUEUE)
    broker.ends("a", token)
    if way.startswith("its"):
        (given,) = [frames for name in ("a", "c") for frames in broker.heard(name)]
        assert given[-1] == b"suspect"
    else:
        assert not any(worker.requests for worker in broker.core.workers.values())


def test_users_cannot_name_each_others_processes(broker: Play) -> None:
    """The names of two users are two processes; without access control there is one user."""
    ready = [b"MDPW02", b"\1", b"echo", b"titanic:process=p"]
    for peer, user in (("a", "one"), ("b", "two"), ("c", "one")):
        broker.core.receive(peer, ready, broker.now, User(user))
    broker.collect()
    processes = broker.core.registry.processes
    assert {key[0]: len(process.workers) for key, process in processes.items()} == {"one": 2, "two": 1}


def test_the_shut_down_begins_nothing(broker: Play) -> None:
    for name in ("a", "b"):
        broker.worker_of("p", name)
    broker.sends(b"1")
    broker.working("a", b"1")
    broker.sends(b"suspect", alone=True)
    broker.core.shut_down(broker.now)
    broker.collect()
    for name in ("a", "b"):
        broker.told(name, b"MDPW02", b"\6")
    check_empty(broker.core)


# -- processes of a worker -----------------------------------------------------------------------------------


def test_one_that_dies_with_one_request_is_an_attempt_and_with_several_none(broker: Play) -> None:
    broker.parent("a")
    tokens = []
    for body in (b"1", b"2", b"3"):
        broker.sends(body)
        tokens.append(broker.given("a", body))
    broker.said("a", b"MDPW02", b"\13", tokens[0])
    broker.refused(b"1", b"500")
    broker.said("a", b"MDPW02", b"\13", *tokens[1:])
    broker.refused(b"2", b"502")
    broker.refused(b"3", b"502")
    broker.lost("a")
    check_empty(broker.core)


def test_who_is_not_the_cause_goes_to_another_worker(broker: Play) -> None:
    broker.parent("a", 2)
    tokens = []
    for body in (b"poison", b"innocent"):
        broker.sends(body)
        tokens.append(broker.given("a", body))
    broker.said("a", b"MDPW02", b"\12", b"0")
    broker.said("a", b"MDPW02", b"\13", tokens[0], b"", tokens[1])
    broker.refused(b"poison", b"500")
    broker.parent("b")
    client = broker.given("b", b"innocent")
    assert json.loads(client[16:])["delivery"] == 2
    broker.said("b", b"MDPW02", b"\13", b"", client)
    broker.told_nothing(QUEUE)
    broker.given("b", b"innocent")


def test_the_requests_of_a_parent_are_suspect_and_only_one_that_was_alone_is_charged(broker: Play) -> None:
    broker.parent("a")
    broker.sends(b"suspect", alone=True)
    broker.given("a", b"suspect")
    broker.sends(b"1")
    broker.given("a", b"1")
    broker.lost("a")
    broker.refused(b"suspect", b"500")
    broker.refused(b"1", b"502")
    broker.parent("b")
    broker.sends(b"2")
    broker.lost("b")
    broker.refused(b"2", b"502")


def test_a_plain_request_goes_to_another_process(broker: Play) -> None:
    broker.parent("a")
    broker.request("client", b"plain")
    for deaths in range(1, 4):
        client = broker.given("a", b"plain")
        broker.said("a", b"MDPW02", b"\13", client)
        assert bool(broker.heard("client")) is (deaths == 3)


@pytest.mark.parametrize("rest", [[], [b""], [b"unknown"], [b"TOKEN", b"TOKEN"], [b"TOKEN", b"", b""]])
def test_a_wrong_death_is_malformed(broker: Play, rest: list[bytes]) -> None:
    broker.parent("a")
    broker.sends(b"1")
    client = broker.given("a", b"1")
    broker.said("a", b"MDPW02", b"\13", *(client if frame == b"TOKEN" else frame for frame in rest))
    assert broker.core.stats["malformed"] == 1
    assert not broker.core.workers


def test_only_a_worker_with_processes_reports_their_deaths(broker: Play) -> None:
    broker.said("a", b"MDPW02", b"\1", b"echo", b"titanic:1", b"titanic:slots=2")
    broker.told("a", b"MDPW02", b"\5")
    broker.sends(b"1")
    broker.said("a", b"MDPW02", b"\13", broker.given("a", b"1"))
    assert broker.core.stats["malformed"] == 1


@pytest.mark.parametrize("words", [[b"titanic:children", b"titanic:kill"], [b"titanic:children"], []])
def test_a_worker_that_can_is_asked_to_kill(broker: Play, words: list[bytes]) -> None:
    """Others get the usual CANCEL."""
    broker.said("a", b"MDPW02", b"\1", b"echo", b"titanic:1", b"titanic:slots=2", *words)
    broker.told("a", b"MDPW02", b"\5")
    broker.sends(b"1")
    client = broker.given("a", b"1")
    can = b"titanic:kill" in words
    assert broker.core.cancel(QUEUE, b"echo", b"1", broker.now, b"kill") == (b"202" if can else b"404")
    broker.collect()
    broker.told("a", b"MDPW02", b"\7", client, b"", *([b"kill"] if can else []))


@pytest.mark.parametrize("parent", [True, False])
def test_at_its_limit_a_request_is_cancelled_and_the_death_that_follows_is_reported(broker: Play, parent: bool) -> None:
    """A worker without processes of its own is not told why: it could do nothing else."""
    if parent:
        broker.parent("a")
    else:
        broker.said("a", b"MDPW02", b"\1", b"echo", b"titanic:1", b"titanic:slots=2")
        broker.told("a", b"MDPW02", b"\5")
    broker.sends(b"1")
    client = broker.given("a", b"1")
    assert broker.core.cancel(QUEUE, b"echo", b"1", broker.now, b"limit") == b"404"
    broker.collect()
    broker.told("a", b"MDPW02", b"\7", client, b"", *([b"limit"] if parent else []))
    if parent:
        broker.said("a", b"MDPW02", b"\13", client)
    else:
        broker.lost("a")
    broker.refused(b"1", b"500")
