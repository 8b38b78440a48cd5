"""A server with access control, integrated and at a broker apart: clients with keys are served, others are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support.access_files import ALICE, BOB, AccessFiles
from support.processes import SUPPORT, Process
from support.secured import access, raw_socket, told, user
from support.serving import QUICK, serving
from support.serving import config as config_at
from support.waiting import until

from broker import Broker, BrokerConfig, EndpointError, Worker, load_access, load_secret, new_keys
from titanic import Client, UnknownRequest
from titanic.client.calls import VIA
from titanic.errors import Forbidden, KeyRefused, TimedOut
from titanic.protocol.permissions import RULES
from titanic.protocol.tsp import SERVICES
from titanic.server.attached_front import BUSY_SERVICES, FEW_LANES
from titanic.server.server import Server

QUEUE = '[users.queue]\nkeys = ["queue.key"]\nwork = ["titanic.*"]\ncall = ["*"]\n'
"""A queue that is apart from its broker."""

LANES_OF_64 = 64 * len(BUSY_SERVICES) + FEW_LANES * (len(SERVICES) - len(BUSY_SERVICES))
"""Connections of a queue that has 64 lanes."""


@pytest.fixture
def files(tmp_path: Path) -> AccessFiles:
    return AccessFiles(tmp_path / "access", ALICE + BOB + QUEUE)


@contextmanager
def integrated(folder: Path, files: AccessFiles) -> Iterator[str]:
    with serving(folder, access=files.path, key=files.key) as server:
        yield server.endpoints[0]


@contextmanager
def brokering(files: AccessFiles) -> Iterator[str]:
    """A broker with access control, and no queue."""
    access, keys = load_access(files.path), load_secret(files.key)
    broker = Broker(BrokerConfig(heartbeat_interval=0.5, liveness=60), access=access, keys=keys, rules=RULES)
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with broker:
        yield endpoint


@contextmanager
def apart(folder: Path, files: AccessFiles) -> Iterator[str]:
    with brokering(files) as endpoint, serving(folder, broker=endpoint, **keys(files, "queue")) as server:
        until(lambda: server.ready)
        yield endpoint


@pytest.fixture(params=[integrated, apart])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path, files: AccessFiles) -> Iterator[str]:
    with request.param(tmp_path, files) as endpoint:
        yield endpoint


def keys(files: AccessFiles, name: str) -> dict[str, Any]:
    return {"key": files.secret(name), "server_key": files.server_key}


def test_a_request_lives_with_keys_on_all_sides(endpoint: str, files: AccessFiles) -> None:
    alice = keys(files, "alice")
    with (
        Worker("upper", lambda frames: frames[0].upper(), endpoint, config=QUICK, **alice),
        Client(endpoint, timeout=30, **alice) as client,
    ):
        uuid = client.submit("upper", b"hello")
        assert client.wait(uuid, 30) == [b"HELLO"]
        assert [row["uuid"] for row in client.list()[0]] == [uuid]
        with Client(endpoint, timeout=30, **keys(files, "bob")) as other:
            with pytest.raises(
                Forbidden, match=r"user 'bob' may not submit to 'upper'; it needs submit = \[\"upper\"\]"
            ):
                other.submit("upper", b"x")
            with pytest.raises(Forbidden, match="user 'bob' may not read requests"):
                other.reply(uuid)
        client.close(uuid)
        uuids = client.submit_many("upper", ["a", "b", "c"])
        assert dict(client.replies(uuids, 30)) == dict(zip(uuids, ([b"A"], [b"B"], [b"C"]), strict=True))


def test_who_has_no_key_or_an_unknown_one_is_told_so(
    endpoint: str, files: AccessFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.client.PROBE_AFTER", 0.05)
    stranger = AccessFiles(tmp_path / "stranger")
    for credentials in (
        {},
        {"key": stranger.secret("alice"), "server_key": files.server_key},
        {"key": files.secret("alice"), "server_key": stranger.server_key},
    ):
        with Client(endpoint, timeout=30, retries=0, **credentials) as client, pytest.raises(KeyRefused):
            client.submit("upper", b"x")


def test_a_queue_apart_whose_key_is_refused_says_so_and_goes_on(
    tmp_path: Path, files: AccessFiles, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = AccessFiles(tmp_path / "stranger")
    settings = {"key": stranger.secret("queue"), "server_key": files.server_key}
    with brokering(files) as endpoint:
        began = time.monotonic()
        with serving(tmp_path, broker=endpoint, **settings) as server:
            (record, *_) = until(lambda: [one for one in caplog.records if one.levelno >= logging.ERROR])
            assert time.monotonic() - began < 20
            assert not server.ready
        assert record.message.startswith(f"the server at {endpoint} refused this key")


def test_a_queue_apart_that_may_not_be_one_is_told_what_it_needs(
    tmp_path: Path, files: AccessFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """And not that nobody answers: somebody does, and sends it away."""
    with brokering(files) as endpoint, serving(tmp_path, broker=endpoint, **keys(files, "alice")):
        (said, *_) = until(lambda: [one.message for one in caplog.records if "refuses workers" in one.getMessage()])
    assert said.startswith(f"the broker at {endpoint} refuses workers of titanic: ")
    assert 'does not permit them (work = ["titanic.*"])' in said


def most_asked(began: float) -> float:
    """Refusals of one lane of each service since then, however slow the machine is."""
    return (10 + (time.monotonic() - began) / QUICK.reconnect_first) * len(SERVICES)


def test_of_a_queue_apart_that_is_refused_one_lane_asks(tmp_path: Path, files: AccessFiles) -> None:
    """Of each service; the others wait until it is let in, and have no more than that one to wait for."""
    config, pair = BrokerConfig(heartbeat_interval=0.5, liveness=60), load_secret(files.key)
    broker = Broker(config, access=load_access(files.path), keys=pair, rules=RULES)
    endpoint = broker.bind("tcp://127.0.0.1:*")

    def refused() -> int:
        return broker.refusals().get(("queue", "work"), 0)

    with broker, serving(tmp_path, broker=endpoint, lanes=64, **keys(files, "queue")) as server:
        until(lambda: sum(broker.workers().values()) == LANES_OF_64)
        began = time.monotonic()
        files.write(QUEUE.replace("titanic.*", "other"))
        broker.reload(load_access(files.path))
        until(lambda: not server.ready and refused() >= LANES_OF_64)
        until(lambda: refused() > LANES_OF_64 + 3 * len(SERVICES))
        assert refused() < LANES_OF_64 + most_asked(began)
        files.write(QUEUE)
        broker.reload(load_access(files.path))
        until(lambda: sum(broker.workers().values()) == LANES_OF_64)
        assert server.ready


def test_a_queue_apart_that_is_let_in_later_began_with_one_lane(tmp_path: Path, files: AccessFiles) -> None:
    files.write(QUEUE.replace("titanic.*", "titanic.stats"))
    broker = Broker(BrokerConfig(), access=load_access(files.path), keys=load_secret(files.key), rules=RULES)
    endpoint = broker.bind("tcp://127.0.0.1:*")
    began = time.monotonic()
    with broker, serving(tmp_path, broker=endpoint, lanes=64, **keys(files, "queue")):
        until(lambda: broker.workers() == {b"titanic.stats": 4})
        until(lambda: broker.refusals().get(("queue", "work"), 0) > 2 * len(SERVICES))
        assert broker.refusals()["queue", "work"] < most_asked(began)
        files.write(QUEUE)
        broker.reload(load_access(files.path))
        until(lambda: sum(broker.workers().values()) == LANES_OF_64)


def test_a_queue_that_may_not_ask_whether_there_is_another_says_so(
    tmp_path: Path, files: AccessFiles, caplog: pytest.LogCaptureFixture
) -> None:
    new_keys(files.folder, "second")
    files.write(QUEUE + '[users.second]\nkeys = ["second.key"]\nwork = ["titanic.request"]\ncall = ["*"]\n')
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with brokering(files) as endpoint, serving(tmp_path / "one", broker=endpoint, **keys(files, "queue")) as first:
        until(lambda: first.ready)
        with serving(tmp_path / "two", broker=endpoint, **keys(files, "second")):
            said = until(
                lambda: [line.message for line in caplog.records if "cannot check whether" in line.getMessage()]
            )
    assert "user 'second' may not see statistics" in said[0]
    assert 'work = ["titanic.*"]' in said[0]


def test_a_queue_whose_broker_has_no_access_control_any_more_serves_nobody(tmp_path: Path) -> None:
    """Or everybody could read what users have submitted, as soon as a broker is started in the wrong way."""
    here, there = f"ipc://{tmp_path}/here", f"ipc://{tmp_path}/there"
    queue, shop = user("queue", work=["titanic.*"], call=["*"]), user("shop", submit=["mail"], read="own")
    config = BrokerConfig(heartbeat_interval=0.2, liveness=150)
    broker = Broker(config, access=access({}, {here: queue, there: shop}), rules=RULES)
    for endpoint in (here, there):
        broker.bind(endpoint)
    with Server(config_at(tmp_path, broker=here)) as server:
        with broker, Client(there, timeout=30) as client:
            uuid = client.submit("mail", b"x")
            assert client.list()[0][0]["owner"] == "shop"
        broker = Broker(config)
        broker.bind(here)
        with broker:
            problem = until(lambda: server.problem)
            with Client(here, timeout=30) as client, pytest.raises((UnknownRequest, Forbidden)):
                client.reply(uuid)
    assert str(problem).startswith(
        f"the broker at {here} no longer has access control; anyone who connects there could"
    )


def test_at_a_broker_of_others_that_encrypts(tmp_path: Path, files: AccessFiles) -> None:
    """It knows MDP 0.1 and no users: a peer with its key may do everything."""
    endpoint, queue = f"ipc://{tmp_path}/broker", keys(files, "queue")
    with (
        Process(SUPPORT / "rfc7_broker.py", endpoint, "0.5", files.key, output=tmp_path / "broker.out"),
        serving(tmp_path, broker=endpoint, **queue),
        Worker("upper", lambda frames: frames[0].upper(), endpoint, config=QUICK, **queue),
        Client(endpoint, timeout=30, version="0.1", **keys(files, "bob")) as client,
    ):
        uuid = client.submit("upper", b"hello")
        assert client.wait(uuid, 30) == [b"HELLO"]
        client.close(uuid)
        with Client(endpoint, timeout=30, retries=0, version="0.1") as keyless, pytest.raises(KeyRefused):
            keyless.submit("upper", b"x")


def test_where_others_can_connect_it_takes_keys(tmp_path: Path, files: AccessFiles) -> None:
    """It gets as far as binding; this machine has no such address."""
    with (
        pytest.raises(EndpointError, match="this machine has no such address"),
        serving(tmp_path, access=files.path, key=files.key, bind=("tcp://192.0.2.1:5555",)),
    ):
        pass


def test_a_user_who_is_taken_away_is_not_served_any_more(tmp_path: Path, files: AccessFiles) -> None:
    with (
        serving(tmp_path, access=files.path, key=files.key) as server,
        Client(server.endpoints[0], timeout=10, retries=0, **keys(files, "alice")) as client,
    ):
        client.submit("upper", b"x")
        files.write(BOB)
        server.reload(server.config)
        in_force = Event()  # what has come already may be read before
        server.front.loop.call(in_force.set)
        assert in_force.wait(30)
        with pytest.raises((KeyRefused, TimedOut)):
            client.submit("upper", b"x")
        with (
            Client(server.endpoints[0], timeout=30, retries=0, **keys(files, "alice")) as again,
            pytest.raises(KeyRefused, match="refused this key"),
        ):
            again.submit("upper", b"x")
        assert server.accepted == 1


def test_who_waits_and_may_read_no_more_is_not_told(tmp_path: Path, files: AccessFiles) -> None:
    alice, server_key = load_secret(files.secret("alice")), load_secret(files.key).public
    with (
        serving(tmp_path, access=files.path, key=files.key) as server,
        Client(server.endpoints[0], timeout=30, **keys(files, "alice")) as client,
        raw_socket(server.endpoints[0], alice, server=server_key) as waiting,
    ):
        wait = [b"MDPC02", b"\1", b"titanic.wait", b"60", client.submit("upper", b"x").encode()]
        waiting.send_multipart(wait)
        until(lambda: server.dispatcher.waiters.next_deadline() is not None)
        files.write(ALICE.replace('read = "own"', "") + BOB + QUEUE)
        server.reload(server.config)
        assert told(waiting)[3:] == [b"300"], "at once, and not the reply when there is one"
        waiting.send_multipart(wait)
        assert told(waiting)[3].startswith(b"403 forbidden: user 'alice' may not read requests")


def test_who_waits_at_a_queue_apart_and_may_read_no_more_is_not_told(tmp_path: Path, files: AccessFiles) -> None:
    """The queue has the wait for as long as an hour, and learns of no reload: the broker takes the wait back, and gives
    it to another lane with what the user may do now."""
    alice, server_key = load_secret(files.secret("alice")), load_secret(files.key).public
    access_before, server_keys = load_access(files.path), load_secret(files.key)
    broker = Broker(
        BrokerConfig(heartbeat_interval=0.5, liveness=60), access=access_before, keys=server_keys, rules=RULES
    )
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with (
        broker,
        serving(tmp_path, broker=endpoint, **keys(files, "queue")) as server,
        Client(endpoint, timeout=30, **keys(files, "alice")) as client,
        raw_socket(endpoint, alice, server=server_key) as waiting,
    ):
        until(lambda: server.ready)
        wait = [b"MDPC02", b"\1", b"titanic.wait", b"60", client.submit("upper", b"x").encode()]
        waiting.send_multipart(wait)
        until(lambda: server.dispatcher.waiters.next_deadline() is not None)
        files.write(ALICE.replace('read = "own"', "") + BOB + QUEUE)
        broker.reload(load_access(files.path))
        assert told(waiting)[3].startswith(b"403"), "at once, and not the reply when there is one"
        until(lambda: not len(server.dispatcher.waiters))
        waiting.send_multipart(wait)
        assert told(waiting)[3].startswith(b"403 forbidden: user 'alice' may not read requests")
        broker.reload(access_before)
        in_force = Event()
        broker.loop.call(in_force.set)
        assert in_force.wait(30)
        waiting.send_multipart([*wait[:3], b"0", wait[4]])
        assert told(waiting)[3:] == [b"300"]


def test_a_client_that_was_there_before_the_queue_states_the_way(tmp_path: Path) -> None:
    files = AccessFiles(tmp_path / "access", QUEUE + 'submit = ["*"]\nadmin = true\n')
    mine, services = keys(files, "queue"), count()
    before = VIA.set("page 192.0.2.7")

    def acts(client: Client) -> list[tuple[str, str]]:
        with suppress(TimedOut):  # no queue, or a busy machine
            client.set_service(f"echo-{next(services)}", paused=True)
            return [(one["way"], one["address"]) for one in client.audit()["acts"]]
        return []

    try:
        with brokering(files) as endpoint, Client(endpoint, timeout=1, retries=0, **mine) as client:
            assert not acts(client)
            with serving(tmp_path, broker=endpoint, **mine) as server:
                until(lambda: server.ready)
                until(lambda: ("page", "192.0.2.7") in acts(client))
    finally:
        VIA.reset(before)
