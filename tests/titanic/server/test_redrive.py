"""Jobs that retry or close all requests that match, by clients and the command line, over restarts and nodes."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import torture
from support.access_files import ALICE, BOB, AccessFiles
from support.cli_titanic import here
from support.nodes import cluster
from support.ports import free_port
from support.postgres import needs_postgres, shared_server
from support.processes import SUPPORT, Process
from support.serving import QUICK, config, serving
from support.waiting import PATIENCE, until

from broker import RemoteError, Worker
from titanic import Client, Forbidden, InvalidRequest, Server, ServerConfig
from titanic.errors import StoreFailed
from titanic.protocol.documents import RedriveInfo
from titanic.services import redrive_jobs, redriver
from titanic.store import WriteTransaction

ROOT = '[users.root]\nkeys = ["queue.key"]\nadmin = true\n'


@contextmanager
def on_postgres(url: str) -> Iterator[Server]:
    with Server(ServerConfig(store=url, bind=("tcp://127.0.0.1:*",), grace=0.0, worker=QUICK)) as server:
        yield server


@pytest.fixture(params=["lmdb", pytest.param("postgres", marks=needs_postgres)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server on either engine."""
    if request.param == "lmdb":
        served = serving(tmp_path)
    else:
        postgres = shared_server()
        served = on_postgres(postgres.url(postgres.new_store()))
    with served as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.endpoints[0], timeout=60) as client:
        yield client


def fail(client: Client, service: str, errors: dict[str, int]) -> list[str]:
    """Have requests of a service fail with each of these errors."""

    def work(frames: list[bytes]) -> list[bytes]:
        raise RemoteError(500, frames[0].decode(), [])

    bodies = [error for error, count in errors.items() for _ in range(count)]
    uuids = client.submit_many(service, bodies, max_attempts=1)
    with Worker(service, work, client.endpoint, config=QUICK):
        until(lambda: len(all_of(client, service, "failed")) >= len(uuids), 120)
    return uuids


def all_of(client: Client, service: str, state: str) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        rows, after = client.list(service=service, state=state, limit=1000, after=after)
        found += [row["uuid"] for row in rows]
        if after is None:
            return found


def now(client: Client, job: RedriveInfo) -> RedriveInfo:
    (found,) = client.redrives(job["id"])
    return found


def reach(client: Client, job: RedriveInfo, *states: str) -> RedriveInfo:
    until(lambda: now(client, job)["state"] in states, 120)
    return now(client, job)


def confirmed(client: Client, job: RedriveInfo) -> RedriveInfo:
    job = reach(client, job, "counted")
    return client.change_redrive(job["id"], "confirm", job["counted"])


def rows_left(server: Server) -> int:
    """The rows of UUIDs that jobs keep."""
    with server.store.read() as transaction:
        return len(transaction.facts(redrive_jobs.UUIDS))


def test_one_group_of_failures_is_retried(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive_jobs, "ROW", 7)
    monkeypatch.setattr(redriver, "ROW", 7)
    uuids = fail(client, "mail", {"order 17 refused": 15, "order 18 refused": 15, "too large": 20})
    fail(client, "loud", {"order 17 refused": 40})
    (group,) = {
        one["text"]
        for one in client.facts(failures=True)["failures"]
        if one["service"] == "mail" and "ref" in one["text"]
    }
    for error in (group, "order 99 refused"):
        job = reach(client, client.redrive("retry", service="mail", error=error), "counted")
        assert job["counted"] == 30
    with pytest.raises(InvalidRequest, match="30 requests matched"):
        client.change_redrive(job["id"], "confirm", 31)
    client.retry(uuids[0])
    client.change_redrive(job["id"], "confirm", 30)
    job = reach(client, job, "done")
    assert (job["done"], job["changed"]) == (29, 1)
    assert all_of(client, "mail", "waiting") == uuids[:30]
    assert len(all_of(client, "loud", "failed")) == 40
    client.change_redrive(client.redrives()[1]["id"], "cancel")
    assert rows_left(server) == 0
    act, retried = [act for act in client.audit()["acts"] if act["count"]]
    assert (retried["act"], retried["uuid"]) == ("retry", uuids[0])
    assert (act["act"], act["count"], act["service"]) == ("retry", 29, "mail")
    assert "job done after 30 of 30" in act["text"]


