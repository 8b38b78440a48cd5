"""`titanic serve` and `titanic broker`: how they stop, and what keeps them from starting."""

from __future__ import annotations

import logging
import re
import signal
import socket
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import lmdb
import pytest
from support.cli_titanic import here, running, serving, titanic
from support.ports import free_port
from support.raw_mdp import raw_worker
from support.waiting import until

from broker import Broker, BrokerConfig
from titanic.client.client import Client
from titanic.errors import Refused, TimedOut

ANY = "tcp://127.0.0.1:*"


def test_a_signal_ends_it_while_traffic_flows(tmp_path: Path) -> None:
    """What was acknowledged until then is there afterwards."""
    with (
        serving(tmp_path) as (server, endpoint),
        Client(endpoint, timeout=30) as client,
        Client(endpoint, timeout=0.2, retries=0) as hasty,
    ):
        acknowledged = [client.submit("s", "x") for _ in range(10)]
        server.send(signal.SIGTERM)
        try:
            while True:
                acknowledged.append(hasty.submit("s", "x"))
        except (Refused, TimedOut):
            pass
        assert server.ends() == 0
        assert server.log.read_text().endswith("stopping\n")
    with serving(tmp_path) as (_, endpoint), Client(endpoint) as client:
        assert all(client.reply(uuid) is None for uuid in acknowledged)
    assert here("check", "--store", tmp_path / "store").code == 0


