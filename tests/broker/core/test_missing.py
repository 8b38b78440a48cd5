"""Workers that return with their requests after their connection was lost, as the broker sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broker_invariants import check, check_empty
from support.transcript import Transcript

from broker.access.authorization import Guard, Review
from broker.access.users import NOBODY, Access, Permission, User
from broker.config import BrokerConfig
from broker.core.broker import BrokerCore
from broker.core.mdp import MAX_SLOTS
from broker.core.missing import Expected, delivery_of, keeper_of
from broker.core.worker_registry import WorkerPeer

QUEUE = "queue"
HEARTBEAT, DISCONNECT = [b"MDPW02", b"\5"], [b"MDPW02", b"\6"]


class Play(Transcript):
    """A queue, and workers that keep their requests."""

    def __init__(self, **config: float) -> None:
        super().__init__()
        numbers = count()
        self.core = BrokerCore(
            BrokerConfig(**config),  # type: ignore[arg-type]
            now=self.now,
            secret=lambda: b"%032x" % next(numbers),
        )

    def ready(
        self, peer: str, keeper: bytes, *held: bytes, slots: int = 2, service: bytes = b"a", process: bytes = b"h:1/x"
    ) -> None:
        words = [b"titanic:keeper=" + keeper, *(b"titanic:held=" + token for token in held)]
        slots_word = b"titanic:slots=%d" % slots
        self.said(peer, b"MDPW02", b"\1", service, b"titanic:1", slots_word, b"titanic:process=" + process, *words)

    def sends(self, body: bytes, service: bytes = b"a") -> None:
        self.said(QUEUE, context(body), body, b"", b"MDPC02", b"\5", service, body)

    def given(self, peer: str) -> dict[bytes, bytes]:
        """The client frames of what a worker has got, by the bodies."""
        return {frames[5]: frames[2] for frames in self.heard(peer) if frames[1] == b"\11"}

    def cancelled(self, peer: str) -> list[bytes]:
        return [frames[2] for frames in self.heard(peer) if frames[1] == b"\7"]

    def ends(self, peer: str, token: bytes, reply: bytes = b"done") -> None:
        self.said(peer, b"MDPW02", b"\4", token, b"", reply)

    def answers(self) -> dict[bytes, bytes]:
        return {
            frames[1]: frames[7][:3] if frames[6] == b"MDPE01" else frames[6]
            for frames in self.heard(QUEUE)
            if frames[4] in (b"\3", b"\7")
        }

    def close(self, body: bytes, service: bytes = b"a") -> None:
        self.core.cancel(QUEUE, service, body, self.now, b"running")
        self.collect()

    def gone(self, process: str = "h:1") -> None:
        self.core.process_gone(process, self.now)
        self.collect()


def context(body: bytes) -> bytes:
    return json.dumps({"uuid": body.decode(), "attempt": 1}, separators=(",", ":")).encode()


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def two(play: Play) -> dict[bytes, bytes]:
    """Two requests of a worker whose connection is lost then."""
    play.ready("w", b"k")
    play.sends(b"1")
    play.sends(b"2")
    tokens = play.given("w")
    play.lost("w")
    assert len(play.core.missing) == 2
    assert play.answers() == {}
    return tokens


def test_it_has_them_again_and_its_replies_count(play: Play, two: dict[bytes, bytes]) -> None:
    play.ready("back", b"k", *two.values())
    assert play.heard("back") == [HEARTBEAT]
    play.sends(b"3")
    assert play.given("back") == {}, "its slots are taken"
    play.ends("back", two[b"1"])
    assert play.answers() == {b"1": b"done"}
    assert list(play.given("back")) == [b"3"]
    play.ends("back", two[b"2"])
    assert play.answers() == {b"2": b"done"}
    assert play.core.stats["resumed"] == 2
    assert not len(play.core.missing)


def test_a_reply_that_was_lost_is_asked_for(play: Play, two: dict[bytes, bytes]) -> None:
    """What it has replied to otherwise is of no interest."""
    ended = [b"titanic:ended=" + token for token in (two[b"1"], b"0" * 48, two[b"2"][:47])]
    play.said("back", b"MDPW02", b"\1", b"a", b"titanic:1", b"titanic:slots=1", b"titanic:keeper=k", *ended)
    said = play.heard("back")
    assert said == [HEARTBEAT, [b"MDPW02", b"\11", two[b"1"], b"", b"a", b"1"]]
    play.ends("back", two[b"1"])
    assert play.answers() == {b"1": b"done"}
    assert list(play.given("back")) == [b"2"]
    assert (play.core.stats["resumed"], play.core.stats["not_resumed"]) == (1, 0)


def test_replies_of_strangers_are_not_asked_for(play: Play, two: dict[bytes, bytes]) -> None:
    words = [b"titanic:keeper=other", *(b"titanic:ended=" + token for token in two.values())]
    play.said("stranger", b"MDPW02", b"\1", b"a", b"titanic:1", b"titanic:slots=1", *words)
    assert play.heard("stranger") == [HEARTBEAT]
    assert len(play.core.missing) == 2


def test_what_it_does_not_name_goes_to_the_next_worker_at_once(play: Play, two: dict[bytes, bytes]) -> None:
    play.ready("back", b"k", two[b"2"])
    assert list(play.given("back")) == [b"1"]
    assert play.answers() == {}


def test_after_the_grace_it_has_died(play: Play, two: dict[bytes, bytes]) -> None:
    play.ready("other", b"o", process=b"h:2/y")
    play.heard("other")
    play.later(29)
    play.said("other", *HEARTBEAT)
    assert play.answers() == {}
    play.core.receive("other", HEARTBEAT, play.now)
    play.later(2)
    assert play.answers() == {b"1": b"502", b"2": b"502"}
    play.ready("back", b"k", *two.values())
    assert play.cancelled("back") == list(two.values())
    play.ends("back", two[b"1"])
    assert play.answers() == {}
    assert play.core.stats["not_resumed"] == 2


@pytest.mark.parametrize("other", ["has ended", "is still away"])
def test_it_returns_and_dies_alone(play: Play, other: str) -> None:
    """Only what its process still has may be the cause."""
    play.ready("w", b"k", slots=1)
    play.ready("v", b"v", slots=1)
    for body in (b"1", b"2"):
        play.sends(body)
    (one, token), *_ = play.given("w").items()
    ((two, second),) = play.given("v").items()
    for peer in ("w", "v"):
        play.lost(peer)
    if other == "has ended":
        play.ready("v", b"v", second, slots=1)
        play.ends("v", second)
    play.ready("back", b"k", token, slots=1)
    play.gone()
    play.lost("back")
    assert play.answers() == ({two: b"done", one: b"500"} if other == "has ended" else {two: b"502", one: b"502"})


def test_a_process_that_is_gone_is_not_waited_for(play: Play, two: dict[bytes, bytes]) -> None:
    play.gone("h:2")
    assert play.answers() == {}
    play.gone()
    assert play.answers() == {b"1": b"502", b"2": b"502"}


def test_a_process_that_is_gone_before_its_connection(play: Play) -> None:
    play.ready("w", b"k")
    play.sends(b"1")
    play.gone()
    assert play.answers() == {}
    play.lost("w")
    assert play.answers() == {b"1": b"500"}


def test_it_returns_before_its_old_connection_is_known_to_be_gone(play: Play) -> None:
    play.ready("w", b"k")
    play.sends(b"1")
    (token,) = play.given("w").values()
    play.ready("back", b"k", token)
    assert play.heard("w") == [DISCONNECT]
    play.ends("back", token)
    assert play.answers() == {b"1": b"done"}


def test_silence(play: Play) -> None:
    play.ready("w", b"k")
    play.sends(b"1")
    (token,) = play.given("w").values()
    play.later(11)
    assert play.heard("w")[-1] == DISCONNECT
    play.ready("back", b"k", token)
    play.ends("back", token)
    assert play.answers() == {b"1": b"done"}


def test_withdrawn_meanwhile(play: Play, two: dict[bytes, bytes]) -> None:
    play.close(b"1")
    play.ready("back", b"k", *two.values())
    assert play.cancelled("back") == [two[b"1"]]
    for token in two.values():
        play.ends("back", token)
    assert play.answers() == {b"1": b"done", b"2": b"done"}, "the queue drops it"


def test_withdrawn_and_not_back(play: Play, two: dict[bytes, bytes]) -> None:
    play.close(b"1")
    play.later(31)
    assert play.answers() == {b"1": b"502", b"2": b"502"}


def test_parts_begin_again(play: Play) -> None:
    play.ready("w", b"k")
    play.sends(b"1")
    (token,) = play.given("w").values()
    play.said("w", b"MDPW02", b"\3", token, b"", b"part")
    play.lost("w")
    play.heard(QUEUE)
    play.ready("back", b"k", token)
    assert [frames[4] for frames in play.heard(QUEUE)] == [b"\6"], "RESTART"
    play.said("back", b"MDPW02", b"\3", token, b"", b"part")
    assert [frames[4] for frames in play.heard(QUEUE)] == [b"\2"]


Stranger = Callable[[Play, bytes], None]

STRANGERS: dict[str, Stranger] = {
    "another worker": lambda play, token: play.ready("x", b"other", token),
    "another service": lambda play, token: play.ready("x", b"k", token, service=b"b"),
    "another secret": lambda play, token: play.ready("x", b"k", token[:16] + b"f" * 32 + token[48:]),
    "no secret": lambda play, token: play.ready("x", b"other", token[:16] + token[48:]),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_strangers_get_nothing(play: Play, who: str) -> None:
    play.ready("w", b"k")
    play.sends(b"1")
    (token,) = play.given("w").values()
    play.lost("w")
    STRANGERS[who](play, token)
    (said,) = play.cancelled("x")
    play.ends("x", said, b"false")
    assert play.answers() == {}
    assert play.core.stats["not_resumed"] == 1


def test_the_secret_of_an_earlier_delivery(play: Play) -> None:
    play.ready("w", b"k", slots=1)
    play.sends(b"1")
    (first,) = play.given("w").values()
    play.said("w", b"MDPW02", b"\12", b"0", first)
    play.ready("v", b"v", slots=1, process=b"h:2/y")
    (second,) = play.given("v").values()
    play.lost("w")
    play.lost("v")
    play.ready("w", b"k", first, slots=1)
    assert play.cancelled("w") == [first]
    play.ends("w", first, b"false")
    play.ready("v", b"v", second, slots=1)
    play.ends("v", second)
    assert play.answers() == {b"1": b"done"}


def test_the_same_name_of_another_user() -> None:
    play = Play()
    one, other = (User(name, {Permission.WORK: ("a",)}) for name in ("one", "other"))
    play.core.guard = Guard(Access([one, other]), {}, play.core.stats)

    def ready(peer: str, user: User, *held: bytes) -> None:
        words = [b"titanic:slots=1", b"titanic:keeper=k", *(b"titanic:held=" + token for token in held)]
        play.core.receive(peer, [b"MDPW02", b"\1", b"a", b"titanic:1", *words], play.now, user)
        play.collect()

    ready("w", one)
    play.sends(b"1")
    (token,) = play.given("w").values()
    play.lost("w")
    ready("x", other, token)
    assert play.cancelled("x") == [token]
    ready("back", one, token)
    play.core.receive("back", [b"MDPW02", b"\4", token, b"", b"done"], play.now, one)
    play.collect()
    assert play.answers() == {b"1": b"done"}


def test_whose_client_is_revoked_meanwhile_nobody_gets(play: Play, two: dict[bytes, bytes]) -> None:
    play.core.guard = Guard(Access(), {}, play.core.stats)
    for gone in ("another", QUEUE):
        assert len(play.core.missing) == 2
        play.core.revoke(Review(play.core.guard, {gone: NOBODY}.get), play.now)
        play.collect()
    assert play.answers() == {b"1": b"499", b"2": b"499"}
    play.ready("back", b"k", *two.values())
    assert play.cancelled("back") == [*two.values()]
    assert play.given("back") == {}


def test_more_than_it_has_slots_or_the_same_twice(play: Play, two: dict[bytes, bytes]) -> None:
    for held in ([*two.values(), b"third"], [two[b"1"], two[b"1"]]):
        play.ready("x", b"k", *held)
        assert play.heard("x") == [DISCONNECT]
    assert len(play.core.missing) == 2


def test_what_is_known_from_before_a_restart(play: Play) -> None:
    secret = b"%016x" % 7 + b"5" * 32
    for body, keeper in ((b"1", b"k"), (b"2", b"dead")):
        delivery = secret if body == b"1" else b"%016x" % 8 + b"6" * 32
        play.core.expect(QUEUE, context(body), Expected(delivery, keeper_of(None, keeper), 5.0))
        play.sends(body)
    play.ready("other", b"o", process=b"h:2/y")
    assert play.given("other") == {}
    token = secret + context(b"1")
    play.ready("back", b"k", token)
    play.ends("back", token)
    assert play.answers() == {b"1": b"done"}
    play.core.receive("other", HEARTBEAT, play.now)
    play.later(31)
    play.ready("last", b"l", process=b"h:3/z")
    (again,) = play.given("last").values()
    assert json.loads(again[48:])["delivery"] == 2
    play.ends("last", again)
    assert play.answers() == {b"2": b"done"}


def test_a_drain_waits_for_no_worker(play: Play, two: dict[bytes, bytes]) -> None:
    play.core.drain(play.now)
    play.collect()
    assert play.answers() == {b"1": b"503", b"2": b"503"}


def test_what_is_noted_is_noted_before_it_leaves(play: Play) -> None:
    noted: list[bytes] = []

    def given(request: object, worker: WorkerPeer) -> None:
        assert play.core.take_output() == []
        noted.extend(delivery_of(token) for token in worker.requests)

    play.ready("w", b"k")
    play.heard("w")
    play.core.given = given
    play.sends(b"1")
    (token,) = play.given("w").values()
    assert noted == [delivery_of(token)]


def test_nothing_is_left(play: Play, two: dict[bytes, bytes]) -> None:
    play.later(31)
    check_empty(play.core)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from([b"1", b"2"])), max_size=4), st.binary(max_size=70))
def test_any_words(held: list[bytes], keeper: bytes) -> None:
    play = Play()
    play.ready("w", b"k")
    play.sends(b"1")
    play.sends(b"2")
    tokens = play.given("w")
    play.lost("w")
    said = [tokens.get(token, token) for token in held]
    play.ready("x", keeper, *said, slots=3)
    check(play.core)
    for token in said:
        play.ends("x", token, b"false")
    check(play.core)
    if keeper != b"k":
        assert b"false" not in play.answers().values()


# -- a queue with several brokers ------------------------------------------------------------------------------


class Elsewhere(Play):
    """One of several brokers of a queue, which decides about what workers bring from another one."""

    def __init__(self, **config: float) -> None:
        super().__init__(**config)
        self.core.secrets.key = b"the same at all"
        self.core.missing.decided_within = 60.0

    def decides(self, token: bytes, body: bytes = b"1", keeper: bytes = b"k") -> None:
        """The queue has what a worker has named."""
        assert self.core.secrets.are_in(token, keeper_of(None, keeper))
        self.core.expect(QUEUE, context(body), Expected(delivery_of(token), keeper_of(None, keeper), 5.0))
        self.sends(body)

    def refuses(self, token: bytes) -> None:
        self.core.refuse_named(delivery_of(token), self.now)
        self.collect()


def brought() -> bytes:
    """What a worker has from another broker."""
    play = Elsewhere()
    play.ready("w", b"k")
    play.sends(b"1")
    (token,) = play.given("w").values()
    return token


@pytest.fixture
def here() -> Elsewhere:
    return Elsewhere()


def test_the_worker_goes_on_when_the_queue_has_decided(here: Elsewhere) -> None:
    token = brought()
    here.ready("w", b"k", token)
    assert here.heard("w") == [HEARTBEAT]
    here.sends(b"2")
    assert list(here.given("w")) == [b"2"], "its other slot is free"
    here.decides(token)
    here.ends("w", token)
    assert here.answers() == {b"1": b"done"}
    assert here.core.stats["resumed"] == 1
    check(here.core)


def test_what_it_says_before_counts(here: Elsewhere) -> None:
    token = brought()
    here.ready("w", b"k", token)
    here.said("w", b"MDPW02", b"\3", token, b"", b"part")
    here.ends("w", token)
    assert here.heard(QUEUE) == []
    here.decides(token)
    assert [frames[4:] for frames in here.heard(QUEUE)] == [[b"\2", b"a", b"part"], [b"\3", b"a", b"done"]]
    check(here.core)
    assert not here.core.missing.named


def test_what_is_refused_is_cancelled_and_dropped(here: Elsewhere) -> None:
    token = brought()
    here.ready("w", b"k", token, slots=1)
    here.ends("w", token)
    here.refuses(token)
    assert here.cancelled("w") == [token]
    here.sends(b"2")
    assert list(here.given("w")) == [b"2"]
    assert here.answers() == {}
    assert here.core.stats["not_resumed"] == 1
    check(here.core)


def test_without_a_decision_it_is_refused(here: Elsewhere) -> None:
    token = brought()
    here.ready("w", b"k", token)
    for _ in range(12):
        here.core.receive("w", HEARTBEAT, here.now)
        here.later(5)
    here.later(1)
    assert here.cancelled("w") == [token]


@pytest.mark.parametrize("how", ["it is malformed", "it is dismissed"])
def test_the_worker_is_forgotten_while_what_it_has_named_is_refused(here: Elsewhere, how: str) -> None:
    """The other one that it has named is due at the same time."""
    tokens = [b"%048x" % number + context(b"1") for number in range(2)]
    said = b"ended" if how == "it is dismissed" else b"held"
    here.said("w", *READY, b"titanic:held=" + tokens[0], b"titanic:%b=" % said + tokens[1])
    here.ends("w", tokens[0])
    if how == "it is dismissed":
        here.core.drain(here.now)
    else:
        here.ends("w", tokens[0], b"again")
    for _ in range(12):
        here.core.receive("w", HEARTBEAT, here.now)
        here.later(5)
    here.later(1)
    assert not here.core.missing.named
    assert "w" not in here.core.workers


def test_a_decision_and_a_worker_are_waited_for_again_as_long_as_before(here: Elsewhere) -> None:
    token, missing = brought(), here.core.missing
    here.ready("w", b"k", token)
    missing.wait_again(delivery_of(token), here.now + 5)
    assert missing.decisions.get(delivery_of(token)) == here.now + 5 + missing.decided_within
    here.decides(token)
    here.lost("w")
    missing.wait_again(delivery_of(token), here.now + 5)
    assert missing.timers.get(delivery_of(token)) == here.now + 5 + missing.patience
    assert missing.patience != missing.decided_within


def test_it_is_gone_before_the_decision(here: Elsewhere) -> None:
    """It may come back: the request waits for it."""
    token = brought()
    here.ready("w", b"k", token)
    here.lost("w")
    assert not here.core.missing.named
    here.decides(token)
    here.ready("back", b"k", token)
    here.ends("back", token)
    assert here.answers() == {b"1": b"done"}


@pytest.mark.parametrize("service", [b"a", b"b"])
def test_another_worker_names_it(here: Elsewhere, service: bytes) -> None:
    """It has the right one's secret, by whatever way; or is the right one, for another service."""
    token = brought()
    here.ready("w", b"k" if service == b"b" else b"x", token, service=service)
    here.ends("w", token, b"false")
    here.decides(token)
    assert here.answers() == {}
    here.ready("right", b"k", token, slots=1)
    here.ends("right", token)
    assert here.answers() == {b"1": b"done"}