def test_a_job_acts_only_on_what_it_has_counted(client: Client) -> None:
    """A delayed request does not match when it is counted, but becomes a waiting one before the job runs."""
    client.submit("mail", "counted")
    delayed = client.submit("mail", "delayed", delay=3600)
    job = reach(client, client.redrive("close", state="waiting"), "counted")
    assert job["counted"] == 1
    client.change(delayed, delay=0)
    client.change_redrive(job["id"], "confirm", 1)
    assert reach(client, job, "done")["done"] == 1
    assert all_of(client, "mail", "waiting") == [delayed]


def test_what_fails_again_is_not_retried_again(client: Client) -> None:
    fail(client, "mail", {"refused": 20})
    job = reach(client, client.redrive("retry", service="mail", rate=20), "counted")
    runs: list[bytes] = []

    def work(frames: list[bytes]) -> list[bytes]:
        runs.append(frames[0])
        raise RemoteError(500, "refused", [])

    with Worker("mail", work, client.endpoint, config=QUICK):
        client.change_redrive(job["id"], "confirm", 20)
        assert reach(client, job, "done")["done"] == 20
        until(lambda: len(runs) >= 20 and len(all_of(client, "mail", "failed")) == 20, 60)
    assert len(runs) == 20


def test_conditions(client: Client) -> None:
    ann = client.submit("mail", "to ann", key="a")
    client.submit("mail", "to bob", key="b")
    client.submit("other", "to ann", key="c", delay=3600)
    begun = client.clock()
    for wanted, count in (
        ({"body": "to ann", "state": "waiting"}, 1),
        ({"body": "to ann", "state": "delayed"}, 1),
        ({"key": "b"}, 1),
        ({"text": "B", "state": "waiting"}, 1),
        ({"state": "waiting", "since": begun - 600, "until": begun + 600}, 2),
        ({"state": "waiting", "since": begun + 600}, 0),
        ({"state": "waiting", "older_than": 600}, 0),
        ({"error": "refused"}, 0),
    ):
        assert reach(client, client.redrive("close", **wanted), "counted", "done")["counted"] == count  # type: ignore[arg-type]
    job = confirmed(client, client.redrive("close", body="to ann", service="mail", state="waiting"))
    reach(client, job, "done")
    assert ann not in all_of(client, "mail", "waiting")
    with pytest.raises(InvalidRequest, match="an owner, a state, an error or a key"):
        client.redrive("close", service="mail")
    with pytest.raises(InvalidRequest, match="failed or expired"):
        client.redrive("retry", state="done")


def test_running_requests_are_not_closed_unless_they_are_given(client: Client) -> None:
    busy, go = threading.Event(), threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        busy.set()
        go.wait()
        return frames

    running = client.submit("mail", "a")
    waiting = client.submit("other", "b")
    with ExitStack() as stack:
        stack.enter_context(Worker("mail", work, client.endpoint, config=QUICK))
        stack.callback(go.set)
        assert busy.wait(60)
        job = reach(client, client.redrive("close", state="waiting"), "counted")
        assert job["counted"] == 1
        job = client.redrive("close", uuids=[running, waiting, running, "0" * 32])
        assert job["counted"] == 3
        job = reach(client, job, "done")
        assert (job["done"], job["changed"]) == (2, 1)
    assert not client.list()[0]


