"""Servers of patterns: with keys for peers that have an allowed key, without keys for this machine only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.secured import SERVER, curve_of, new_pair, raw_socket, say_too_much, told
from support.waiting import until

from broker import EndpointError, KeyRefused, Keys, Unprotected, UsageError, new_keys
from broker.io.server_keys import ServerKeys
from broker.patterns import (
    BinaryStar,
    BinaryStarClient,
    Freelance,
    Gather,
    GeneraldomoBroker,
    LazyPirate,
    ParanoidQueue,
    ParanoidWorker,
    Scatter,
    Server,
    Shotgun,
    SimpleQueue,
    SimpleWorker,
    StarConfig,
    freelance_server,
)

ANY = "tcp://127.0.0.1:*"
EXPOSED = "tcp://192.0.2.1:5555"
"""An address that this machine does not have: nothing here listens to others."""
BEAT = StarConfig(heartbeat=0.5)  # a server that stands still for half of it answers nobody for now

FRIEND, STRANGER = new_pair(), new_pair()
KEYS = ServerKeys(SERVER, frozenset([FRIEND.public.decode()]), open=False)


def echo(frames: list[bytes]) -> list[bytes]:
    return frames


def of_one(server: Server, client: Callable[..., Any], stack: ExitStack) -> Callable[[Keys], Any]:
    (endpoint,) = server.endpoints
    stack.enter_context(server)
    return lambda pair: client(endpoint, key=curve_of(pair))


def of_queue(queue: Any, worker: Callable[..., Any], stack: ExitStack) -> Callable[[Keys], Any]:
    front, back = queue.bind_clients(ANY), queue.bind_workers(ANY)
    stack.enter_context(queue)
    stack.enter_context(worker(echo, back, key=curve_of(FRIEND)))
    return lambda pair: LazyPirate(front, key=curve_of(pair))


def of_star(stack: ExitStack) -> Callable[[Keys], Any]:
    primary = BinaryStar(primary=True, bind=ANY, config=BEAT, key=KEYS)
    backup = BinaryStar(primary=False, bind=ANY, peer=primary.endpoint, config=BEAT, key=KEYS)
    primary.connect(backup.endpoint)
    first, second = [star.serve(echo, ANY) for star in (primary, backup)]
    for star in (primary, backup):
        stack.enter_context(star)
    until(lambda: primary.active)  # it has heard the other one: nobody else asks
    return lambda pair: BinaryStarClient(first, second, config=BEAT, key=curve_of(pair))


def freelance(model: int) -> Server:
    return freelance_server(echo, ANY, model=model, key=KEYS)


def plain() -> Server:
    server = Server(echo, key=KEYS)
    server.bind(ANY)
    return server


SERVING: dict[str, Callable[[ExitStack], Callable[[Keys], Any]]] = {
    "lazy pirate": lambda stack: of_one(plain(), LazyPirate, stack),
    "simple pirate": lambda stack: of_queue(SimpleQueue(key=KEYS), SimpleWorker, stack),
    "paranoid pirate": lambda stack: of_queue(ParanoidQueue(key=KEYS), ParanoidWorker, stack),
    "freelance 1": lambda stack: of_one(freelance(1), LazyPirate, stack),
    "freelance 2": lambda stack: of_one(freelance(2), Shotgun, stack),
    "freelance 3": lambda stack: of_one(freelance(3), Freelance, stack),
    "binary star": of_star,
}
"""Servers of patterns; what comes back makes a client with a key."""


@pytest.mark.parametrize("pattern", SERVING)
def test_only_who_has_a_key_that_is_allowed_is_answered(
    pattern: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("broker.client", "broker.patterns.freelance.freelance"):
        monkeypatch.setattr(f"{module}.PROBE_AFTER", 0.1)
    with ExitStack() as stack:
        connect = SERVING[pattern](stack)
        with connect(FRIEND) as client:
            assert client.call(b"hello", timeout=30) == [b"hello"]
        with connect(STRANGER) as client, pytest.raises(KeyRefused, match="refused this key"):
            client.call(b"hello", timeout=30)
        until(lambda: f"no user has the public key {STRANGER.public.decode()}" in caplog.text)


def test_who_has_no_key_is_not_heard() -> None:
    with ExitStack() as stack:
        server = plain()
        (endpoint,) = server.endpoints
        stack.enter_context(server)
        nobody = stack.enter_context(raw_socket(endpoint))
        friend = stack.enter_context(raw_socket(endpoint, FRIEND))
        for socket in (nobody, friend):
            socket.send_multipart([b"", b"hello"])
        assert told(friend) == [b"", b"hello"]
        assert not nobody.poll(0)


def test_a_handshake_that_says_too_much_is_ended() -> None:
    with plain() as server:
        say_too_much(server.endpoints[0])
    with BinaryStar(primary=True, bind=ANY, config=BEAT, key=KEYS) as star:
        say_too_much(star.endpoint)


def test_who_takes_a_name_is_sent_away(caplog: pytest.LogCaptureFixture) -> None:
    """It could be another's, whose replies it would get."""
    with ExitStack() as stack:
        server = plain()
        stack.enter_context(server)
        named = stack.enter_context(raw_socket(server.endpoints[0], FRIEND, name=b"me"))
        named.send_multipart([b"", b"hello"])
        until(lambda: "it sets its own routing id" in caplog.text)
        assert not named.poll(0)