def test_it_is_named_twice(here: Elsewhere) -> None:
    token = brought()
    here.ready("w", b"k", token)
    here.ready("x", b"x", token, process=b"h:2/y")
    assert here.cancelled("x") == [token]
    here.ends("x", token, b"false")
    here.decides(token)
    here.ends("w", token)
    assert here.answers() == {b"1": b"done"}


def test_too_much_is_said_before() -> None:
    here, token = Elsewhere(max_waiting_bytes=1000), brought()
    here.ready("w", b"k", token)
    for _ in range(3):
        here.said("w", b"MDPW02", b"\3", token, b"", b"p" * 900)
    assert here.cancelled("w") == [token]
    here.ends("w", token)
    assert here.core.workers["w"].requests == {}
    check(here.core)


@pytest.mark.parametrize("frames", [[b"\12", b"2"], [b"\13"], [b"\13", b""]])
def test_it_has_it_no_longer_before_the_decision(here: Elsewhere, frames: list[bytes]) -> None:
    """It returns it, or the process that had it has died."""
    token = brought()
    here.said("w", *READY, b"titanic:children", b"titanic:held=" + token)
    here.said("w", b"MDPW02", *frames, token)
    assert not here.core.missing.named
    here.decides(token)
    assert list(here.given("w")) == [b"1"], "it is here, so that nothing is waited for"
    assert here.answers() == {}
    check(here.core)