def test_pause_resume_and_cancel(server: Server, client: Client) -> None:
    uuids = fail(client, "mail", {"refused": 60})
    job = confirmed(client, client.redrive("retry", service="mail", rate=4))
    until(lambda: now(client, job)["done"] > 0)
    assert client.change_redrive(job["id"], "pause")["state"] == "paused"
    job = now(client, job)
    with pytest.raises(InvalidRequest, match="cannot be confirmed"):
        client.change_redrive(job["id"], "confirm", 60)
    client.change_redrive(job["id"], "resume")
    until(lambda: now(client, job)["done"] > job["done"])
    client.change_redrive(job["id"], "cancel")
    done = now(client, job)["done"]
    assert 0 < done < 60
    assert len(all_of(client, "mail", "failed")) == len(uuids) - done
    with pytest.raises(InvalidRequest, match="is cancelled: resume is impossible"):
        client.change_redrive(job["id"], "resume")
    with pytest.raises(InvalidRequest, match="there is no job"):
        client.redrives("0" * 32)
    assert rows_left(server) == 0


def test_a_job_goes_on_after_a_restart(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with Server(settings) as server, Client(server.endpoints[0], timeout=60) as client:
        uuids = fail(client, "mail", {"refused": 40})
        job = confirmed(client, client.redrive("retry", service="mail", rate=10))
        until(lambda: now(client, job)["done"] > 0)
    with Server(settings) as server, Client(server.endpoints[0], timeout=60) as client:
        job = reach(client, job, "done")
        assert (job["done"], job["changed"]) == (40, 0)
        assert all_of(client, "mail", "waiting") == uuids


def test_a_count_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive_jobs, "ROW", 5)
    monkeypatch.setattr(redriver, "ROW", 5)
    monkeypatch.setattr(redrive_jobs, "PAGE", 3)
    settings = config(tmp_path)
    with Server(settings) as server, Client(server.endpoints[0], timeout=60) as client:
        client.submit_many("mail", ["a"] * 48)
        server._redriver.stop()
        job = client.redrive("close", state="waiting")
        for _ in range(5):
            server._redriver._step()
        assert 0 < now(client, job)["counted"] < 48
    with Server(settings) as server, Client(server.endpoints[0], timeout=60) as client:
        assert reach(client, job, "counted")["counted"] == 48
        job = confirmed(client, job)
        assert reach(client, job, "done")["done"] == 48
        assert rows_left(server) == 0


def test_a_count_misses_nothing_after_a_failed_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (redrive_jobs, redriver):
        monkeypatch.setattr(module, "ROW", 5)
    monkeypatch.setattr(redrive_jobs, "PAGE", 3)
    counting, commits = redriver.RedriveWrite.apply, iter((True, False))

    def apply(self: redriver.RedriveWrite, transaction: WriteTransaction, now_us: int) -> None:
        counting(self, transaction, now_us)
        if not next(commits, True):
            raise StoreFailed("the write failed", "an error of the disk", "replace it")

    monkeypatch.setattr(redriver.RedriveWrite, "apply", apply)
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=60) as client:
        client.submit_many("mail", ["a"] * 23)
        assert reach(client, client.redrive("close", state="waiting"), "counted")["counted"] == 23


def test_jobs_keep_to_their_room(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive_jobs, "MAX_COUNTED", 10)
    client.submit_many("mail", ["a"] * 20)
    job = reach(client, client.redrive("close", state="waiting"), "stopped")
    assert job["reason"] == "at least 20 match, but jobs may keep 10 together; narrow the conditions"
    uuids = [row["uuid"] for row in client.list()[0]]
    for _ in range(redrive_jobs.MAX_BUSY):
        client.redrive("close", uuids=uuids, rate=0.01)
    with pytest.raises(InvalidRequest, match="too many jobs"):
        client.redrive("close", uuids=uuids)


def test_a_condition_is_not_so_long_that_the_end_of_its_job_cannot_be_stored(client: Client) -> None:
    client.submit("mail", "a")
    long = "x" * 4000
    reach(client, client.redrive("close", service=long, error=long, text=long, body=long), "done")
    with pytest.raises(InvalidRequest, match="text must be a string of at most 4000 characters"):
        client.redrive("close", state="waiting", text="x" * 65_300)