def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Even while a worker has a request, and does not return with it."""
    with serving(tmp_path, "--grace", "1000") as (server, endpoint), raw_worker(endpoint, b"slow") as worker:
        here("submit", "slow", "x", "--endpoint", endpoint)
        worker.take()
        server.send(signal.SIGINT)
        server.says("stopping")
        server.send(signal.SIGINT)
        assert server.ends() == 128 + signal.SIGINT
    assert here("check", "--store", tmp_path / "store").code == 0


@pytest.mark.parametrize("durability", ["synced", "relaxed", "memory"])
def test_a_kill_loses_nothing_and_it_is_said_what_a_power_cut_may_take(durability: str) -> None:
    said = "" if durability == "synced" else f"; durability {durability}"
    with TemporaryDirectory(dir="/dev/shm") as folder:
        uuids = []
        for stored in ("new, for 1GiB", "20 requests, 20 waiting"):
            with serving(Path(folder), "--durability", durability) as (server, endpoint), Client(endpoint) as client:
                server.says(f"; store {folder}/store: {stored}{said}\n")
                if durability != "memory":
                    server.says(f"the store {folder}/store is on tmpfs, in memory: it is lost when the machine stops")
                assert all(client.reply(uuid) is None for uuid in uuids)
                uuids += [client.submit("s", "x") for _ in range(20)]
                status = here("status", "--endpoint", endpoint).out.decode().splitlines()[0]
                assert status.endswith(f" 0 closed kept{said}")
                assert here("status", "--json", "--endpoint", endpoint).json["durability"] == durability
                server.kill()
        assert here("check", "--store", f"{folder}/store").code == 0
        assert here("status", "--json", "--store", f"{folder}/store").json["store"]["waiting"] == 40


def test_a_store_in_memory_that_is_not_there_is_wrong_usage(on_disk: Path) -> None:
    done = here("serve", "--bind", ANY, "--durability", "memory", "--store", on_disk / "store")
    assert done.code == 2
    assert f"the store's directory {on_disk}/store is not in memory; it is on " in done.err
    assert list(on_disk.iterdir()) == []


def test_a_command_that_starts_the_log_leaves_that_of_other_tests_alone(on_disk: Path) -> None:
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    assert here("serve", "--bind", ANY, "--durability", "memory", "--store", on_disk / "store").code == 2
    assert (root.level, root.handlers) == before


def test_a_broker_stops_too(tmp_path: Path) -> None:
    with running(tmp_path / "log", "broker", "--bind", ANY) as broker:
        endpoint = broker.says(r"broker at (\S+)\n")[1]
        assert here("call", "mmi.services", "--endpoint", endpoint).code == 0
        broker.send(signal.SIGTERM)
        assert broker.ends() == 0


def test_the_port_is_free_again_right_after_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path, bind=f"tcp://127.0.0.1:{free_port()}") as (server, endpoint):
        uuid = here("submit", "s", "x", "--endpoint", endpoint).line
        server.kill()
    with serving(tmp_path, bind=endpoint):
        assert here("reply", uuid, "--endpoint", endpoint).code == 3


# -- what keeps it from starting -----------------------------------------------------------------------------------


def refusal(store: Path, bind: str = ANY, code: int = 1) -> str:
    """What `titanic serve` says when it cannot."""
    done = titanic("serve", "--bind", bind, "--store", store, TITANIC_OPEN="1", TITANIC_LOG_LEVEL="error")
    assert (done.code, done.out) == (code, b"")
    assert len(done.err.splitlines()) == 1
    return done.err


def test_the_store_is_in_use(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, endpoint):
        assert f"pid {server.process.pid}" in refusal(tmp_path / "store")
        assert here("status", "--endpoint", endpoint).code == 0


def test_the_address_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        expected = f"titanic: cannot bind {endpoint}: Address already in use"
        assert expected in refusal(tmp_path / "store", endpoint)
        assert not (tmp_path / "store").exists()
        broker = titanic("broker", "--bind", endpoint)
        assert broker.code == 1
        assert expected in broker.err


def test_the_heartbeat_counts_for_the_lanes_at_a_broker_elsewhere(tmp_path: Path) -> None:
    broker = Broker(BrokerConfig(heartbeat_interval=5))
    endpoint = broker.bind(ANY)
    options = ("--broker", endpoint, "--heartbeat", "0.1", "--lanes", "1")
    with broker, running(tmp_path / "log", "serve", "--store", tmp_path / "store", *options):
        until(lambda: any(worker.heartbeat.interval < 1 for worker in list(broker.core.workers.values())))


def test_the_broker_has_a_queue_already(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, endpoint):
        done = titanic("serve", "--broker", endpoint, "--store", tmp_path / "other")
    assert (done.code, done.out) == (1, b"")
    assert f"titanic: another queue serves the broker at {endpoint} already; its store is {tmp_path}" in done.err
    assert "connecting" not in done.err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("bind", "advice"),
    [
        ("nonsense", "write it like tcp://127.0.0.1:5555 or ipc:///run/titanic.sock"),
        ("tcp://127.0.0.1", "write it like"),
        ("carrier://pigeon", "write it like"),
        ("ipc:///no/such/folder/socket", "the directory of an ipc:// endpoint must exist"),
    ],
)
def test_the_address_cannot_be(tmp_path: Path, bind: str, advice: str) -> None:
    said = refusal(tmp_path / "store", bind, 2)
    assert re.match(rf"titanic: cannot bind {re.escape(bind)}: \w[^;]+; {re.escape(advice)}", said)
    assert "addr=" not in said


@pytest.mark.parametrize("host", ["192.0.2.1", "[2001:db8::1]", "wg7"])
def test_the_address_is_not_there_yet(tmp_path: Path, host: str) -> None:
    """It may come: while the machine boots, or with a failover. Whoever starts us tries again, which 2 would forbid."""
    said = refusal(tmp_path / "store", f"tcp://{host}:5555", 1)
    assert "; this machine has no such address: choose one of its addresses, or 0.0.0.0 for all" in said


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--bind", "tcp://0.0.0.0:*"),
        ("serve", "--bind", ANY, "--bind", "*:*"),
        ("broker", "--bind", "tcp://0.0.0.0:*"),
    ],
)
def test_an_address_is_not_open_by_mistake(tmp_path: Path, command: tuple[str, ...]) -> None:
    store = ("--store", str(tmp_path / "store")) if command[0] == "serve" else ()
    done = titanic(*command, *store)
    assert done.code == 2  # systemd does not try again
    what, keys, users, again, options, clients, way_out = done.err.splitlines()
    assert what.startswith(f"titanic: cannot bind {command[-1]}: other machines could reach it")
    assert keys.split()[:3] == ["titanic", "keys", "server"]
    assert users.strip().startswith("printf '[users.me]\\nkeys = ")
    assert users.endswith("' >access.toml")
    assert again == "and start this again with"
    assert options.split()[:4] == ["--access", "access.toml", "--key-file", "server.key_secret"]
    assert "--key-file me.key_secret --server-key server.key" in clients
    assert "--open, in Python open=True" in way_out
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("command", ["serve", "broker"])
def test_an_open_address_is_logged_once(tmp_path: Path, command: str) -> None:
    store = ("--store", tmp_path / "store") if command == "serve" else ()
    done = titanic(command, "--bind", ANY, "--bind", "tcp://192.0.2.1:5555", "--open", *store)
    assert done.err.count("tcp://192.0.2.1:5555 is open: any client that reaches it") == 1
    assert done.err.count("is open") == 1
    assert "cannot bind tcp://192.0.2.1:5555: " in done.err  # this machine has no such address


def test_metrics_are_not_open_by_mistake(tmp_path: Path) -> None:
    done = titanic("serve", "--bind", ANY, "--store", tmp_path / "store", "--metrics", ":0")
    assert done.code == 2
    assert "cannot serve metrics at :0: other machines could read them" in done.err


def test_the_store_cannot_be_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a store" in refusal(tmp_path / "file")
    assert "can't be created" in refusal(tmp_path / "file" / "store")
    assert "[Errno" not in refusal(tmp_path / "file" / "store")
    (tmp_path / "notes.txt").touch()
    assert "is not a store" in refusal(tmp_path)


def test_a_new_store_is_said_to_be_new(tmp_path: Path) -> None:
    with serving(tmp_path, "--capacity", "64MiB") as (server, _):
        server.says(rf"; store {tmp_path}/store: new, for 64MiB\n")
    with serving(tmp_path) as (server, _):
        server.says(rf"; store {tmp_path}/store: 0 requests, 0 waiting\n")


def test_a_store_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """It may be misspelt, or a disk that isn't mounted: a new store would seem to have lost everything."""
    done = titanic("serve", "--bind", ANY, "--store", tmp_path / "no" / "store")
    assert (done.code, done.out) == (2, b"")
    assert f"cannot create the store {tmp_path}/no/store; {tmp_path}/no does not exist; create it" in done.err
    assert not (tmp_path / "no").exists()


def test_the_store_is_of_a_later_version(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving(tmp_path):
        pass
    with lmdb.open(str(store), max_dbs=16) as environment:
        meta = environment.open_db(b"meta", create=False)
        with environment.begin(write=True, db=meta) as transaction:
            transaction.put(b"store_format", struct.pack("<I", 999))
    for said in (refusal(store), titanic("check", "--store", store).err):
        assert "was written by a later version" in said
        assert "upgrade Titanic" in said
