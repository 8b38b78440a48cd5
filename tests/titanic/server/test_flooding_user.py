"""A user who floods a real server, as far as his key lets him: the others go on, and all their answers are right."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import zmq
from support.access_files import ALICE, AccessFiles
from support.cli_titanic import Running, serving
from support.good_traffic import GoodTraffic, good_traffic
from support.handshakes import address
from support.waiting import until

from broker import Pipeline, new_keys
from broker.errors import RemoteError
from broker.io.curve import Curve, credentials
from titanic import Client
from titanic.bench.stage import memory_bytes

MESSAGES, CONNECTIONS, WAITING, BYTES = 50, 5, 20, 1_000_000
FLOODERS = [f"bob{number}" for number in range(20)]
"""Each test has another one."""
FLOODER = (
    '[users.{0}]\nkeys = ["{0}.key"]\nsubmit = ["*"]\nwork = ["noise"]\ncall = ["*"]\nread = "own"\n'
    f"limits = {{{{ messages = {MESSAGES}, connections = {CONNECTIONS}, waiting = {WAITING}, bytes = {BYTES} }}}}\n"
)
LARGEST = 1 << 20
"""Bytes of a body."""
MOST_GROWTH = 100 << 20
"""Bytes of memory that a server may have more: less than half of what is sent to it."""


class Scene(NamedTuple):
    """A server, and what alice does there."""

    endpoint: str
    files: AccessFiles
    server: Running
    good: GoodTraffic
    flooders: Iterator[str]

    def new_flooder(self) -> Curve:
        """The keys of a user who has done nothing yet."""
        curve = credentials(self.files.secret(next(self.flooders)), self.files.server_key)
        assert curve is not None
        return curve

    def dealer(self, stack: ExitStack, bob: Curve) -> zmq.Socket[bytes]:
        """One more connection of a user, made again when it ends."""
        dealer = stack.enter_context(zmq.Context.instance().socket(zmq.DEALER))
        dealer.linger, dealer.reconnect_ivl, dealer.sndhwm = 0, 1, 0
        bob.apply(dealer)
        dealer.connect(self.endpoint)
        return dealer

    def others_go_on(self) -> None:
        """Also those who come now."""
        self.good.go_on(30)
        keys = {"key": self.files.secret("alice"), "server_key": self.files.server_key}
        with Client(self.endpoint, timeout=60, retries=0, **keys) as client:
            assert client.call("echo", b"new") == [b"new"]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("flood")
    files = AccessFiles(folder / "access", ALICE + "".join(FLOODER.format(name) for name in FLOODERS))
    for name in FLOODERS:
        new_keys(files.folder, name)
    with (
        serving(folder, *files.options, "--max-body", f"{LARGEST}") as (server, endpoint),
        good_traffic(endpoint, files) as good,
    ):
        yield Scene(endpoint, files, server, good, iter(FLOODERS))
        good.go_on()
        assert "Traceback" not in server.log.read_text()


@pytest.fixture
def bob(scene: Scene) -> Curve:
    return scene.new_flooder()


def test_messages_over_his_limit(scene: Scene, bob: Curve) -> None:
    """Each is answered, all but a few with what the limit is."""
    said: Counter[Any] = Counter()
    began = time.monotonic()
    with Pipeline(scene.endpoint, timeout=60, key=bob) as pipeline:
        for number in range(5000):
            pipeline.send("mmi.service", b"%d" % number)
        while (reply := pipeline.receive()) is not None:
            said[reply.error.status if isinstance(reply.error, RemoteError) else reply.body[0]] += 1
    seconds = time.monotonic() - began
    scene.others_go_on()
    assert set(said) == {b"404", 429}
    assert said.total() == 5000
    assert MESSAGES <= said[b"404"] <= MESSAGES * (seconds + 2)


def test_messages_whose_answers_he_does_not_read(scene: Scene, bob: Curve) -> None:
    with ExitStack() as stack:
        deaf = scene.dealer(stack, bob)
        deaf.rcvhwm = 1
        for _ in range(20_000):
            deaf.send_multipart([b"MDPC02", b"\1", b"mmi.service", b"echo"])
        scene.others_go_on()


def test_connections_over_his_limit(scene: Scene, bob: Curve) -> None:
    """They are made again and again; never do more of them speak than may."""
    with ExitStack() as stack:
        dealers = [scene.dealer(stack, bob) for _ in range(CONNECTIONS * 4)]
        heard: set[zmq.Socket[bytes]] = set()

        def speak() -> int:
            for dealer in dealers:
                dealer.send_multipart([b"MDPC02", b"\1", b"mmi.broker", b""])
                while dealer.poll(0):
                    dealer.recv_multipart()
                    heard.add(dealer)
            return len(heard)

        until(lambda: speak() >= CONNECTIONS, every=0.05)
        for _ in range(3):
            scene.others_go_on()
            assert speak() == CONNECTIONS
        for dealer in heard:
            dealers.remove(dealer)
            dealer.close()
        until(lambda: speak() == 2 * CONNECTIONS, every=0.05)  # there is room for others of his


def test_silent_connections(scene: Scene, bob: Curve) -> None:
    """With keys and without."""
    with ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(socket.create_connection(address(scene.endpoint)))
        for _ in range(100):
            scene.dealer(stack, bob)
        scene.others_go_on()


@pytest.mark.parametrize("size", [LARGEST // 2, LARGEST * 5], ids=["many", "too large"])
def test_large_bodies(scene: Scene, bob: Curve, size: int) -> None:
    """Far more than he may have in the store; and larger ones than anybody may send."""
    before = memory_bytes(scene.server.process.pid) or 0
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            dealer = scene.dealer(stack, bob)
            for _ in range((50 << 20) // size):
                dealer.send_multipart([b"MDPC02", b"\1", b"titanic.request", b"absent", bytes(size)], copy=False)
            scene.others_go_on()
    scene.others_go_on()
    assert (memory_bytes(scene.server.process.pid) or 0) < before + MOST_GROWTH


def test_more_requests_than_may_wait(scene: Scene, bob: Curve) -> None:
    with Pipeline(scene.endpoint, timeout=60, key=bob) as pipeline:
        replies = list(pipeline.map("titanic.request", [[b"absent", b"x"]] * WAITING * 2))
    refused = [reply for reply in replies if reply[0] != b"200"]
    assert len(refused) == WAITING, "of as many as may be sent in a second"
    assert all(reply[0].startswith(b"500 user full") for reply in refused), refused[0]
    scene.others_go_on()


def test_a_worker_who_talks_without_end(scene: Scene, bob: Curve) -> None:
    """No limit counts what workers say."""
    with ExitStack() as stack:
        worker = scene.dealer(stack, bob)
        worker.send_multipart([b"MDPW02", b"\1", b"noise"])
        for frames in ([b"MDPW02", b"\5"], [b"MDPW02", b"\4", b"1", b"", b"x"], [b"MDPW02", b"\1", b"noise"]):
            for _ in range(1000):
                worker.send_multipart(frames)
            scene.others_go_on()
        for number in range(2000):
            worker.send_multipart([b"MDPW02", b"\1", b"service%d" % number])  # he may not
        scene.others_go_on()