def test_the_state_of_a_binary_star_is_for_the_other_server_only() -> None:
    with BinaryStar(primary=True, bind=ANY, config=BEAT, key=KEYS) as star, ExitStack() as stack:
        heard = [stack.enter_context(raw_socket(star.endpoint, pair, zmq.SUB)) for pair in (None, STRANGER, FRIEND)]
        other = stack.enter_context(raw_socket(star.endpoint, SERVER, zmq.SUB))
        for socket in (*heard, other):
            socket.subscribe(b"")
        for _ in range(3):
            assert told(other) == [b"1"]
        assert not any(socket.poll(0) for socket in heard)


def test_a_key_and_those_whom_it_lets_in_come_together(tmp_path: Path) -> None:
    public, secret = new_keys(tmp_path, "server")
    for given, said in (
        ({"key": secret}, "but no allowed keys"),
        ({"allow": [public]}, "the server has no key of its own"),
        ({"key": public, "allow": [public]}, "it has only a public key"),
        ({"key": secret, "allow": ["nonsense"]}, "neither a public key nor a file"),
    ):
        for make in (Server, lambda handler, **keys: SimpleQueue(**keys)):
            with pytest.raises(UsageError, match=said):
                make(echo, **given)  # type: ignore[operator]
    server = Server(echo, key=secret, allow=FRIEND.public.decode())
    with server, LazyPirate(server.bind(ANY), key=curve_of(FRIEND, _public(public))) as client:
        assert client.call("hello") == [b"hello"]


def _public(path: Path) -> bytes:
    return path.read_text().split('"')[1].encode()


BINDS: dict[str, tuple[Callable[..., Any], Callable[[Any], object]]] = {
    "server": (lambda **given: Server(echo, **given), lambda server: server.bind(EXPOSED)),
    "clients": (SimpleQueue, lambda queue: queue.bind_clients(EXPOSED)),
    "workers": (ParanoidQueue, lambda queue: queue.bind_workers(EXPOSED)),
    "freelance": (
        lambda **given: freelance_server(echo, EXPOSED, public="tcp://10.0.0.1:5555", **given),
        lambda server: server.endpoints,
    ),
    "state": (lambda **given: BinaryStar(primary=True, bind=EXPOSED, **given), lambda star: star.endpoint),
    "star": (
        lambda **given: BinaryStar(primary=True, bind=ANY, **given),
        lambda star: star.serve(echo, EXPOSED),
    ),
}
"""How to make a server, and to have it listen; some do at once."""


@pytest.mark.parametrize("where", BINDS)
def test_others_can_connect_only_with_keys_or_when_that_is_meant(where: str, caplog: pytest.LogCaptureFixture) -> None:
    make, bind = BINDS[where]

    def listen(**given: Any) -> None:
        with ExitStack() as stack:
            server = make(**given)
            stack.callback(server.stop)
            bind(server)

    with pytest.raises(Unprotected, match="patterns have no access control other than keys") as caught:
        listen()
    assert "--key-file server.key_secret --allow me.key" in str(caught.value)
    with pytest.raises(EndpointError, match="no such address"):
        listen(key=KEYS)
    assert caplog.records == []
    with pytest.raises(EndpointError, match="no such address"):
        listen(open=True)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_draft_sockets_have_no_keys() -> None:
    for make in (Gather, Scatter):
        with make() as end, pytest.raises(Unprotected, match="patterns with draft sockets have no access control"):
            end.bind(EXPOSED)
        with make(open=True) as end, pytest.raises(EndpointError, match="cannot bind"):
            end.bind(EXPOSED)
    domo = GeneraldomoBroker()
    for bind in (domo.bind, domo.bind_server):
        with pytest.raises(Unprotected, match="patterns with draft sockets have no access control"):
            bind(EXPOSED)
    domo.stop()