@pytest.mark.parametrize("command", [b"\3", b"\4"])
def test_its_reply_is_too_large_before_the_decision(here: Elsewhere, command: bytes) -> None:
    token = brought()
    here.ready("w", b"k", token)
    here.core.too_large("w", [b"MDPW02", command, token, b"", b"first frame"], "too many bytes", here.now)
    here.collect()
    assert here.cancelled("w") == [token]
    if command == b"\3":
        here.ends("w", token, b"last frame")
    assert here.answers() == {}
    assert here.core.workers["w"].requests == {}
    here.decides(token)
    assert list(here.given("w")) == [b"1"], "it fails with this reply"
    check(here.core)


def test_secrets_are_of_the_worker_and_the_delivery() -> None:
    core, token, keeper = Elsewhere().core, brought(), keeper_of(None, b"k")
    assert core.secrets.are_in(token, keeper)
    assert not core.secrets.are_in(token, keeper_of(None, b"x"))
    assert not core.secrets.are_in(token.replace(b'"attempt":1', b'"attempt":2'), keeper)
    assert not core.secrets.are_in(b"1" + token[1:], keeper)
    assert not core.secrets.are_in(token[:20], keeper)
    assert not core.secrets.are_in(b"", keeper)


def test_its_queue_knows_that_there_is_a_reply(here: Elsewhere) -> None:
    """It need not wait for the decision."""
    token = brought()
    here.ready("w", b"k", token)
    (named,) = here.core.missing.named.values()
    here.core.missing.is_new = False
    here.said("w", b"MDPW02", b"\3", token, b"", b"part")
    assert not named.has_reply
    assert not here.core.missing.is_new
    here.ends("w", token)
    assert named.has_reply
    assert here.core.missing.is_new


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("first", ["it is lost", "it is named"])
def test_another_worker_names_what_waits_for_its_own(here: Elsewhere, first: str, stays: bool) -> None:
    here.core.missing.decided_within = 20.0
    here.ready("w", b"k")
    here.sends(b"1")
    (token,) = here.given("w").values()
    if first == "it is lost":
        here.lost("w")
    here.ready("x", b"x", token, process=b"h:2/y")
    if first == "it is named":
        here.lost("w")
    if not stays:
        here.lost("x")
    for _ in range(5):
        here.core.receive("x", HEARTBEAT, here.now)
        here.later(5)
    assert here.cancelled("x") == [token] * stays
    assert here.answers() == {}
    here.later(5)
    assert here.answers() == {b"1": b"500"}


