"""What Prometheus sees of a server that runs, and what it says of its health."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily
from support.access_files import ALICE, BOB, AccessFiles
from support.cli_titanic import here, running, titanic
from support.processes import SUPPORT, Process
from support.scraping import Samples, ask, samples
from support.serving import serving
from support.waiting import until

from broker import RemoteError, Worker
from titanic.client.client import Client
from titanic.commit.writer import Histogram
from titanic.errors import Forbidden, Refused
from titanic.facts.counts import ACCEPTED
from titanic.facts.recorder import MOST_NAMED
from titanic.metrics import families
from titanic.metrics import listener as listener_module
from titanic.metrics.listener import MOST, MetricsListener
from titanic.server.snapshot import MOST_SERVICES, OTHERS, ServiceSnapshot, bounded, gather, others

ANY = "tcp://127.0.0.1:*"


@contextmanager
def observed(folder: Path, *options: str, command: str = "serve") -> Iterator[tuple[str, str]]:
    """A server, where it is, and where its figures are."""
    store = ("--store", str(folder / "store")) if command == "serve" else ()
    arguments = (command, "--bind", ANY, *store, "--metrics", "127.0.0.1:0", *options)
    with running(folder / "log", *arguments) as server:
        endpoint = server.says(r"(?:serving|broker) at ([^;\s]+)")[1]
        yield endpoint, server.says(r"metrics at (\S+)/metrics")[1]


def with_lags(base: str) -> Samples | None:
    """What is exported once the threads were asked for the first time."""
    found = samples(base)
    return found if 'titanic_thread_lag_seconds{thread="broker"}' in found else None


def with_workers(base: str, **workers: int) -> Samples | None:
    """What is exported once services have so many workers."""
    found = samples(base)
    told = {name: found.get(f'titanic_workers{{service="{name}"}}') for name in workers}
    return found if told == workers else None


def without(found: Samples, name: str) -> Samples | None:
    """What is exported once a figure is 0."""
    return found if found[name] == 0 else None


def fail(frames: list[bytes]) -> list[bytes]:
    raise RemoteError(500, "no way")


def test_the_life_of_requests_is_counted(tmp_path: Path) -> None:
    options = ("--max-attempts", "2", "--retry-first", "0.01", "--service-limit", "small:waiting=1")
    with (
        observed(tmp_path, *options) as (endpoint, base),
        Client(endpoint) as client,
        Worker("echo", lambda frames: frames, endpoint),
        Worker("fail", fail, endpoint),
    ):
        done = client.submit("echo", b"x")
        assert client.wait(done, 30) == [b"x"]
        client.close(done)
        failed = client.submit("fail", b"x")
        until(lambda: client.show(failed)["state"] == "failed")
        client.submit("small", b"x", key="k")
        client.submit("small", b"x", key="k")
        with pytest.raises(Refused):
            client.submit("small", b"x")
        client.submit("later", b"x", delay=3600)
        expired = client.submit("absent", b"x", ttl=0.01)
        until(lambda: client.show(expired)["state"] == "expired")
        client.submit("absent", b"x")
        found = samples(base)
        # Our client, who has asked for limits on a connection of their own or not, and two workers.
        assert found["titanic_broker_peers"] >= 3

    counted = {name: found[f"titanic_requests_{name}_total"] for name in ("accepted", "repeated", "dispatched")}
    assert counted == {"accepted": 6, "repeated": 1, "dispatched": 3}
    ended = {name: found[f"titanic_requests_{name}_total"] for name in ("succeeded", "failed", "expired", "retried")}
    assert ended == {"succeeded": 1, "failed": 1, "expired": 1, "retried": 1}
    assert found["titanic_requests_closed_total"] == 1
    names = ("accepted", "dispatched", "succeeded", "failed", "retried", "expired", "closed")
    totals = {
        of: [found[f'titanic_service_{name}_total{{service="{of}"}}'] for name in names] for of in ("echo", "fail")
    }
    assert totals == {"echo": [1, 1, 1, 0, 0, 0, 1], "fail": [1, 2, 0, 1, 1, 0, 0]}
    assert found['titanic_service_expired_total{service="absent"}'] == 1
    for name, count in (("wait", 1), ("run", 2)):
        assert found[f'titanic_service_{name}_seconds_count{{service="fail"}}'] == count
        assert found[f'titanic_service_{name}_seconds_bucket{{le="+Inf",service="fail"}}'] == count
        assert 0 < found[f'titanic_service_{name}_seconds_sum{{service="fail"}}'] < 60
    assert 'titanic_service_run_seconds_count{service="absent"}' not in found
    assert found['titanic_requests_refused_total{reason="service_full"}'] == 1
    assert found['titanic_requests_refused_total{reason="store_full"}'] == 0
    assert found['titanic_requests_waiting{service="absent"}'] == 1
    assert found['titanic_requests_waiting{service="small"}'] == 1
    assert 0 < found['titanic_requests_oldest_seconds{service="absent"}'] < 600
    assert found['titanic_workers{service="echo"}'] == 1
    assert found['titanic_workers{service="absent"}'] == 0
    assert (found["titanic_requests_delayed"], found["titanic_replies_stored"]) == (1, 2)
    assert (
        found["titanic_store_used_bytes"] + found["titanic_store_free_bytes"] == found["titanic_store_capacity_bytes"]
    )
    assert found["titanic_store_closed"] == 1
    assert found['titanic_commit_seconds_bucket{le="+Inf"}'] == found["titanic_commit_seconds_count"] > 6
    assert found["titanic_commit_changes_sum"] >= found["titanic_commit_changes_count"]
    assert found["titanic_broker_workers"] == 2
    assert found['titanic_broker_events_total{event="workers_registered"}'] == 2
    assert found["process_open_fds"] > 3
    version = here("--version").out.decode().split()[2]
    assert found[f'titanic_info{{version="{version}"}}'] == 1
    assert found['titanic_store_info{durability="synced"}'] == 1


@pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ, reason="needs promtool, which isn't installed"
)
def test_promtool_has_nothing_to_say(tmp_path: Path) -> None:
    with observed(tmp_path) as (endpoint, base), Client(endpoint) as client:
        client.submit('odd "name"\\', b"x")
        text = ask(f"{base}/metrics")[1]
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_broker_alone(tmp_path: Path) -> None:
    with observed(tmp_path, command="broker") as (endpoint, base), Worker("echo", lambda frames: frames, endpoint):
        assert here("call", "echo", "x", "--endpoint", endpoint).out == b"x"
        found = until(lambda: with_lags(base))
        assert found['titanic_workers{service="echo"}'] == 1
        assert found['titanic_broker_events_total{event="replies"}'] == 1
        assert not any(name.startswith("titanic_store") for name in found)


def test_a_queue_apart_knows_who_has_workers(tmp_path: Path) -> None:
    """Also of a service that has none; and when its broker is gone, that is to be seen."""
    where = f"ipc://{tmp_path}/b"
    with running(tmp_path / "broker.log", "broker", "--bind", where) as broker:
        arguments = ("serve", "--broker", where, "--store", tmp_path / "s", "--metrics", "127.0.0.1:0")
        with running(tmp_path / "log", *arguments) as server:
            base = server.says(r"metrics at (\S+)/metrics")[1]
            until(lambda: samples(base)["titanic_ready"] == 1)
            with Client(where) as client, Worker("echo", lambda frames: frames, where):
                client.submit("absent", b"x")
                client.wait(client.submit("echo", b"x"), 30)
                found = until(lambda: with_workers(base, echo=1, absent=0))
                assert not any("titanic.request" in name for name in found)
            until(lambda: with_workers(base, absent=0) and 'titanic_workers{service="echo"}' not in samples(base))
            broker.kill()
            found = until(lambda: without(samples(base), "titanic_ready"))
            assert not any(name.startswith("titanic_workers") for name in found)


def test_a_queue_at_another_broker_knows_who_has_no_worker(tmp_path: Path) -> None:
    """One that only says whether a service is there."""
    where = f"ipc://{tmp_path}/b"
    with Process(SUPPORT / "rfc7_broker.py", where, "2", output=tmp_path / "broker.log"):
        arguments = ("serve", "--broker", where, "--store", tmp_path / "s", "--metrics", "127.0.0.1:0")
        with running(tmp_path / "log", *arguments) as server:
            base = server.says(r"metrics at (\S+)/metrics")[1]
            until(lambda: samples(base)["titanic_ready"] == 1)
            with Client(where, timeout=30, version="0.1") as client:
                client.submit("absent", b"x")
            until(lambda: with_workers(base, absent=0))


def test_health_and_readiness(tmp_path: Path) -> None:
    with observed(tmp_path) as (_, base):
        assert ask(f"{base}/healthz") == (200, "ok\n")
        assert until(lambda: ask(f"{base}/readyz") == (200, "ok\n"))
        assert ask(f"{base}/") == (404, "the paths are /metrics, /healthz and /readyz\n")


def test_not_ready_without_its_broker(tmp_path: Path) -> None:
    arguments = ("serve", "--broker", f"ipc://{tmp_path}/b", "--store", tmp_path / "s", "--metrics", "127.0.0.1:0")
    with running(tmp_path / "log", *arguments) as server:
        base = server.says(r"metrics at (\S+)/metrics")[1]
        assert ask(f"{base}/readyz") == (503, "its broker does not answer yet\n")
        assert ask(f"{base}/healthz")[0] == 200


def test_not_ready_while_it_stops(tmp_path: Path) -> None:
    """A worker has a request, and the server gives it time: it goes on answering what is asked about its health."""
    options = ("--store", str(tmp_path / "store"), "--metrics", "127.0.0.1:0", "--grace", "60", "--worker-return", "0")
    with running(tmp_path / "log", "serve", "--bind", ANY, *options) as server:
        endpoint = server.says(r"serving at ([^;\s]+)")[1]
        base = server.says(r"metrics at (\S+)/metrics")[1]
        command = ("work", "slow", "--endpoint", endpoint, "--", "sh", "-c", f"touch {tmp_path}/busy; sleep 600")
        with running(tmp_path / "work.log", *command):
            here("submit", "slow", "x", "--endpoint", endpoint)
            until((tmp_path / "busy").exists)
            server.send(signal.SIGTERM)
            server.says("stopping")
            assert ask(f"{base}/readyz") == (503, "stopping\n")
            server.send(signal.SIGTERM)
            server.ends()


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = titanic("serve", "--bind", ANY, "--store", tmp_path / "store", "--metrics", where)
    assert done.code == 1
    assert f"titanic: cannot serve metrics at {where}; Address already in use; " in done.err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("where", ["nonsense", "127.0.0.1", "host:99999", "a:b:1"])
def test_an_address_that_is_none(where: str) -> None:
    done = here("serve", "--metrics", where)
    assert (done.code, "is not an address; write it like 127.0.0.1:9469" in done.err) == (2, True)


def test_services_are_bounded(tmp_path: Path) -> None:
    """A name comes from anybody: thousands of them must not become thousands of time series."""
    waiting = {b"%d" % number: number for number in range(1, 5000)}
    named = gather(waiting, {b"run": 7}, {b"w": 1})
    assert len(named) == MOST_SERVICES
    assert named[0] == b"4999"
    rest = sum(range(1, 5000)) - sum(waiting[name] for name in named)
    assert others(named, waiting, {b"run": 7}, {b"w": 1}) == {OTHERS: ServiceSnapshot(rest, 7, 1)}
    assert others([b"a"], {b"a": 1}, {}, None) == {}
    assert bounded({str(number): 1 for number in range(150)})[OTHERS] == 50
    busy = {b"%d" % number: 1 for number in range(1000, 5000)}
    assert {b"7", b"8"} <= {*gather(waiting, {}, busy | dict.fromkeys(map(b"%d".__mod__, range(9, 1000)), 1))}
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:
        for number in range(MOST_SERVICES + 5):
            client.submit(f"s{number}", b"x")
        services = server.snapshot().services
        assert len(services) == MOST_SERVICES + 1
        assert services[OTHERS].waiting == 5
        accepted = {name: totals.tally[ACCEPTED] for name, totals in server.snapshot().totals.items()}
        assert len(accepted) == MOST_NAMED + 1
        assert accepted[OTHERS] == 5


def test_a_histogram() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 5, 100):
        histogram.add(value)
    assert histogram.cumulative() == [2, 3, 4, 6]
    assert histogram.sum == 112


def test_stuck_threads_are_named(tmp_path: Path) -> None:
    """As /healthz says it: see test_pulse for the threads."""
    fault = ["stuck for 10 s or more: writer"]
    listener = MetricsListener("::1", 0, list, unhealthy=lambda: fault[0], unready=lambda: "")
    try:
        base = f"http://[::1]:{listener.port}"
        assert ask(f"{base}/healthz") == (503, "stuck for 10 s or more: writer\n")
        assert ask(f"{base}/readyz") == (200, "ok\n")
        assert re.search("^process_cpu_seconds_total ", ask(f"{base}/metrics")[1], re.MULTILINE)
    finally:
        listener.stop()


def metrics_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_those_who_ask_nothing_take_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they keep others out for long: those have their answers, and the end comes at once."""
    monkeypatch.setattr(listener_module, "QUESTION", 1.0)
    before = metrics_threads()
    listener = MetricsListener("127.0.0.1", 0, list, unhealthy=lambda: "", unready=lambda: "")
    base = f"http://127.0.0.1:{listener.port}"
    silent = [socket.create_connection(("127.0.0.1", listener.port), timeout=30) for _ in range(3 * MOST)]
    try:
        until(lambda: metrics_threads() - before == MOST)
        assert ask(f"{base}/healthz") == (200, "ok\n")
        assert silent[0].recv(1) == b""  # its place was wanted
        assert metrics_threads() - before <= MOST
        more = [socket.create_connection(("127.0.0.1", listener.port), timeout=30) for _ in range(3 * MOST)]
        silent += more
        monkeypatch.setattr(listener_module, "QUESTION", 3600.0)
        began = time.monotonic()
    finally:
        listener.stop()
        for one in silent:
            one.close()
    assert time.monotonic() - began < 30
    until(lambda: metrics_threads() == before)


