"""The server ends, is killed, and is started again, while workers work: they return with their requests."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from support.access_files import ALICE, AccessFiles
from support.kept_jobs import Handler, Keeper
from support.ports import free_port
from support.processes import SUPPORT, Process
from support.raw_mdp import raw_worker
from support.serving import config
from support.torture import LONG, SEED, tally
from support.waiting import until

from broker import BrokerConfig, Worker, WorkerConfig
from titanic import Client, Server, UnknownRequest
from titanic.dispatch.deliveries import FILE

QUICK = WorkerConfig(heartbeat_interval=0.5, liveness=10, reconnect_first=0.05, reconnect_most=0.1)


class Place:
    """Where a server runs, one process after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"

    @contextmanager
    def server(self, **settings: object) -> Iterator[Server]:
        """In this process; it is stopped as by SIGTERM."""
        with Server(config(self.path, bind=(self.endpoint,), **settings)) as server:
            yield server

    def process(self) -> Process:
        """Its own process, which can be killed."""
        script = SUPPORT / "server_process.py"
        return Process(script, "serve", self.endpoint, self.path / "store", output=self.path / "server.out")

    @contextmanager
    def client(self) -> Iterator[Client]:
        with Client(self.endpoint, timeout=60) as client:
            yield client


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_jobs_go_on_over_restarts(place: Place, end: str) -> None:
    """Each is executed once, its reply counts, and nothing waits for the end of a job."""
    work, count = Handler(), 20
    with Worker("echo", work, place.endpoint, jobs=count, config=QUICK) as worker:
        uuids: list[str] = []
        for run in range(4):
            with serving(place, end), place.client() as client:
                if not run:
                    uuids = [client.submit("echo", b"%d" % number) for number in range(count)]
                    until(lambda: len(work.begun) == count)
                else:
                    until(lambda: worker.registered)
                    extra = client.submit("other", "x")  # it takes requests, as ever
                    assert client.show(extra)["state"] == "waiting"
                if run == 3:
                    work.go.set()
                    for number, uuid in enumerate(uuids):
                        assert client.wait(uuid, 60) == [b"part", b"done:%d" % number]
                        assert client.show(uuid)["attempts"] == 1
                else:
                    until(partial(is_running, client, uuids))
            until(lambda: not worker.registered)
    assert sorted(work.begun) == sorted((b"%d" % number, 1, 1) for number in range(count))


@contextmanager
def serving(place: Place, end: str) -> Iterator[None]:
    if end == "stop":
        with place.server(grace=60):
            yield
    else:
        with place.process():
            yield


def is_running(client: Client, uuids: list[str]) -> bool:
    return all(client.show(uuid)["state"] == "running" for uuid in uuids)


def test_replies_that_come_while_the_server_is_away(place: Place) -> None:
    work = Handler()
    with Worker("echo", work, place.endpoint, jobs=2, config=QUICK):
        with place.process(), place.client() as client:
            uuids = [client.submit("echo", b"1"), client.submit("echo", b"2")]
            until(lambda: len(work.begun) == 2)
        work.go.set()
        with place.server(), place.client() as client:
            assert [client.wait(uuid, 60) for uuid in uuids] == [[b"part", b"done:1"], [b"part", b"done:2"]]
    assert sorted(work.begun) == [(b"1", 1, 1), (b"2", 1, 1)]


def test_only_what_a_worker_has_waits(place: Place) -> None:
    """What has not begun goes to other workers at once."""
    work, other = Handler(), Handler()
    other.go.set()
    worker = Worker("echo", work, place.endpoint, jobs=2, config=QUICK).start()
    with place.process(), place.client() as client:
        uuids = [client.submit("echo", b"%d" % number) for number in range(6)]
        until(lambda: len(work.begun) == 2)
    with place.server() as server, Worker("echo", other, place.endpoint, config=QUICK), place.client() as client:
        for uuid in uuids[2:]:
            client.wait(uuid, 60)
        assert {body for body, _, _ in other.begun} == {b"2", b"3", b"4", b"5"}
        until(lambda: server.broker.counters()["resumed"] == 2)  # type: ignore[union-attr]
        work.go.set()
        for uuid in uuids[:2]:
            client.wait(uuid, 60)
        worker.stop()
    assert len(work.begun) == 2


