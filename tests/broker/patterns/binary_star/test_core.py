"""Binary Star: the table, raw messages, and a hundred random schedules of things that go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.each import each
from support.fake_network import Net, Way
from support.torture import seeds
from support.transcript import Clocked

from broker import ClientConfig, ClientSession, EventKind, UsageError
from broker.patterns import StarConfig
from broker.patterns.binary_star.core import TRANSITIONS, TWINS, BinaryStarCore, StarEvent, StarState, StarStep
from broker.patterns.request_reply.core import PLAIN, Replier

PRIMARY, BACKUP, ACTIVE, PASSIVE = StarState


class Star(Clocked):
    """One server, what its peer and its clients say, and a clock."""

    def __init__(self, role: StarState) -> None:
        self.core: BinaryStarCore = BinaryStarCore(role, now=self.now)
        self.later(0)

    def told(self, *frames: bytes) -> None:
        self.core.receive(None, list(frames), self.now)

    def later(self, seconds: float) -> None:
        self.core.tick(self.now)
        super().later(seconds)

    def paused(self, seconds: float) -> None:
        self.now += seconds

    def said(self) -> list[bytes]:
        return [frames[0] for _, frames in self.core.take_output() if frames]

    def votes(self) -> bool:
        return self.core.vote(self.now)


def in_state(state: StarState, role: StarState = PRIMARY) -> Star:
    star = Star(BACKUP if state is BACKUP else role)
    if state is ACTIVE:
        star.told(b"2")
    elif state is PASSIVE:
        star.told(b"3")
        star.later(1.3)
        star.told(b"3")
    assert star.core.state is state
    star.said()
    star.core.take_changes()
    return star


# -- the table -----------------------------------------------------------------------------------------------


@each("event", [event for event in StarEvent if event is not StarEvent.CLIENT_REQUEST])
@each("state", StarState)
def test_every_entry(state: StarState, event: StarEvent) -> None:
    star = in_state(state, BACKUP if (state, event) == (PASSIVE, StarEvent.PEER_PRIMARY) else PRIMARY)
    star.told(event.value.value)
    if state in (PRIMARY, BACKUP) and event is StarEvent.PEER_ACTIVE:
        star.later(1.2)
        assert star.core.state is state, "the peer is to hear first what this one was started as"
        assert set(star.said()) == {state.value}
        star.later(0.3)
    step = TRANSITIONS.get((state, event))
    assert (star.core.fault is not None) == (step is StarStep.FATAL)
    if step in (StarStep.ACTIVE, StarStep.PASSIVE):
        assert star.core.state.name == step.name
        assert star.said()[-1] == star.core.state.value, "the peer is told at once"
        assert star.core.take_changes() == [step is StarStep.ACTIVE]
    else:
        assert star.core.state is state
        assert star.core.take_changes() == []


@each(
    ("state", "while_peer_lives", "after_it_expired"),
    [(PRIMARY, False, True), (BACKUP, False, False), (ACTIVE, True, True), (PASSIVE, False, True)],
)
def test_clients(state: StarState, while_peer_lives: bool, after_it_expired: bool) -> None:
    star = in_state(state)
    assert star.votes() == while_peer_lives
    star.later(1.9)
    assert star.votes() == while_peer_lives
    star.later(0.2)
    assert star.votes() == after_it_expired
    assert (star.core.state is ACTIVE) == after_it_expired


def test_each_word_of_the_peer_puts_off_its_expiry() -> None:
    star = in_state(PASSIVE)
    for _ in range(10):
        star.later(1.5)
        star.told(b"3")
        assert not star.votes()


def test_it_speaks_once_a_heartbeat_as_the_guide_has_it() -> None:
    for state, word in ((PRIMARY, b"1"), (BACKUP, b"2"), (ACTIVE, b"3"), (PASSIVE, b"4")):
        star = in_state(state)
        star.later(5.1)
        assert star.said() == [word] * 5


@each("frames", [[], [b""], [b"0"], [b"5"], [b"x" * 1000], [b"3", b"3"]])
def test_wrong_words_are_no_sign_of_life(frames: list[bytes]) -> None:
    star = in_state(PASSIVE)
    star.later(1.5)
    star.told(*frames)
    assert star.core.malformed == 1
    star.later(0.6)
    assert star.votes()


def test_after_a_fatal_error_nobody_is_answered() -> None:
    star = in_state(ACTIVE)
    star.told(b"3")
    assert star.core.fault is not None
    assert "both servers are active" in star.core.fault
    assert not star.votes()


@each(("state", "word"), [(ACTIVE, b"3"), (PASSIVE, b"4"), (PASSIVE, b"1"), (BACKUP, b"2")])
def test_a_server_that_ends_tells_its_peer_for_four_heartbeats(state: StarState, word: bytes) -> None:
    """What makes the peer end too: the same word, or what both were started as."""
    star = in_state(state)
    star.told(word)
    assert star.said() == [word]
    star.later(3.9)
    assert star.said() == [word] * 15
    assert not star.core.over
    star.told(b"2")  # whatever it hears
    star.later(0.2)
    assert star.core.over
    assert star.core.next_deadline() is None
    assert not star.votes()


def test_a_server_that_ends_and_stood_still_says_nothing_old() -> None:
    star = in_state(ACTIVE)
    star.told(b"3")
    star.said()
    star.paused(5)
    star.later(0)
    assert (star.core.over, star.said(), star.core.state) == (True, [], ACTIVE)


@pytest.mark.parametrize(("role", "word"), [(PRIMARY, b"1"), (BACKUP, b"2")])
def test_two_of_the_same_end(role: StarState, word: bytes) -> None:
    for before in ([], [b"3"]):  # at the start; passive, as the other was found active
        star = Star(role)
        for said in (*before, word):
            star.told(said)
        assert star.core.fault == TWINS.format(role.name.lower())
        assert not star.votes()


def test_an_active_one_goes_on_and_tells_the_other() -> None:
    star = in_state(ACTIVE)
    star.told(b"1")
    assert star.said() == [b"1"]
    assert star.votes()


@each("role", [PRIMARY, BACKUP])
@each("first", ["a", "b"])
def test_of_two_of_the_same_on_the_wire_none_goes_on_unnoticed(role: StarState, first: str) -> None:
    for seed in range(20):
        net = Net(lambda node, _: Way("b" if node == "a" else "a", None, "ab"), seed, delay=0.1)
        net.start(first, BinaryStarCore(role, now=net.now))
        net.run(net.chance.random() * 5)
        net.start("b" if first == "a" else "a", BinaryStarCore(role, now=net.now))
        net.run(5)
        assert all(core.fault == TWINS.format(role.name.lower()) for core in net.nodes.values())  # type: ignore[attr-defined]


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="role is ACTIVE"):
        BinaryStarCore(ACTIVE, now=0)
    with pytest.raises(UsageError, match="heartbeat"):
        StarConfig(heartbeat=0)


# -- pauses --------------------------------------------------------------------------------------------------


def test_time_that_stood_still_is_no_silence_of_the_peer() -> None:
    star = in_state(PASSIVE)
    star.paused(1000)
    assert not star.votes()
    star.later(1.9)
    assert not star.votes()
    star.later(0.2)
    assert star.votes()


def test_an_active_server_that_was_away_acts_as_if_restarted() -> None:
    star = in_state(ACTIVE)
    star.paused(2.1)
    assert not star.votes(), "a client that had come meanwhile"
    assert star.core.state is PRIMARY
    assert star.core.take_changes() == [False]
    star.told(b"4")  # what the peer said before it took over
    star.told(b"3")
    star.later(0.3)
    assert star.core.state is PASSIVE


def test_a_short_pause_of_an_active_server_changes_nothing() -> None:
    star = in_state(ACTIVE)
    star.paused(1.5)
    star.later(0.3)
    assert star.votes()


def test_of_old_messages_only_the_last_counts() -> None:
    star = in_state(PASSIVE)
    star.paused(10)
    star.told(b"1")  # the peer was restarted,
    star.told(b"3")  # and has become active since
    star.later(0.3)
    assert star.core.state is PASSIVE
    assert star.core.fault is None


def test_a_backup_that_is_left_alone_serves_again_after_a_pause() -> None:
    star = Star(BACKUP)
    star.told(b"3")
    star.later(2.1)
    assert star.votes()
    star.paused(5)
    star.later(0.1)
    assert star.core.state is BACKUP
    star.later(2.5)
    assert star.votes()


# -- schedules -----------------------------------------------------------------------------------------------


class Pair:
    """Two servers, some clients that ask one thing after another, and what the clients were told by whom."""

    def __init__(self, seed: int, *, clients: int = 3) -> None:
        self.net = Net(self._route, seed, delay=0.1)
        self.stars: dict[str, BinaryStarCore] = {}
        self.asked: dict[str, int] = {}
        self.answered: dict[bytes, set[str]] = {}
        self.answers = 0
        self.split = False
        """Whether both answer, and may."""
        for role in StarState:
            if role in (PRIMARY, BACKUP):
                self.start(role.name)
        for number in range(clients):
            self.asked[f"client{number}"] = 0
            session = ClientSession(ClientConfig(3.0, 1000), dialect=PLAIN)
            self.net.start(f"client{number}", session, self._heard(f"client{number}"))

    def start(self, name: str) -> None:
        """A server: its two cores are two nodes that live, stop and die together."""
        star = BinaryStarCore(StarState[name], now=self.net.now)
        self.stars[name] = star
        self.net.start(name, star)
        self.net.start(f"{name} door", Replier(admit=star.vote), self._serve(name))

    def both(self, act: Callable[[str], None], name: str) -> None:
        for part in (name, f"{name} door"):
            act(part)

    def stop(self, name: str) -> None:
        if name in self.net.nodes:
            self.both(self.net.stop, name)

    def go_on(self, name: str) -> None:
        parts = [name, f"{name} door"]
        self.net.chance.shuffle(parts)  # old messages come in any order
        for part in parts:
            if part in self.net.nodes:
                self.net.go_on(part)

    @staticmethod
    def _route(name: str, peer: Any) -> Way | None:
        if name in ("PRIMARY", "BACKUP"):
            return Way("BACKUP" if name == "PRIMARY" else "PRIMARY", None, name)
        if name.startswith("client"):
            door = ("PRIMARY door", "BACKUP door")[(peer - 1) % 2]
            return Way(door, f"{name} {peer}", f"{name} {peer}")
        client, _, number = peer.partition(" ")
        return Way(client, int(number), peer)

    def _serve(self, name: str) -> Callable[[Replier], None]:
        def after(door: Replier) -> None:
            for ask in door.take_requests():
                self._check_alone(name)
                self.answered.setdefault(ask.body[0], set()).add(name)
                door.reply(ask, ask.body, self.net.now)

        return after

    def _check_alone(self, name: str) -> None:
        """Nobody else would answer now. Who is stopped cannot; when it goes on, it will ask itself."""
        other = "BACKUP" if name == "PRIMARY" else "PRIMARY"
        star = self.stars[other]
        if other in self.net.nodes and other not in self.net.stopped and not self.split:
            assert star.state is not ACTIVE or star.seen_at < self.net.now - 0.5, "two servers answer"

    def _heard(self, name: str) -> Callable[[ClientSession], None]:
        thinking = False

        def ask(session: ClientSession) -> None:
            nonlocal thinking
            thinking = False
            self.asked[name] += 1
            session.request(b"", [f"{name} {self.asked[name]}".encode()], self.net.now)

        def after(session: ClientSession) -> None:
            nonlocal thinking
            for event in session.take_events():
                assert event.kind is EventKind.FINAL
                self.answers += 1
            if not len(session) and not thinking:
                thinking = True
                self.net.at(self.net.now + self.net.chance.random(), lambda: ask(session))

        return after

    def misfortune(self) -> None:
        """Something happens to one of the servers."""
        name = self.net.chance.choice(("PRIMARY", "BACKUP"))
        if name not in self.net.nodes:
            self.start(name)
        elif name in self.net.stopped:
            self.net.chance.choice((self.go_on, self.kill))(name)
        else:
            self.net.chance.choice((self.stop, self.kill))(name)

    def kill(self, name: str) -> None:
        self.both(self.net.kill, name)

    def recover(self) -> None:
        """What somebody does who looks after them: both run again, the primary first."""
        for name in ("PRIMARY", "BACKUP"):
            if name in self.net.stopped:
                self.go_on(name)
            elif name not in self.net.nodes:
                self.start(name)

    def faults(self) -> list[str]:
        return [star.fault for star in self.stars.values() if star.fault is not None]


def test_in_good_weather_the_primary_answers() -> None:
    pair = Pair(1)
    pair.net.run(60)
    assert pair.answers > 100
    assert set().union(*pair.answered.values()) == {"PRIMARY"}
    assert (pair.stars["PRIMARY"].state, pair.stars["BACKUP"].state) == (ACTIVE, PASSIVE)


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("seed", seeds(2, 5))
def test_fail_over_takes_two_heartbeats_and_a_clients_try(seed: int, how: str) -> None:
    pair = Pair(seed)
    pair.net.run(20 + seed / 7)
    getattr(pair, how)("PRIMARY")
    before, begun = pair.answers, pair.net.now
    pair.net.run(20, lambda: pair.answers > before + 3)
    assert pair.net.now - begun < 2 + 3 + 1.5
    assert pair.stars["BACKUP"].state is ACTIVE
    if how == "kill":
        pair.start("PRIMARY")  # it finds the backup active, and stays passive
    else:
        pair.go_on("PRIMARY")
    pair.net.run(20)
    assert (pair.stars["PRIMARY"].state, pair.stars["BACKUP"].state) == (PASSIVE, ACTIVE)
    pair.kill("BACKUP")  # recovery by hand: the backup is stopped, the primary takes over, the backup starts again
    pair.net.run(10)
    pair.start("BACKUP")
    pair.net.run(10)
    assert (pair.stars["PRIMARY"].state, pair.stars["BACKUP"].state) == (ACTIVE, PASSIVE)
    assert pair.faults() == []


@pytest.mark.parametrize("seed", seeds(20, 100))
def test_never_do_both_answer(seed: int) -> None:
    """`_check_alone` looks at each answer."""
    pair = Pair(seed)
    when = 0.0
    for _ in range(30):
        when += pair.net.chance.choice((0.3, 2.0, 4.0, 8.0)) * pair.net.chance.random()
        pair.net.at(when, pair.misfortune)
    pair.net.run(when + 1)
    pair.recover()
    pair.net.run(15)
    before = pair.answers
    pair.net.run(15)
    assert pair.answers > before + 5, "after all that it works"
    assert pair.faults() == []
    assert {star.state for star in pair.stars.values()} == {ACTIVE, PASSIVE}


def cut_apart(seed: int) -> Pair:
    """The network that the Guide warns of: the two cannot hear each other, and clients reach both."""
    pair = Pair(seed)
    pair.net.run(10)
    pair.split = True
    pair.net.dead |= {"PRIMARY", "BACKUP"}
    pair.net.run(10 + seed / 7)
    assert pair.stars["BACKUP"].vote(pair.net.now)
    return pair


@pytest.mark.parametrize("apart", [0.0, 0.2, 0.5, 1.1, 3.0])
@pytest.mark.parametrize("first", ["PRIMARY", "BACKUP"])
@pytest.mark.parametrize("seed", seeds(2, 5))
def test_two_that_lost_sight_of_each_other_end_both(seed: int, first: str, apart: float) -> None:
    """Whichever is heard first again, and however much later the other one."""
    pair = cut_apart(seed)
    pair.net.dead.remove(first)
    pair.net.run(apart)
    pair.net.dead.clear()
    pair.net.run(6, lambda: all(star.over for star in pair.stars.values()))
    assert all(star.over for star in pair.stars.values())
    assert len(pair.faults()) == 2
    assert all("both servers are active" in fault for fault in pair.faults())


@pytest.mark.parametrize("heard", ["PRIMARY", "BACKUP"])
def test_one_that_hears_nothing_goes_on(heard: str) -> None:
    pair = cut_apart(1)
    pair.net.dead.remove(heard)
    pair.net.run(10)
    pair.net.dead.clear()
    pair.net.run(10)
    (fault,) = pair.faults()
    assert "make sure that the other one has stopped too" in fault
    assert pair.stars[heard].vote(pair.net.now)