def test_who_does_not_take_the_answer_has_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "PATIENCE", 0.2)
    long = [GaugeMetricFamily(f"long_{number}", "x" * 100_000, value=1) for number in range(100)]
    listener = MetricsListener("127.0.0.1", 0, lambda: long, unhealthy=lambda: "", unready=lambda: "")
    lazy = []
    try:
        for _ in range(MOST):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", listener.port))
            one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            lazy.append(one)
        until(lambda: all(one.recv(1) for one in lazy))  # the answers are on their way
        assert ask(f"http://127.0.0.1:{listener.port}/healthz") == (200, "ok\n")
    finally:
        listener.stop()
        for one in lazy:
            one.close()


def test_head_has_no_body() -> None:
    listener = MetricsListener("127.0.0.1", 0, list, unhealthy=lambda: "", unready=lambda: "stopping")
    try:
        for path, status in (("healthz", 200), ("readyz", 503), ("metrics", 200), ("", 404)):
            connection = HTTPConnection("127.0.0.1", listener.port, timeout=30)
            connection.request("HEAD", f"/{path}")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (status, b"")
            assert int(answer.headers["Content-Length"]) > 0
            connection.close()
    finally:
        listener.stop()


def test_many_may_ask_at_once() -> None:
    """The system takes in those that nobody has looked at yet; they need not try again."""
    listener = MetricsListener("127.0.0.1", 0, list, unhealthy=lambda: "", unready=lambda: "")
    listener._server.shutdown()  # nobody looks
    crowd = [socket.create_connection(("127.0.0.1", listener.port), timeout=0.5) for _ in range(60)]
    for one in crowd:
        one.close()
    listener.stop()


