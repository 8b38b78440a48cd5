"""`titanic doctor` names what is wrong with a running system, and what to do."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli_titanic import here, serving
from support.nodes import cluster
from support.ports import free_port
from support.postgres import needs_postgres
from support.serving import with_broker
from support.store_facts import accept_all
from support.waiting import PATIENCE, until

from broker import Worker
from titanic import Client, Failed
from titanic.cli import doctor
from titanic.facts import service_health
from titanic.store import LeaseConfig, NewRequest, NodeFacts, ServiceSetting, open_store
from titanic.store.postgres.store import PostgresStore
from titanic.util.clock import wall_us

FEW = ("--timeout", "30")


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have a server checked: the exit code, and the findings by check. Its store is as if on a disk."""
    monkeypatch.setattr(doctor, "file_system", lambda folder: "ext4")
    with serving(tmp_path) as (_, endpoint):

        def check(*more: str | Path) -> tuple[int, dict[str, dict[str, Any]]]:
            done = here("doctor", "--json", "--endpoint", endpoint, "--store", tmp_path / "store", *FEW, *more)
            assert done.json["ok"] == (done.code == 0)
            return done.code, {one["check"]: one for one in done.json["checks"]}

        yield endpoint, check


def test_a_healthy_system(checked: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "SYSTEM_SETTINGS", tmp_path / "none.toml")
    endpoint, check = checked
    code, found = check()
    assert code == 0, found
    assert list(found) == ["settings", "store", "server", "services", "clock", "versions"]
    assert found["services"]["text"] == "nothing waits"
    lines = here("doctor", "--endpoint", endpoint, *FEW).out.decode().splitlines()
    assert all(line.startswith("ok       ") for line in lines)
    assert any("libzmq" in line for line in lines)


def test_services_without_workers_and_paused_ones(checked: Any) -> None:
    endpoint, check = checked
    at = ("--endpoint", endpoint)
    here("submit", "mail", "a", *at)
    code, found = check()
    assert (code, found["services"]["text"]) == (1, "no workers: mail (1 waiting)")
    assert found["services"]["next"] == "start workers: titanic work"
    here("pause", "mail", *at)
    code, found = check()
    assert (code, found["services"]["text"]) == (1, "paused: mail (1 waiting)")
    with Worker("mail", lambda frames: frames, endpoint):
        here("resume", "mail", *at)
        until(lambda: check()[0] == 0)