def test_the_longest_job_reaches_each_end(server: Server, client: Client) -> None:
    client.submit("mail", "a")
    for long in ("\x01" * 4000, "中" * 4000):
        reach(client, client.redrive("close", service=long, owner=long, error=long, text=long, body=long), "done")
    long = "😀" * 4000
    with pytest.raises(InvalidRequest, match="shorten its conditions") as refused:
        client.redrive("close", service=long, owner=long, error=long, text=long)
    (size,) = re.findall(r"has (\d+) bytes", str(refused.value))
    text = "😀" * 3200 + "x" * (3200 - int(size) + redrive_jobs.MAX_JOB)
    with pytest.raises(InvalidRequest, match="shorten its conditions"):
        client.redrive("close", service=long, owner=long, error=long, text=text + "x")
    ended = reach(client, client.redrive("close", service=long, owner=long, error=long, text=text), "done")
    with server.store.write() as transaction:
        (job,) = redrive_jobs.read_jobs(transaction, bytes.fromhex(ended["id"]))
        job.finish(transaction, 2**63, "stopped", f"alice may not submit to {long}")
        job.put(transaction)
    assert now(client, ended)["reason"].startswith("alice may not submit to 😀")


def test_a_low_rate_delays_no_other_job(client: Client) -> None:
    uuids = client.submit_many("mail", ["a", "b"])
    client.redrive("close", uuids=uuids[:1], rate=1e-300)
    reach(client, client.redrive("close", uuids=uuids[1:]), "done")
    reach(client, client.redrive("close", key="none"), "done")


def test_a_damaged_record_ends_only_its_job(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=60) as client:
        uuid = client.submit("mail", "a body")
        with server.store.write() as transaction:
            record = bytearray(transaction.raw.get(bytes.fromhex(uuid), db=transaction.db.requests))
            record[-1] ^= 1
            transaction.raw.put(bytes.fromhex(uuid), bytes(record), db=transaction.db.requests)
        job = reach(client, client.redrive("close", state="waiting", body="a"), "stopped")
        assert job["reason"] == redriver.DAMAGED
        reach(client, client.redrive("close", uuids=client.submit_many("mail", ["a"])), "done")
        client.close(uuid)


