"""Freelance: the table of the agent, raw messages of RFC 10, and random schedules of things that go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.each import each
from support.fake_network import Net, Way
from support.torture import seeds
from support.transcript import Clocked

from broker import EventKind, UsageError
from broker.core.endpoints import Health
from broker.core.mdp import Frames
from broker.patterns import FreelanceConfig
from broker.patterns.freelance.core import FreelanceAgent, ShotgunCore
from broker.patterns.request_reply.core import Replier

A, B, C = "tcp://a:1", "tcp://b:1", "tcp://c:1"
PING, PONG = [b"PING"], [b"PONG"]


class Client(Clocked):
    """An agent, its servers, and a clock."""

    def __init__(self, *names: str) -> None:
        self.core = self.agent = FreelanceAgent(names or (A, B), now=self.now)
        self.agent.tick(self.now)
        self.said([(name, PING) for name in self.agent.servers.names])

    def said(self, expected: list[tuple[str, Frames]]) -> None:
        assert self.agent.take_output() == expected

    def told(self, name: str, *frames: bytes) -> None:
        self.agent.receive(name, list(frames), self.now)

    def ask(self, body: bytes = b"x", **settings: Any) -> int:
        return self.agent.request([body], self.now, **settings)

    def events(self) -> list[tuple[int, EventKind, Frames]]:
        return [event[:3] for event in self.agent.take_events()]


def control(number: int) -> bytes:
    return number.to_bytes(8, "big")


# -- the agent -----------------------------------------------------------------------------------------------


def test_a_request_waits_until_a_server_lives() -> None:
    client = Client()
    ticket = client.ask()
    client.said([])
    client.told(B, b"PONG")
    client.said([(B, [control(ticket), b"x"])])
    client.told(B, control(ticket), b"y", b"z")
    assert client.events() == [(ticket, EventKind.FINAL, [b"y", b"z"])]
    assert len(client.agent) == 0


def test_who_is_silent_for_three_pings_is_dead_and_its_requests_move() -> None:
    client = Client()
    client.told(A, b"PONG")
    client.told(B, b"PONG")
    ticket = client.ask(timeout=60)
    client.said([(A, [control(ticket), b"x"])])
    for _ in range(3):
        client.later(2)
        client.told(B, b"PONG")
        if client.agent.servers.health(A) is Health.LIVE:
            client.said([(A, PING), (B, PING)])
    assert client.agent.servers.health(A) is Health.DEAD
    client.said([(B, [control(ticket), b"x"]), (A, PING), (B, PING)])
    client.told(B, control(ticket), b"y")
    client.told(A, control(ticket), b"late")
    assert client.events() == [(ticket, EventKind.FINAL, [b"y"])]
    assert client.agent.unmatched == 1
    assert client.agent.servers.live() == B, "it stays there"


def test_replies_are_as_good_as_pongs_and_spare_pings() -> None:
    client = Client(A)
    client.told(A, b"PONG")
    for _ in range(10):
        ticket = client.ask()
        client.later(1.9)
        client.told(A, control(ticket), b"y")
        client.said([(A, [control(ticket), b"x"])])


def test_a_server_that_lives_but_does_not_answer_is_passed_over_once() -> None:
    client = Client()
    client.told(A, b"PONG")
    client.told(B, b"PONG")
    ticket = client.ask(timeout=1, retries=1)
    client.later(1)
    client.said([(A, [control(ticket), b"x"]), (B, [control(ticket), b"x"])])
    client.later(0.9)
    client.told(A, control(ticket), b"slow")
    assert client.events() == [(ticket, EventKind.FINAL, [b"slow"])]
    client.ask()
    client.said([(A, [control(ticket + 1), b"x"])])


def test_giving_up() -> None:
    client = Client()
    lonely = client.ask(timeout=1, retries=2)
    client.later(2.9)
    assert client.events() == []
    client.later(0.2)
    assert client.events() == [(lonely, EventKind.GAVE_UP, [])]
    forgotten = client.ask()
    client.agent.cancel(forgotten)
    client.told(A, b"PONG")
    client.later(60)
    assert client.events() == []


def test_what_cannot_be_sent_goes_to_the_next_and_pings_come_back_quickly() -> None:
    client = Client()
    client.told(A, b"PONG")
    client.told(B, b"PONG")
    ticket = client.ask()
    client.said([(A, [control(ticket), b"x"])])
    client.agent.undeliverable(A, [control(ticket), b"x"], client.now)
    client.said([(B, [control(ticket), b"x"])])
    pauses = []
    for _ in range(8):
        before = client.now
        client.told(B, b"PONG")
        while (A, PING) not in client.agent.take_output():
            client.later(0.01)
        pauses.append(client.now - before)
        client.agent.undeliverable(A, PING, client.now)
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2, 2], abs=0.02)
    client.told(A, b"PONG")
    assert client.agent.servers.health(A) is Health.LIVE


@each("frames", [[b""], [b"x"], [b"x", b"y"], [control(1)], [b"\0" * 9, b"x"], [b"PONG", b"x"]])
def test_wrong_frames_answer_nothing(frames: list[bytes]) -> None:
    client = Client()
    client.told(A, b"PONG")
    client.ask()
    client.told(A, *frames)
    client.told("tcp://stranger:1", control(1), b"x")
    assert client.events() == []
    assert client.agent.unmatched == 2


def test_nobody_is_live_for_a_stranger() -> None:
    client = Client()
    client.told("tcp://stranger:1", b"PONG")
    assert client.agent.servers.live() is None


@each(
    "settings",
    [{"ping_interval": 0}, {"liveness": 1}, {"timeout": 0}, {"retries": -1}],
)
def test_what_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be"):
        FreelanceConfig(**settings)
    with pytest.raises(UsageError, match="no endpoint given"):
        FreelanceAgent([])


# -- model 2 -------------------------------------------------------------------------------------------------


def test_all_are_asked_and_the_first_reply_counts() -> None:
    core = ShotgunCore([A, B, C])
    first, second = (core.request([b"x", body], 0.0) for body in (b"1", b"2"))
    expected = [[b"", b"%d" % ticket, b"x", b"%d" % ticket] for ticket in (first, second)]
    assert core.take_output() == [(name, frames) for frames in expected for name in (A, B, C)]
    core.receive(B, [b"", b"1", b"y"], 0.1)
    core.receive(A, [b"", b"1", b"late"], 0.2)
    assert [event[:3] for event in core.take_events()] == [(1, EventKind.FINAL, [b"y"])]
    for wrong in ([], [b""], [b"2"], [b"", b"two", b"y"], [b"", b"9" * 30, b"y"], [b"", "²".encode(), b"y"]):
        core.receive(C, wrong, 0.3)
    assert core.unmatched == 7
    core.receive(C, [b"", b"2", b"z"], 0.3)
    assert [event.body for event in core.take_events()] == [[b"z"]]


# -- schedules -----------------------------------------------------------------------------------------------


class Village:
    """Three servers, some clients, and who was told what."""

    def __init__(
        self, seed: int, make: Callable[[float], FreelanceAgent | ShotgunCore], way: str, **weather: float
    ) -> None:
        self.net = Net(self._route, seed, **weather)
        self.way = way
        self.asked: dict[tuple[str, int], bytes] = {}
        self.answers = 0
        self.lost = 0
        for name in (A, B, C):
            self.start(name)
        for number in range(3):
            self.net.start(f"client{number}", make(self.net.now), self._heard(f"client{number}"))
            self.think(f"client{number}")

    def start(self, name: str) -> None:
        self.net.start(name, Replier(self.way), self._serve)

    def _route(self, name: str, peer: Any) -> Way | None:
        # A connection that went dead is found out by the transport after a while, and made anew.
        epoch = int(self.net.now / 10)
        if name.startswith("client"):
            return Way(peer, name, (name, peer, epoch))
        return Way(peer, name, (peer, name, epoch))

    def _serve(self, replier: Replier) -> None:
        for ask in replier.take_requests():
            replier.reply(ask, [b"re " + ask.body[0]], self.net.now)

    def _heard(self, name: str) -> Callable[[FreelanceAgent | ShotgunCore], None]:
        def after(core: FreelanceAgent | ShotgunCore) -> None:
            for event in core.take_events():
                if event.kind is EventKind.FINAL:
                    assert event.body == [b"re " + self.asked.pop((name, event.ticket))]
                    self.answers += 1
                else:
                    self.lost += 1
                self.think(name)

        return after

    def think(self, name: str) -> None:
        def ask() -> None:
            body = f"{name} {len(self.asked)} {self.net.now}".encode()
            self.asked[name, self.net.nodes[name].request([body], self.net.now)] = body

        self.net.soon(ask)

    def misfortune(self) -> None:
        name = self.net.chance.choice((A, B, C))
        if name not in self.net.nodes:
            self.start(name)
        elif name in self.net.stopped:
            self.net.chance.choice((self.net.go_on, self.net.kill))(name)
        else:
            self.net.chance.choice((self.net.stop, self.net.kill))(name)


def agent(now: float) -> FreelanceAgent:
    return FreelanceAgent([A, B, C], FreelanceConfig(timeout=3, retries=1000), now=now)


def shotgun(_: float) -> ShotgunCore:
    return ShotgunCore([A, B, C], FreelanceConfig(timeout=3, retries=1000))


MODELS = [(shotgun, "numbered"), (agent, "flp")]


@pytest.mark.parametrize(("make", "way"), MODELS, ids=["2", "3"])
@pytest.mark.parametrize("seed", seeds(6, 30))
def test_every_request_is_answered_whatever_happens(
    seed: int, make: Callable[[float], FreelanceAgent | ShotgunCore], way: str
) -> None:
    village = Village(seed, make, way, drop=0.002, duplicate=0.05, delay=0.2)
    when = 0.0
    for _ in range(40):
        when += village.net.chance.random() * 4
        village.net.at(when, village.misfortune)
    village.net.run(when + 1)
    for name in (A, B, C):
        if name in village.net.stopped:
            village.net.go_on(name)
        elif name not in village.net.nodes:
            village.start(name)
    village.net.run(40)
    assert village.lost == 0
    before = village.answers
    assert before > 100
    village.net.run(20)
    assert village.answers > before + 20


def test_a_jump_of_the_clock_finds_the_servers_again() -> None:
    village = Village(1, agent, "flp", delay=0.1)
    village.net.run(10)
    before = village.answers
    village.net.now += 3600
    village.net.run(10)
    assert village.answers > before + 20