def test_a_pause_is_no_slowness(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store, store.write() as txn:
        accept_all(txn, [NewRequest(b"mail", [b"wait"])] * 2, wall_us() - 7200 * 1_000_000)
        txn.set_service(b"mail", ServiceSetting(paused=True))
    go = threading.Event()
    with serving(tmp_path) as (_, endpoint), Worker("mail", lambda _: [b""] * go.wait(PATIENCE), endpoint, jobs=1):
        try:
            here("resume", "mail", "--endpoint", endpoint)
            with Client(endpoint, timeout=PATIENCE) as client:
                until(lambda: client.stats()["running"] == 1)
            done = here("doctor", "--json", "--endpoint", endpoint, *FEW)
        finally:
            go.set()
    assert "speed" not in {one["check"] for one in done.json["checks"]}


def test_services_that_fail_or_are_slow(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, check = checked
    at = ("--endpoint", endpoint)
    monkeypatch.setattr(service_health, "SLOW_WAIT", 0.0)
    monkeypatch.setattr(service_health, "ALWAYS_SLOW", 0.0)
    go = threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        if frames[0] == b"wait":
            go.wait(PATIENCE)
        elif frames[0] != b"fine":
            raise Failed(frames[0].decode())
        return frames

    with Worker("mail", work, endpoint, jobs=1), Client(endpoint, timeout=PATIENCE) as client:
        try:
            uuids = client.submit_many("mail", [b"no way"] * 6 + [b"poison: 3 workers died"])
            until(lambda: all(client.show(uuid)["state"] == "failed" for uuid in uuids))
            first = client.submit("mail", b"wait")
            until(lambda: client.show(first)["state"] == "running")
            client.submit("mail", b"fine")
            code, found = check()
            health, services = here("health", "--json", *at, *FEW), here("services", *at).out.decode()
            line = here("health", *at, *FEW).out.decode()
        finally:
            go.set()
    assert code == 1
    said = [f"{one}: {found[one]['text']}; {found[one]['next']}" for one in ("speed", "failures", "poison")]
    assert (health.code, health.json["status"], health.json["attention"]) == (0, "healthy", said)
    assert line.startswith("healthy: 1 waiting, the oldest for ")
    assert line.endswith(f"running; needs attention: {'; needs attention: '.join(said)}\n")
    slow = "slower than usual, with all workers busy or the limit reached; add workers, or slots (--jobs)"
    assert services.endswith(f"\nmail: {slow}\n")
    assert found["failures"]["text"] == "lately: mail (7 failed, 0 done)"
    assert found["poison"]["text"] == f"killed their workers: {uuids[-1]} of mail"
    assert found["speed"]["text"] == "slower than usual, with all workers busy or the limit reached: mail (1 waiting)"
    assert found["speed"]["next"] == "add workers, or slots (--jobs)"


def test_mistakes_in_settings(checked: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, check = checked
    settings = tmp_path / "titanic.toml"
    settings.write_text("[serve]\ncapacty = '1GiB'\n")
    monkeypatch.setattr(doctor, "SYSTEM_SETTINGS", settings)
    code, found = check()
    assert code == 1
    assert "titanic.toml:2: " in found["settings"]["text"]
    assert "capacty" in found["settings"]["text"]


def test_key_files_of_the_server(checked: Any, tmp_path: Path) -> None:
    _, check = checked
    here("keys", "server", "--dir", tmp_path)
    key, settings = tmp_path / "server.key_secret", tmp_path / "titanic.toml"
    settings.write_text(f"[serve]\nkey = '{key}'\n")
    code, found = check("--config", settings)
    assert (code, found["keys"]["text"]) == (0, f"{key} is valid")
    key.chmod(0o644)
    code, found = check("--config", settings)
    assert code == 1
    assert f"run: chmod 600 {key}" in found["keys"]["text"]


def test_users_that_expire_soon(checked: Any, tmp_path: Path) -> None:
    _, check = checked
    users, settings = tmp_path / "access.toml", tmp_path / "titanic.toml"
    settings.write_text(f"[serve]\naccess = '{users}'\n")
    for expires, code, end in (
        ("2200-01-01", 0, f"{users} is valid"),
        ("2001-02-03", 1, "the keys and tokens of user shop have expired: 2001-02-04 00:00+00:00"),
        (
            datetime.fromtimestamp(time.time() + 13 * 86400, UTC).isoformat(timespec="seconds"),
            1,
            "the keys and tokens of user shop expire: ",
        ),
    ):
        users.write_text(f"[users.shop]\nexpires = {expires}\n")
        got, found = check("--config", settings)
        assert (got, found["keys"]["text"].startswith(end)) == (code, True), found["keys"]


def test_clocks_that_differ(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, check = checked
    monkeypatch.setattr(doctor, "time", SimpleNamespace(time=lambda: time.time() - 3600))
    code, found = check()
    assert code == 1
    assert "the server's clock is 60 min ahead of this one" in found["clock"]["text"]


def test_a_disk_without_room_and_a_network_file_system(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, check = checked
    no_room = SimpleNamespace(free=1 << 20)
    monkeypatch.setattr(doctor, "shutil", SimpleNamespace(disk_usage=lambda folder: no_room))
    assert "lacks" in check()[1]["store"]["text"]
    monkeypatch.setattr(doctor, "file_system", lambda folder: "nfs4")
    assert "is on a network file system (nfs4)" in check()[1]["store"]["text"]


def test_a_store_that_does_not_outlive_the_machine(
    checked: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Unless it is meant to be so."""
    _, check = checked
    monkeypatch.setattr(doctor, "file_system", lambda folder: "tmpfs")
    code, found = check()
    assert code == 1
    assert found["store"]["text"].endswith("/store is in memory (tmpfs): it is lost when the machine stops")
    assert found["store"]["next"] == "move it to a disk, or set durability to memory"
    settings = tmp_path / "titanic.toml"
    settings.write_text("[serve]\ndurability = 'memory'\n")
    assert check("--config", settings)[0] == 0


def test_no_server_and_no_store(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    done = here("doctor", "--json", "--endpoint", endpoint, "--store", tmp_path / "none", "--timeout", "0.1")
    assert done.code == 1
    found = {one["check"]: one for one in done.json["checks"]}
    assert "there is no store at" in found["store"]["text"]
    assert endpoint in found["server"]["text"]


@needs_postgres
def test_a_store_in_a_database(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as nodes:
        at = ("--endpoint", nodes[0].endpoints[0], "--store", nodes.url, *FEW)
        found = {one["check"]: one for one in here("doctor", "--json", *at).json["checks"]}
    assert all(found[name]["ok"] for name in ("store", "server", "services", "clock")), found
    assert found["store"]["text"].endswith(": 0 requests")
    assert found["nodes"]["text"] == "1 share the store"


@needs_postgres
def test_a_node_that_ended_with_a_request(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as nodes, PostgresStore.open(nodes.url) as store:
        store.join(99, None, [], NodeFacts("dead", "v"), LeaseConfig())
        with store.write() as txn:
            accept_all(txn, [NewRequest(b"x", [b""])], wall_us())
            assert txn.claim(99, {b"x": 1}, 1 << 20, {}).rows
        store.leave([99])
        done = here("doctor", "--json", "--endpoint", nodes[0].endpoints[0], *FEW)
        with Client(nodes[0].endpoints[0], timeout=30) as client:
            assert [node["claims"] for node in client.nodes() or () if node["lease"] is None] == [1]
    found = {one["check"]: one for one in done.json["checks"]}
    assert done.code == 1
    assert found["nodes"]["text"] == "stopped without a clean shutdown: dead (1 request claimed)"
    assert found["nodes"]["next"] == "start them again; titanic nodes"


def test_a_separate_broker(tmp_path: Path) -> None:
    with with_broker(tmp_path, "stand-alone") as server:
        until(lambda: server.ready)
        at = ("--endpoint", server.endpoints[0], *FEW)
        found = {one["check"]: one for one in here("doctor", "--json", *at).json["checks"]}
    assert all(found[name]["ok"] for name in ("server", "services", "clock", "versions")), found