@pytest.mark.settings
def test_workers_that_are_killed_with_the_server(place: Place, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = Process(SUPPORT / "worker_process.py", place.endpoint, "echo", log, "await", output=tmp_path / "w.out")
    with place.process(), place.client() as client:
        uuid = client.submit("echo", b"1")
        until(lambda: log.exists() and log.read_text())
    worker.kill()
    work = Handler()
    work.go.set()
    with (
        place.server(wire=BrokerConfig(liveness=60, worker_return=1.0)),
        Worker("echo", work, place.endpoint, config=QUICK),
        place.client() as client,
    ):
        assert client.wait(uuid, 60) == [b"part", b"done:1"]
        assert client.show(uuid)["attempts"] == 1
    assert work.begun == [(b"1", 1, 2)]


def token_of(place: Place, then: Callable[[Client, str, bytes], None]) -> tuple[str, bytes]:
    """A raw worker gets a request, and the server is killed."""
    with place.process(), place.client() as client:
        uuid = client.submit("echo", b"1")
        with Keeper(place.endpoint, *ready(b"k")) as worker:
            token = worker.hears(b"\x09")[0]
            then(client, uuid, token)
    return uuid, token


def ready(keeper: bytes, *held: bytes, service: bytes = b"echo") -> list[bytes]:
    words = [b"titanic:1", b"titanic:slots=1", b"titanic:process=elsewhere:1", b"titanic:keeper=" + keeper]
    return [b"MDPW02", b"\1", service, *words, *(b"titanic:held=" + token for token in held)]


STRANGERS: dict[str, Callable[[bytes, bytes], list[bytes]]] = {
    "another worker": lambda service, token: ready(b"x", token, service=service),
    "another service": lambda service, token: ready(service, token, service=b"other"),
    "another secret": lambda service, token: ready(b"x", token[:16] + b"0" * 32 + token[48:], service=service),
    "no secret": lambda service, token: ready(b"x", token[:16] + token[48:], service=service),
}


def test_strangers_get_and_answer_nothing(place: Place) -> None:
    held: dict[str, tuple[str, bytes]] = {}
    with place.process(), place.client() as client:
        for who in STRANGERS:
            uuid, service = client.submit(who, b"1"), who.encode()
            with Keeper(place.endpoint, *ready(service, service=service)) as worker:
                held[who] = uuid, worker.hears(b"\x09")[0]
    with place.server() as server, place.client() as client:
        for count, (who, (uuid, token)) in enumerate(held.items(), 1):
            service = who.encode()
            said = STRANGERS[who](service, token)
            told = next(frame for frame in said if frame.startswith(b"titanic:held=")).removeprefix(b"titanic:held=")
            with Keeper(place.endpoint, *said) as worker:
                assert worker.hears(b"\7") == [told, b""], who
                worker.says(b"MDPW02", b"\4", told, b"", b"false")
                until(lambda count=count: server.broker.counters()["not_resumed"] == count)  # type: ignore[union-attr]
                until(lambda: server.broker.counters()["workers_busy"] == 0)  # type: ignore[union-attr]
                assert client.reply(uuid) is None, who
            returned = b"titanic:keeper=" + service in said  # the same worker, without what it had: that waits again
            with Keeper(place.endpoint, *ready(service, *([] if returned else [token]), service=service)) as worker:
                if returned:
                    token = worker.hears(b"\x09")[0]
                worker.says(b"MDPW02", b"\4", token, b"", b"true")
                assert client.wait(uuid, 60) == [b"true"], who


def test_the_secret_is_shown_nowhere(place: Place) -> None:
    def shown(client: Client, uuid: str, token: bytes) -> None:
        secret = token[16:48].decode()
        texts = [str(client.show(uuid)), str(client.stats()), str(client.workers())]
        assert not [text for text in texts if secret in text]

    _, token = token_of(place, shown)
    assert token[16:48].decode() not in (place.path / "server.out").read_text()


def test_closed_while_the_server_waits(place: Place) -> None:
    uuid, token = token_of(place, lambda *_: None)
    with place.server() as server, place.client() as client:
        client.close(uuid)
        with Keeper(place.endpoint, *ready(b"k", token)) as worker:
            assert worker.hears(b"\7") == [token, b""]
            worker.says(b"MDPW02", b"\4", token, b"", b"late")
            until(lambda: not server.dispatcher.core.flights)
        with pytest.raises(UnknownRequest):
            client.reply(uuid)
        assert len(server.dispatcher.deliveries or ()) == 0


def test_a_stop_waits_for_other_workers_only(place: Place) -> None:
    """A worker that does not keep its requests is waited for; of the other's the note stays."""
    work = Handler()
    with Worker("kept", work, place.endpoint, config=QUICK) as worker:
        with place.server(grace=60) as server, place.client() as client:
            kept, other = client.submit("kept", b"1"), client.submit("other", b"2")
            with raw_worker(place.endpoint, b"other") as raw:
                token, _ = raw.take()
                until(lambda: work.begun)
                stopping = threading.Thread(target=server.stop)
                stopping.start()
                until(lambda: server.dispatcher.core.stopping)
                raw.final(token, b"reply")
                stopping.join(30)
                assert not stopping.is_alive()
        assert (place.path / "store" / FILE).stat().st_size
        with place.server(), place.client() as client:
            assert client.reply(other) == [b"reply"]
            until(lambda: worker.registered)
            work.go.set()
            assert client.wait(kept, 60) == [b"part", b"done:1"]
    assert work.begun == [(b"1", 1, 1)]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_a_worker_gave_back_does_not_wait_for_it(place: Place, end: str) -> None:
    """The next worker, which does not keep it, has it when the server ends."""
    work = Handler()
    work.go.set()
    with ExitStack() as workers, place.client() as client:
        with place.server(grace=0.0) if end == "stop" else place.process():
            uuid = client.submit("echo", b"1")
            first = workers.enter_context(Keeper(place.endpoint, *ready(b"k")))
            first.says(b"MDPW02", b"\x0a", b"0", first.hears(b"\x09")[0])
            workers.enter_context(raw_worker(place.endpoint, b"echo")).take()
        with (
            place.server(wire=BrokerConfig(liveness=60, worker_return=900)),
            Worker("echo", work, place.endpoint, config=QUICK),
        ):
            assert client.wait(uuid, 60) == [b"part", b"done:1"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("text", [ALICE.replace('work = ["*"]', 'work = ["other"]'), ""])
def test_a_user_that_is_removed_or_may_not_work_any_more(place: Place, text: str) -> None:
    """Its worker cannot return; after a time another's gets the request."""
    bob = '[users.bob]\nkeys = ["bob.key"]\nwork = ["*"]\nsubmit = ["*"]\nread = "all"\n'
    files = AccessFiles(place.path / "access", ALICE + bob)
    settings = {"access": files.path, "key": files.key, "wire": BrokerConfig(liveness=60, worker_return=0.5)}
    as_alice, as_bob = ({"key": files.secret(name), "server_key": files.server_key} for name in ("alice", "bob"))
    work, other = Handler(), Handler()
    other.go.set()
    with Worker("echo", work, place.endpoint, config=QUICK, **as_alice) as worker:
        with place.server(**settings), Client(place.endpoint, timeout=60, **as_bob) as client:
            uuid = client.submit("echo", b"1")
            until(lambda: work.begun)
        files.write(text + bob)
        with (
            place.server(**settings) as server,
            Client(place.endpoint, timeout=60, **as_bob) as client,
            Worker("echo", other, place.endpoint, config=QUICK, **as_bob),
        ):
            assert client.wait(uuid, 60) == [b"part", b"done:1"]
            assert not worker.registered
            work.go.set()
            files.write(ALICE + bob)  # now it may again: it would wait long to get rid of its reply
            server.reload(server.config)
            until(lambda: server.broker.counters()["not_resumed"] == 1)  # type: ignore[union-attr]
            assert client.reply(uuid) == [b"part", b"done:1"]
    assert (work.begun, other.begun) == ([(b"1", 1, 1)], [(b"1", 1, 2)])


@pytest.mark.torture(short=True)
def test_torture_of_kills(place: Place) -> None:
    """The server is killed again and again, at any moment, while jobs run: each is executed once."""
    dice = random.Random(SEED)
    jobs, kills = (50, 50) if LONG else (20, 3)
    work = Handler()
    with Worker("echo", work, place.endpoint, jobs=jobs, config=QUICK), place.client() as client:
        with place.process():
            uuids = [client.submit("echo", b"%d" % number) for number in range(jobs)]
            until(lambda: len(work.begun) == jobs)
        for _ in range(kills):
            with place.process():
                client.stats()
                threading.Event().wait(dice.random() * (2.0 if LONG else 0.3))
            tally["processes killed"] += 1
        work.go.set()
        with place.process():
            for number, uuid in enumerate(uuids):
                assert client.wait(uuid, 120) == [b"part", b"done:%d" % number]
                assert client.show(uuid)["attempts"] == 1
                tally["executions compared"] += 1
    assert sorted(work.begun) == sorted((b"%d" % number, 1, 1) for number in range(jobs))


@pytest.mark.torture(short=True)
def test_replies_on_their_way_at_a_kill_count(place: Place) -> None:
    """Jobs take no time: at each kill replies are on their way to the server, or in its memory."""
    dice = random.Random(SEED)
    kills, each = (200 if LONG else 6), 100
    executed: Counter[bytes] = Counter()

    def work(frames: list[bytes]) -> Iterator[bytes]:
        executed[frames[0]] += 1
        yield b"part"
        yield frames[0]

    with Worker("echo", work, place.endpoint, jobs=8, config=QUICK), place.client() as client:
        bodies, uuids = [b"%d" % number for number in range(kills * each)], []
        for at in range(0, len(bodies), each):
            with place.process():
                uuids += client.submit_many("echo", bodies[at : at + each])
                threading.Event().wait(dice.random() * 0.1)
            tally["processes killed"] += 1
        with place.process():
            replies = dict(client.replies(uuids, 120))
            assert [replies[uuid] for uuid in uuids] == [[b"part", body] for body in bodies]
            assert {client.show(uuid)["attempts"] for uuid in uuids[::each]} == {1}
            tally["executions compared"] += len(bodies)
    assert executed == Counter(dict.fromkeys(bodies, 1))
