"""The attempts of a request that failed, with their workers: kept over kills, shown everywhere, and archived."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from support.cli_titanic import here
from support.pages import Page
from support.ports import free_port
from support.processes import SUPPORT, Process, worker_process
from support.raw_mdp import RawClient, raw_worker
from support.serving import QUICK, with_broker
from support.store_facts import closed_in
from support.waiting import PATIENCE, until

from broker import RemoteError, Worker
from titanic import Client, RequestFailed, Server
from titanic.metrics import families
from titanic.store import Store, closed_histories, open_store
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings
from titanic_data.store_reader import forget, read_closed
from titanic_data.tables import HISTORY

WORKERS = (b"bee:11", b"bee:12", b"ant:13")


def attempt(endpoint: str, number: int) -> None:
    """One of the workers fails the next attempt, and leaves."""
    with raw_worker(endpoint, b"fail", b"titanic:process=" + WORKERS[number % 3], b"titanic:version=7.1") as worker:
        token, _ = worker.take(PATIENCE)
        worker.final(token, b"MDPE01", b"500 broken %d" % number, b"Traceback (most recent call last): %d" % number)
        worker.leave()
        with Client(endpoint, timeout=PATIENCE) as client:
            (uuid,) = (row["uuid"] for row in client.list(service="fail")[0])
            until(lambda: sum(client.show(uuid).get("history", {"counts": {}})["counts"].values()) == number)


def test_ten_attempts_by_three_workers_over_two_kills_of_the_server(place: str, tmp_path: Path) -> None:
    endpoint, script = f"tcp://127.0.0.1:{free_port()}", SUPPORT / "server_process.py"

    def start() -> Process:
        return Process(script, "serve", endpoint, place, output=tmp_path / "server.out")

    process = start()
    try:
        with Client(endpoint, timeout=PATIENCE) as client:
            uuid = client.submit("fail", "x", max_attempts=10)
            for number in range(1, 11):
                if number in (4, 8):
                    process.kill()
                    process = start()
                attempt(endpoint, number)
            row = client.show(uuid)
            assert (row["state"], row["attempts"]) == ("failed", 10)
            history = row["history"]
            assert history["counts"] == {"failed": 10}
            numbers = [1, 7, 8, 9, 10]
            attempts = history["attempts"]
            assert [one["error"].split("\n") for one in attempts] == [
                [f"broken {n}", f"Traceback (most recent call last): {n}"] for n in numbers
            ]
            assert [one["worker"].encode() for one in attempts] == [WORKERS[n % 3] for n in numbers]
            assert [one["delivery"] for one in attempts] == numbers
            assert attempts[0].items() >= {"host": "bee", "pid": 12, "version": "7.1", "outcome": "failed"}.items()
            spans = [(one["started_at"], one["ended_at"]) for one in attempts]
            assert all(row["submitted_at"] <= start <= end <= row["finished_at"] for start, end in spans)
            assert spans == sorted(spans)
            shown = here("show", uuid, "--endpoint", endpoint).out.decode()
            assert "history      10 failed\n" in shown
            assert "(5 attempts not kept)" in shown
            assert all(f"broken {n}" in shown for n in numbers)
            assert here("show", uuid, "--json", "--endpoint", endpoint).json["history"] == history
            settings = WebSettings(endpoint=(endpoint,), bind=("127.0.0.1", 0), timeout=PATIENCE)
            with WebServer(settings) as web, httpx.Client(base_url=web.url, timeout=PATIENCE, verify=False) as http:
                known = http.get(f"/v1/requests/{uuid}").json()["history"]
                assert [one["error"] for one in known["attempts"]] == [one["error"] for one in attempts]
                assert known["attempts"][0]["started_at"].endswith("Z")
                page = Page(http.get(f"/requests/{uuid}").text)
                assert "5 more attempts failed" in page.text
                assert all(f"Traceback (most recent call last): {n}" in page.text for n in numbers)
            client.close(uuid)
        process.terminate()
        if place.startswith("/"):
            (batch,) = read_closed(place, 1, 1, ["request_id", HISTORY])
            (archived,) = batch.to_pylist()
            assert archived["request_id"] == uuid
            assert json.loads(archived[HISTORY]) == history
            forget(place)
        with open_store(place) as store, store.read() as transaction:
            assert [one.uuid.hex() for one in closed_in(transaction)] == [uuid]
            assert [len(key) for key, _ in transaction.facts(b"t")] == [10], "only that of the closed request"
            assert json.loads(closed_histories(transaction, 1, 1)[1]) == history
    finally:
        process.kill()


def histories(store: Store) -> int:
    with store.read() as transaction:
        return len(transaction.facts(b"t"))


def test_a_request_that_succeeds_at_once_leaves_no_row(server: Server, client: Client) -> None:
    with Worker("echo", lambda frames: frames, server.endpoints[0], config=QUICK):
        uuid = client.submit("echo", "x")
        client.wait(uuid, PATIENCE)
    assert "history" not in client.show(uuid)
    assert histories(server.store) == 0


def test_a_retry_keeps_the_history(server: Server, client: Client, raw: RawClient) -> None:
    broken = True

    def handle(frames: list[bytes]) -> list[bytes]:
        if broken:
            raise RemoteError(500, "broken")
        return frames

    with Worker("echo", handle, server.endpoints[0], config=QUICK):
        uuid = client.submit("echo", "x", max_attempts=2)
        until(lambda: client.show(uuid)["state"] == "failed")
        broken = False
        client.retry(uuid)
        assert client.wait(uuid, PATIENCE) == [b"x"]
    row = client.show(uuid)
    assert (row["attempts"], row["history"]["counts"]) == (1, {"failed": 2})
    assert histories(server.store) == 1


@pytest.mark.settings(retry_first=0.1, retry_most=0.2)
def test_a_request_that_workers_die_of_alone_is_poison(server: Server, client: Client, tmp_path: Path) -> None:
    log, pids = tmp_path / "log", list[int]()
    with worker_process(server.endpoints[0], "echo", log, "poison") as first:
        until(lambda: server.workers == {b"echo": 4})
        innocents = [client.submit("echo", body) for body in ("1", "2", "3")]
        poison = client.submit("echo", "poison")
        until(lambda: not first.running)
    uuids = [*innocents, poison]
    while not all(client.show(uuid)["finished_at"] for uuid in uuids):
        with worker_process(server.endpoints[0], "echo", log, "poison") as worker:
            pids.append(worker.pid)
            until(lambda: not worker.running or all(client.show(uuid)["finished_at"] for uuid in uuids))
    with pytest.raises(RequestFailed, match="poison: 3 workers died while processing it and nothing else"):
        client.reply(poison)
    row = client.show(poison)
    assert (row["state"], row["attempts"]) == ("failed", 3), "of 10"
    history = row["history"]
    assert (history["counts"], history["deaths"]) == ({"lost": 1, "died": 3}, 3)
    died = [one for one in history["attempts"] if one["outcome"] == "died"]
    assert [one["pid"] for one in died] == pids[:3]
    assert all(one["worker"] in row["reason"] for one in died)
    for uuid in innocents:
        known = client.show(uuid)
        assert (known["state"], known["attempts"], known["history"]["counts"]) == ("done", 1, {"lost": 1})
    assert [one["uuid"] for one in client.list(text="poison:")[0]] == [poison]
    counts = client.stats()["dispatch"]
    assert (counts["poisoned"], counts["failed"], counts["retried"]) == (1, 1, 2)
    samples = {one.name: one.value for family in families.queue(server.snapshot()) for one in family.samples}
    assert samples["titanic_poisoned_total"] == 1


@pytest.mark.settings(retry_first=0.1, retry_most=0.2)
def test_deaths_count_from_the_retry_on(server: Server, client: Client, tmp_path: Path) -> None:
    uuid = client.submit("echo", "poison", max_attempts=1)
    for _ in range(3):
        with raw_worker(server.endpoints[0], b"echo") as worker:
            worker.take(PATIENCE)
        until(lambda: client.show(uuid)["state"] == "failed")
        assert client.show(uuid)["reason"] == "the worker died while processing the request"
        client.retry(uuid)
    assert client.show(uuid)["history"]["counts"] == {"died": 3}


@pytest.mark.settings(poison_deaths=1)
def test_a_request_is_poison_after_as_many_deaths_as_is_set(server: Server, client: Client) -> None:
    uuid = client.submit("echo", "poison")
    with raw_worker(server.endpoints[0], b"echo") as worker:
        worker.take(PATIENCE)
    until(lambda: client.show(uuid)["state"] == "failed")
    assert client.show(uuid)["reason"].startswith("poison: 1 worker died")


@pytest.mark.settings(retry_first=0.1, retry_most=0.2)
def test_a_process_whose_children_die_is_named_once(server: Server, client: Client) -> None:
    uuid = client.submit("echo", "poison")
    for process in (b"h:7", b"h:8", b"h:7"):
        with raw_worker(server.endpoints[0], b"echo", b"titanic:process=" + process) as worker:
            worker.take(PATIENCE)
    until(lambda: client.show(uuid)["state"] == "failed")
    died = "poison: 3 workers died while processing it and nothing else, the last ones h:7 (2 times), h:8"
    assert client.show(uuid)["reason"] == died


def test_with_a_separate_broker_the_worker_is_unknown(tmp_path: Path) -> None:
    def handle(frames: list[bytes]) -> None:
        raise RemoteError(500, "broken")

    with with_broker(tmp_path, "stand-alone") as server:
        endpoint = server.config.broker
        assert endpoint
        with Client(endpoint, timeout=PATIENCE) as client, Worker("echo", handle, endpoint, config=QUICK):
            uuid = client.submit("echo", "x", max_attempts=1)
            until(lambda: client.show(uuid)["state"] == "failed")
            (one,) = client.show(uuid)["history"]["attempts"]
    assert (one["outcome"], one["worker"], one["pid"]) == ("failed", "", None)
    assert one["error"].startswith("broken")
