"""Binary Star on real sockets, with peers and clients written straight from the Guide."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import zmq
from support.relay import Relay
from support.waiting import until

from broker import EndpointError
from broker.core.mdp import Frames
from broker.patterns import BinaryStar, BinaryStarClient, SplitBrain, StarConfig
from broker.patterns.binary_star.core import StarState

BEAT = StarConfig(heartbeat=0.1)
ANY = "tcp://127.0.0.1:*"


class Peer:
    """The other server, by hand: a PUB and a SUB socket."""

    def __init__(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.pub, self.sub = context.socket(zmq.XPUB), context.socket(zmq.SUB)  # XPUB: it sees who subscribes
        self.endpoint = f"tcp://127.0.0.1:{self.pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.sub.subscribe(b"")
        for socket in (self.pub, self.sub):
            socket.linger, socket.rcvtimeo = 0, 30_000

    def hear(self, star: BinaryStar) -> None:
        self.sub.connect(star.endpoint)

    def heard(self, word: bytes) -> None:
        """Wait for a word."""
        while self.sub.recv_multipart() != [word]:
            pass

    def says(self, word: bytes, until_heard: bytes) -> None:
        """Say it again and again, as servers do, until the other one has an answer."""
        self.pub.send(word)
        while True:
            if self.sub.poll(50):
                if self.sub.recv_multipart() == [until_heard]:
                    return
            else:
                self.pub.send(word)

    def close(self) -> None:
        self.pub.close()
        self.sub.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer()
    yield one
    one.close()


def shout(frames: Frames) -> Frames:
    return [frame.upper() for frame in frames]


def test_a_peer_that_is_written_by_hand(peer: Peer) -> None:
    changes: list[str] = []
    star = BinaryStar(
        primary=True,
        bind=ANY,
        peer=peer.endpoint,
        config=StarConfig(heartbeat=0.2),
        on_active=lambda: changes.append("active"),
        on_passive=lambda: changes.append("passive"),
    )
    peer.hear(star)
    with star:
        peer.heard(b"1")
        assert peer.pub.recv() == b"\1", "it has subscribed to everything"
        peer.pub.send(b"nonsense")
        peer.pub.send_multipart([b"3", b"3"])
        peer.says(b"3", until_heard=b"4")
        until(lambda: changes == ["passive"])
        peer.says(b"2", until_heard=b"3")  # it was restarted
        until(lambda: changes == ["passive", "active"])
        assert star.active
        assert star.core.malformed == 2


def test_two_servers_and_a_req_client() -> None:
    patient = StarConfig(heartbeat=1.0)  # nobody takes over while both are alive
    primary, backup = (BinaryStar(primary=role, bind=ANY, config=patient) for role in (True, False))
    primary.connect(backup.endpoint)
    backup.connect(primary.endpoint)
    here, there = primary.serve(shout, ANY), backup.serve(lambda frames: [b"backup", *frames], ANY, jobs=2)
    with backup, BinaryStarClient(here, there, config=patient, retries=50) as client:
        with primary:
            assert client.call("one") == [b"ONE"]
            until(lambda: backup.core.state is StarState.PASSIVE)  # else it would not take over
            req = zmq.Context.instance().socket(zmq.REQ)
            req.linger, req.rcvtimeo = 0, 300
            req.connect(there)
            req.send(b"passive servers do not answer")
            with pytest.raises(zmq.Again):
                req.recv()
            req.close()
        assert client.call("two") == [b"backup", b"two"]
        assert backup.active


def test_a_split_brain_is_raised(peer: Peer) -> None:
    star = BinaryStar(primary=True, bind=ANY, peer=peer.endpoint, config=StarConfig(heartbeat=0.2))
    here = star.serve(shout, ANY)
    raised: list[str] = []

    def run() -> None:
        with pytest.raises(SplitBrain) as caught:
            star.run()
        raised.append(str(caught.value))

    thread = threading.Thread(target=run)
    thread.start()
    assert peer.pub.recv() == b"\1"
    with BinaryStarClient(here, here, config=BEAT, retries=100) as client:
        while thread.is_alive():
            if not star.active and star.fault is None:  # also when it stood still: it has begun anew
                assert client.call("x") == [b"X"]
            else:
                peer.pub.send(b"3")
                thread.join(0.05)
    assert "both servers are active" in raised[0]
    assert star.fault == raised[0]


def test_a_server_of_another_kind(peer: Peer) -> None:
    """Any channel of the loop may ask."""
    star = BinaryStar(primary=False, bind=ANY, peer=peer.endpoint, config=BEAT)
    peer.hear(star)
    votes: list[bool] = []

    def ask() -> None:
        votes.append(star.vote())

    with star:
        star.loop.call(ask)
        until(lambda: votes == [False])
        assert peer.pub.recv() == b"\1"
        peer.says(b"3", until_heard=b"4")

        def active() -> bool:
            star.loop.call(ask)
            return star.active

        until(active)


def test_endpoints_that_cannot_be() -> None:
    for bind, peer in (("tcp://127.0.0.1:99999", None), (ANY, "nonsense")):
        with pytest.raises(EndpointError):
            BinaryStar(primary=True, bind=bind, peer=peer)


@pytest.mark.parametrize("first", [0, 1])
def test_two_whose_ways_to_each_other_broke_and_heal_one_after_the_other_end_both(first: int) -> None:
    """A server that stands still for two heartbeats begins anew instead, as it should, and with 0.1 s a busy machine is
    enough for that, or for a way that heals too late. Then it is tried again."""
    until(lambda: both_end(first))


def both_end(first: int) -> bool:
    """Whether both have ended; False: a server stood still, or nobody could hear the one that ended first in time."""
    stars = [BinaryStar(primary=role, bind=ANY, config=BEAT) for role in (True, False)]
    relays = [Relay(star.endpoint) for star in reversed(stars)]  # through these each hears the other one
    for star, relay in zip(stars, relays, strict=True):
        star.connect(relay.endpoint)
    doors = [star.serve(shout, ANY) for star in stars]
    begun = [star.core.settles_at for star in stars]

    def soon(condition: Callable[[], bool]) -> bool:
        """Wait for something that comes soon, unless a server has noticed that it stood still."""
        end = time.monotonic() + 20 * BEAT.heartbeat
        until(lambda: condition() or (time.monotonic() > end and [star.core.settles_at for star in stars] != begun))
        return condition()

    with stars[0], stars[1], ExitStack() as stack:
        for relay in relays:
            stack.callback(relay.close)
        if not soon(lambda: stars[0].active and stars[1].core.state is StarState.PASSIVE):
            return False
        for relay in relays:
            relay.down()
        for door in doors:
            with BinaryStarClient(door, door, config=BEAT, retries=100) as client:
                assert client.call("x") == [b"X"]
        if not soon(lambda: all(star.active for star in stars)):
            return False
        relays[first].up()
        if not soon(lambda: stars[first].fault is not None):
            return False
        assert stars[1 - first].fault is None
        relays[1 - first].up()
        until(lambda: stars[first].core.over)
        if stars[1 - first].fault is None:
            return False
        assert not any(star.active for star in stars)
        until(lambda: stars[1 - first].core.over)
    return True