def test_a_job_with_failing_searches_delays_no_other(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    search = redrive_jobs.search

    def fail_some(
        context: Any, transaction: Any, job: redrive_jobs.RedriveJob, *where: Any
    ) -> redrive_jobs.FoundMatches:
        if job.options.text == "slow":
            raise StoreFailed("the query failed", "it took too long", "narrow the conditions")
        return search(context, transaction, job, *where)

    monkeypatch.setattr(redrive_jobs, "search", fail_some)
    client.submit("mail", "a")
    slow = client.redrive("close", state="waiting", text="slow")
    reach(client, client.redrive("close", key="none"), "done")
    assert now(client, slow)["state"] == "counting"


def test_a_message_that_is_sent_again_starts_no_second_job(client: Client) -> None:
    options = {"do": "redrive", "start": "close", "state": "done", "job": "5" * 32}
    for _ in range(2):
        client.call("titanic.admin", json.dumps(options))
    assert [job["id"] for job in client.redrives()] == ["5" * 32]


def test_a_job_ends_when_its_user_goes(tmp_path: Path) -> None:
    files = AccessFiles(tmp_path / "access", ALICE + BOB + ROOT)
    keys = {"server_key": files.server_key}
    settings = config(tmp_path, access=files.path, key=files.key)
    with (
        Server(settings) as server,
        Client(server.endpoints[0], timeout=60, key=files.secret("alice"), **keys) as alice,
        Client(server.endpoints[0], timeout=60, key=files.secret("queue"), **keys) as root,
        Client(server.endpoints[0], timeout=60, key=files.secret("bob"), **keys) as bob,
    ):
        alice.submit_many("upper", ["a"] * 50)
        root.submit("upper", "a")
        job = reach(alice, alice.redrive("close", state="waiting", body="a", rate=1), "counted")
        assert job["counted"] == 50  # the other is not hers
        assert reach(alice, alice.redrive("close", owner="queue"), "done")["counted"] == 0
        with pytest.raises(Forbidden):
            bob.redrive("close", state="waiting")
        with pytest.raises(Forbidden):
            bob.redrives()
        reach(root, root.redrive("close", key="b"), "done")
        assert [one["user"] for one in alice.redrives()] == ["alice"] * 2
        alice.change_redrive(job["id"], "confirm", 50)
        until(lambda: now(root, job)["done"] > 0)
        files.write(BOB + ROOT)
        server.reload(settings)
        job = reach(root, job, "stopped")
        assert 0 < job["done"] < 50
        left = confirmed(root, root.redrive("close", owner="alice"))  # what a user who has gone leaves behind
        assert reach(root, left, "done")["done"] == 50 - job["done"]
        assert "may not close requests" in job["reason"]
        acts = [act for act in root.audit(act="close")["acts"] if "job stopped" in act["text"]]
        assert [(act["user"], act["count"]) for act in acts] == [("alice", job["done"])]


def test_a_job_changes_only_what_its_user_may_change(tmp_path: Path) -> None:
    text = ALICE.replace('submit = ["*"]', 'submit = ["upper"]') + ROOT
    files = AccessFiles(tmp_path / "access", text)
    keys = {"server_key": files.server_key}
    with (
        serving(tmp_path, access=files.path, key=files.key, max_attempts=1) as server,
        Client(server.endpoints[0], timeout=60, key=files.secret("alice"), **keys) as alice,
        Client(server.endpoints[0], timeout=60, key=files.secret("queue"), **keys) as root,
    ):
        mine, other = alice.submit("upper", "a"), root.submit("upper", "a")
        job = reach(alice, alice.redrive("close", uuids=[mine, other]), "done")
        assert (job["done"], job["changed"]) == (1, 1)
        with pytest.raises(Forbidden, match="may not submit to 'mail'"):
            alice.redrive("retry", service="mail")
        with pytest.raises(InvalidRequest, match="there is no job"):
            alice.change_redrive(root.redrive("close", uuids=[other], rate=0.01)["id"], "cancel")


def test_a_job_is_not_replaced_by_another_user(tmp_path: Path) -> None:
    """Whoever reads all requests sees the ids of all jobs."""
    files = AccessFiles(tmp_path / "access", ALICE.replace('read = "own"', 'read = "all"') + ROOT)
    keys = {"server_key": files.server_key}
    with (
        serving(tmp_path, access=files.path, key=files.key) as server,
        Client(server.endpoints[0], timeout=60, key=files.secret("alice"), **keys) as alice,
        Client(server.endpoints[0], timeout=60, key=files.secret("queue"), **keys) as root,
    ):
        job = root.redrive("close", uuids=[alice.submit("mail", "a")], rate=0.01)
        options = {"do": "redrive", "start": "close", "state": "done", "job": alice.redrives()[0]["id"]}
        assert b"belongs to another user" in alice.call("titanic.admin", json.dumps(options))[0]
        assert now(root, job) == job


def test_the_command_line(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(server.endpoints[0], timeout=60) as client:
        fail(client, "mail", {"refused": 3})
        at = ["--endpoint", server.endpoints[0]]
        where = ["--where", "service=mail", "--where", "error=refused"]
        assert here("retry", *where, "--dry-run", *at).line == "3 requests would be requeued"
        closing = ["close", *where, "--where", "since=1h", "--where", "state=failed"]
        assert here(*closing, "--dry-run", *at).line == "3 requests would be closed"
        refused = here(*closing, *at, stdin=b"4\n")
        assert refused.code == 1
        assert "Type 3 to confirm" in refused.err
        assert "0 requests closed" in refused.out.decode()
        assert here("retry", *where, "--rate", "50/s", "--yes", *at).line == "3 requests requeued"
        (job, *_) = here("redrive", "--json", *at).json
        assert (job["done"], job["rate"], job["where"]) == (3, 50, {"service": "mail", "error": "refused"})
        assert b"error=refused" in here("redrive", *at).out
        slow = client.redrive("close", uuids=all_of(client, "mail", "waiting"), rate=0.01)
        assert here("redrive", slow["id"], "pause", "--json", *at).json[0]["state"] == "paused"
        assert here("redrive", slow["id"], "cancel", *at).code == 0
        assert here("close", "--where", "state=waiting", *at, stdin=b"3\n").code == 0
        assert not all_of(client, "mail", "waiting")
        assert client.stats()["since_start"]["closed"] == 3
        for wrong in ("colour=red", "state", "state=done", "since=x"):
            assert here("retry", "--where", wrong, *at).code in (1, 2), wrong
        for wrong in ("since=2026-13-01", "until=2026-12-01", "since=2026-12-01T08:00"):
            assert "it must be a time with its zone" in here("retry", "--where", wrong, *at).err, wrong
        for options in (["--yes"], ["--where", "state=failed", "--all"], ["--rate", "1"]):
            assert here("retry", *options, *at).code == 2


@needs_postgres
def test_another_node_goes_on(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as nodes:
        first, second = nodes.clients
        first.submit_many("mail", ["a"] * 60)
        job = confirmed(first, first.redrive("close", state="waiting", rate=10))
        until(lambda: now(second, job)["done"] > 0)
        nodes[0].stop()
        nodes.servers.pop(0)
        job = reach(second, job, "done")
        assert (job["done"], job["changed"]) == (60, 0)
        assert not all_of(second, "mail", "waiting")


@pytest.mark.torture(short=True)
@pytest.mark.timeout(torture.MOST_SECONDS if torture.LONG else 300)
def test_one_error_of_five_is_retried_beside_a_flood_and_over_a_kill(tmp_path: Path) -> None:
    """50,000 failures in the long run, at 200 a second."""
    each, rate = (10_000, 200) if torture.LONG else (60, 20)
    endpoint, place = f"tcp://127.0.0.1:{free_port()}", tmp_path / "store"
    fixed, stop = threading.Event(), threading.Event()

    def start() -> Process:
        return Process(SUPPORT / "server_process.py", "serve", endpoint, place, output=tmp_path / "server.out")

    def work(frames: list[bytes]) -> list[bytes]:
        if fixed.is_set():
            return frames
        raise RemoteError(500, frames[0].decode(), [])

    def flood() -> None:
        with Client(endpoint, timeout=PATIENCE) as own:
            for _ in range(1000 if torture.LONG else 10):
                if not stop.is_set():
                    own.submit_batch("loud", [b"loud"] * 100, max_attempts=1)

    process = start()
    flooding = threading.Thread(target=flood)
    try:
        with ExitStack() as stack:
            client = stack.enter_context(Client(endpoint, timeout=PATIENCE))
            flooding.start()
            for service in ("mail", "loud"):
                stack.enter_context(Worker(service, work, endpoint, jobs=4, config=QUICK))
            bodies = [f"{error} {n}" for n in range(each) for error in ("one", "two", "three", "four", "five")]
            client.submit_many("mail", bodies, max_attempts=1)

            def counts() -> dict[str, int]:
                groups = client.facts(of=["mail"], failures=True).get("failures", [])
                return {one["text"]: one["failed"] for one in groups if one["service"] == "mail"}

            until(lambda: sum(counts().values()) == 5 * each, 1200, every=0.2)
            assert counts() == dict.fromkeys(("one …", "two …", "three …", "four …", "five …"), each)
            fixed.set()
            job = reach(client, client.redrive("retry", service="mail", error="three …", rate=rate), "counted")
            assert job["counted"] == each
            client.change_redrive(job["id"], "confirm", each)
            begun, before = time.monotonic(), now(client, job)["done"]
            until(lambda: now(client, job)["done"] > each // 2, 600)
            speed = (now(client, job)["done"] - before) / (time.monotonic() - begun)
            stop.set()
            flooding.join()
            process.kill()
            process = start()
            job = reach(client, job, "done")
            assert (job["done"], job["changed"]) == (each, 0)
            until(lambda: client.list(service="mail", state="waiting")[0] == [], 600)
            until(lambda: len(all_of(client, "mail", "done")) == each, 600)
            assert len(all_of(client, "mail", "failed")) == 4 * each
        torture.figures.append(f"a job with a rate of {rate} retried {speed:.1f} a second")
        assert abs(speed / rate - 1) < 0.05 or not torture.LONG
    finally:
        stop.set()
        process.kill()