def test_the_age_of_a_backup(tmp_path: Path) -> None:
    """Of one that was made while the server runs; a later one counts, and a failed one does not."""
    name = "titanic_backup_timestamp_seconds"
    with observed(tmp_path) as (_, base):
        assert name not in samples(base)
        before = time.time()
        assert here("backup", tmp_path / "first", "--store", tmp_path / "store").code == 0
        first = samples(base)[name]
        assert before - 1 <= first <= time.time()
        assert here("backup", tmp_path / "first", "--store", tmp_path / "store").code == 1
        assert samples(base)[name] == first
        assert here("backup", tmp_path / "second", "--store", tmp_path / "store").code == 0
        assert samples(base)[name] > first
    assert here("restore", tmp_path / "second", "--store", tmp_path / "again").code == 0
    assert list(tmp_path.glob("*/backed-up*")) == [tmp_path / "store/backed-up"]


def test_how_far_the_archive_lags(tmp_path: Path) -> None:
    names = ("titanic_archive_lag_requests", "titanic_archive_lag_seconds")
    with serving(tmp_path) as server, Client(server.endpoints[0]) as client:

        def shown() -> list[float | None]:
            found = {one.name: one.samples[0].value for one in families.queue(server.snapshot()) if one.samples}
            return [found.get(name) for name in names]

        assert shown() == [None, None]
        client.archive(register=True, archive="0" * 32, name="here")
        assert shown() == [0, 0]
        uuids = [client.submit("absent", b"x") for _ in range(3)]
        for uuid in uuids:
            client.close(uuid)
        requests, seconds = shown()
        assert requests == 3
        assert seconds is not None
        assert 0 < seconds < 600
        client.archive(upto=2, uuid=uuids[1], archive="0" * 32)
        assert shown()[0] == 1
        client.archive(upto=3, uuid=uuids[2], archive="0" * 32)
        assert shown() == [0, 0]
        client.archive(register=False)
        assert shown() == [None, None]


def test_refusals_by_user(tmp_path: Path) -> None:
    files = AccessFiles(tmp_path / "access", ALICE + "limits = { waiting = 1 }\n" + BOB)
    keys = {"server_key": files.server_key}
    with observed(tmp_path, *files.options) as (endpoint, base):
        with Client(endpoint, key=files.secret("alice"), **keys) as alice:
            alice.submit("absent", b"x")
            for _ in range(2):
                with pytest.raises(Refused):
                    alice.submit("absent", b"x")
        with Client(endpoint, key=files.secret("bob"), **keys) as bob, pytest.raises(Forbidden):
            bob.submit("absent", b"x")
        found = samples(base)
    assert found['titanic_user_requests_refused_total{reason="user_full",user="alice"}'] == 2
    assert sum(name.startswith("titanic_refusals_total") and 'user="bob"' in name for name in found) == 1
    assert found['titanic_requests_refused_total{reason="user_full"}'] == 2