# -- a queue elsewhere, which says GIVEN -------------------------------------------------------------------------


class Attached(Play):
    """A broker without a queue of its own: what workers name waits for the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.core.missing.decided_within = 30.0

    def submits(self, body: bytes, given: bytes = b"", queue: str = QUEUE) -> None:
        frame = b"titanic:given=" + given if given else b"titanic:given"
        self.said(queue, frame, context(body), body, b"", b"MDPC02", b"\5", b"a", body)

    def service(self) -> dict[str, object]:
        """What the broker says of the service that only some have."""
        self.said("asks", b"MDPC02", b"\1", b"mmi.services", b"")
        (said,) = json.loads(self.heard("asks")[0][3])
        return {name: said[name] for name in ("keeps", "away") if name in said}

    def told(self, queue: str = QUEUE) -> list[tuple[bytes, ...]]:
        """What the queue has heard: the command, and what follows the service."""
        return [(frames[5], *frames[7:]) for frames in self.heard(queue)]


@pytest.fixture
def attached() -> Attached:
    play = Attached()
    play.ready("w", b"k")
    play.heard("w")
    return play


def test_the_queue_hears_who_has_a_request(attached: Attached) -> None:
    attached.submits(b"1")
    (token,) = attached.given("w").values()
    assert attached.told() == [(b"\11", token[:48], keeper_of(None, b"k"))]
    attached.said("w", b"MDPW02", b"\12", b"0", token)  # it gives it back
    attached.ready("x", b"", process=b"h:2/y")
    assert list(attached.given("x")) == [b"1"]
    assert [(one[0], one[2]) for one in attached.told()] == [(b"\11", b"")], "that one keeps nothing"


def test_a_queue_that_does_not_ask_hears_nothing(attached: Attached) -> None:
    attached.sends(b"1")
    assert attached.given("w")
    assert attached.heard(QUEUE) == []


@pytest.mark.parametrize("first", ["the worker", "the queue"])
def test_after_a_restart_of_the_broker(first: str) -> None:
    before, after = Attached(), Attached()
    before.ready("w", b"k")
    before.submits(b"1")
    (token,) = before.given("w").values()
    given = b" ".join([token[:48], b"5", keeper_of(None, b"k")])
    if first == "the worker":
        after.ready("w", b"k", token)
        after.said("w", b"MDPW02", b"\3", token, b"", b"part")
        after.submits(b"1", given)
    else:
        after.submits(b"1", given)
        after.ready("other", b"o", process=b"h:2/y")
        assert after.given("other") == {}
        after.ready("w", b"k", token)
        after.said("w", b"MDPW02", b"\3", token, b"", b"part")
    after.ends("w", token)
    assert [one for one in after.told() if one[0] in (b"\2", b"\3")] == [(b"\2", b"part"), (b"\3", b"done")]
    assert after.cancelled("w") == []
    check(after.core)


def test_what_the_queue_does_not_want_any_more_after_a_restart() -> None:
    before, after = Attached(), Attached()
    before.ready("w", b"k")
    before.submits(b"1")
    (token,) = before.given("w").values()
    after.ready("w", b"k", token)
    after.heard("w")
    for _ in range(7):
        after.core.receive("w", HEARTBEAT, after.now)
        after.later(5)
    assert after.cancelled("w") == [token]


@pytest.mark.parametrize("knows", [True, False])
def test_the_queue_comes_again(attached: Attached, knows: bool) -> None:
    """With what workers have; or it has not heard of that."""
    attached.submits(b"1")
    attached.submits(b"2")
    attached.submits(b"3")
    tokens = attached.given("w")
    attached.said("w", b"MDPW02", b"\3", tokens[b"1"], b"", b"part")
    attached.lost(QUEUE)
    assert attached.heard("w")[-1] == DISCONNECT, "it is to say all again"
    assert not attached.core.waiting.count, "it sends again what no worker has"
    attached.ready("w", b"k", *tokens.values())
    attached.said("w", b"MDPW02", b"\3", tokens[b"1"], b"", b"part")
    attached.ends("w", tokens[b"1"])
    for body in (b"3", b"1", b"2"):
        known = knows and body in tokens
        given = b" ".join([tokens[body][:48], b"5", keeper_of(None, b"k")]) if known else b""
        attached.submits(body, given, "again")
    said = [one for one in attached.told("again") if one[0] in (b"\2", b"\3")]
    assert said == [(b"\2", b"part"), (b"\3", b"done")]
    assert list(attached.given("w")) == [b"3"]
    assert attached.cancelled("w") == []
    check(attached.core)


def test_the_queue_comes_again_before_its_old_connection_is_known_to_be_gone(attached: Attached) -> None:
    attached.submits(b"1")
    (token,) = attached.given("w").values()
    attached.submits(b"1", b" ".join([token[:48], b"5", keeper_of(None, b"k")]), "again")
    assert attached.heard("w")[-1] == DISCONNECT
    attached.ready("w", b"k", token)
    attached.ends("w", token)
    assert [one for one in attached.told("again") if one[0] == b"\3"] == [(b"\3", b"done")]
    attached.lost(QUEUE)
    check(attached.core)


def test_a_queue_that_was_a_worker_too_is_forgotten(attached: Attached) -> None:
    attached.ready(QUEUE, b"q", service=b"b", process=b"h:3/z")
    attached.submits(b"1")
    attached.lost(QUEUE)
    assert not attached.core.missing.queues
    assert attached.heard("w")[-1] == DISCONNECT, "it is to say all again"
    check(attached.core)


def test_the_queue_comes_again_while_the_worker_is_away() -> None:
    after, given = Attached(), b" ".join([b"0" * 48, b"5", keeper_of(None, b"k")])
    after.submits(b"1", given)
    after.submits(b"1", given, "again")
    assert after.core.missing.of_services == {b"a": 1}
    after.ready("w", b"k", b"0" * 48 + context(b"1"))
    after.ends("w", b"0" * 48 + context(b"1"))
    assert [one for one in after.told("again") if one[0] == b"\3"] == [(b"\3", b"done")]
    check(after.core)


def test_after_a_restart_a_worker_that_does_not_name_it_has_it_no_longer() -> None:
    """Nothing is waited for."""
    after = Attached()
    after.ready("w", b"k")
    after.submits(b"1", b" ".join([b"0" * 48, b"5", keeper_of(None, b"k")]))
    assert list(after.given("w")) == [b"1"]
    check(after.core)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_reply_that_a_lost_queue_did_not_get(attached: Attached, says_so: bool) -> None:
    """The worker is to say whether it has replied; then it does so again, else another one gets the request."""
    attached.submits(b"1")
    (token,) = attached.given("w").values()
    attached.ends("w", token)
    attached.lost(QUEUE)
    attached.ready("other", b"o", process=b"h:2/y")
    attached.heard("w")
    attached.submits(b"1", b" ".join([token[:48], b"5", keeper_of(None, b"k")]), "again")
    assert attached.heard("w")[-1] == DISCONNECT
    words = [b"titanic:keeper=k", *[b"titanic:ended=" + token] * says_so]
    attached.said("w", b"MDPW02", b"\1", b"a", b"titanic:1", b"titanic:slots=2", b"titanic:process=h:1/x", *words)
    assert list(attached.given("w").values()) == [token] * says_so
    assert len(attached.given("other")) == (not says_so)
    if says_so:
        attached.ends("w", token)
        assert [one for one in attached.told("again") if one[0] == b"\3"] == [(b"\3", b"done")]
    check(attached.core)


def test_a_queue_that_has_forgotten_all_hears_what_workers_have(attached: Attached) -> None:
    attached.submits(b"1")
    (token,) = attached.given("w").values()
    assert attached.service() == {"keeps": True}
    attached.lost(QUEUE)
    attached.ready("w", b"k", token)
    assert attached.service() == {"keeps": True, "away": [context(b"1").decode()]}
    attached.submits(b"2", queue="between")  # this one ends before it takes what the first one had
    attached.lost("between")
    attached.ready("w", b"k", token, attached.given("w")[b"2"])
    attached.submits(b"1", queue="again")
    assert attached.told("again") == [(b"\11", token[:48], keeper_of(None, b"k"))], "now it knows the delivery"
    assert attached.service() == {"keeps": True, "away": [context(b"2").decode()]}
    attached.ends("w", token)
    assert attached.told("again") == [(b"\3", b"done")]
    assert attached.given("w") == {}
    check(attached.core)


@pytest.mark.parametrize("names_it", [True, False])
def test_what_no_queue_wants_back_does_not_stay_with_workers(attached: Attached, names_it: bool) -> None:
    """A queue takes what is away from the number of workers: it would send nothing for ever."""
    attached.submits(b"1")
    (token,) = attached.given("w").values()
    attached.lost(QUEUE)
    attached.ready("w", b"k", *([token] if names_it else []))
    attached.later(31)
    attached.ready("w", b"k")
    assert attached.service() == {"keeps": True}
    check(attached.core)


@pytest.mark.parametrize("said", [b"", b"x", b"x y", b"x y z", b"x 1", b"x -1 k", b"x 99999999999 k"])
def test_what_is_no_delivery(attached: Attached, said: bytes) -> None:
    attached.submits(b"1", said)
    assert list(attached.given("w")) == [b"1"]


def test_a_reply_that_was_lost_with_the_broker() -> None:
    before, after = Attached(), Attached()
    before.ready("w", b"k")
    before.submits(b"1")
    (token,) = before.given("w").values()
    before.ends("w", token)
    after.said("w", *READY, b"titanic:ended=" + token)
    assert after.given("w") == {}
    after.submits(b"1", b" ".join([token[:48], b"5", keeper_of(None, b"k")]))
    assert after.given("w") == {b"1": token}
    after.ends("w", token)
    assert [one for one in after.told() if one[0] == b"\3"] == [(b"\3", b"done")]
    check(after.core)


def test_a_reply_that_was_not_lost(attached: Attached) -> None:
    attached.said("x", *READY, b"titanic:ended=" + b"0" * 48 + context(b"1"))
    attached.later(31)
    assert attached.cancelled("x") == []
    assert not attached.core.missing.named
    attached.said("y", *READY, b"titanic:ended=" + b"0" * 48 + context(b"1"))
    attached.lost("y")
    assert not attached.core.missing.named


def test_of_very_many_replies_the_last_count(attached: Attached) -> None:
    tokens = [b"%048x" % number + context(b"1") for number in range(MAX_SLOTS + 5)]
    attached.said("x", *READY, *(b"titanic:ended=" + token for token in tokens))
    assert list(attached.core.missing.named) == [delivery_of(token) for token in tokens[5:]]


READY = [b"MDPW02", b"\1", b"a", b"titanic:1", b"titanic:slots=2", b"titanic:process=h:1/x", b"titanic:keeper=k"]
