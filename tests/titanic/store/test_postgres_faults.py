"""What failures of PostgreSQL, and of the way to it, do to what was acknowledged: nothing. And what is told meanwhile.

A request that was acknowledged is there afterwards. One of which nobody knows is there once or not at all, and who
submits it again with its key has it once.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator

import pytest
from support.desk import Desk
from support.postgres import PASSWORD, USER, PostgresServer, needs_postgres, shared_server, spare_server
from support.postgres_pair import new_pair
from support.relay import relay
from support.small_disk import small_disk
from support.store_facts import accept_all, holder_of
from support.waiting import until

from titanic.errors import DiskFull, StoreFailed
from titanic.protocol import tsp
from titanic.store import AcceptResult, NewRequest, Status, Store, open_store
from titanic.store.postgres import connection_pool, database_session
from titanic.store.postgres.store import PostgresStore
from titanic.store.postgres.tools import check

pytestmark = needs_postgres

NOW = 1_795_258_520_106_479
COMMITTED = re.compile(rb"C\x00\x00\x00\x0bCOMMIT\x00|D.{18}C\x00\x00\x00\rUPDATE 1\x00", re.DOTALL)
"""What the server says when it has committed, also a statement that is a transaction by itself: it returns a number."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away is tried again soon."""
    monkeypatch.setattr(connection_pool, "AGAIN", 0.02)


class Line:
    """A way to a database that can lose the next COMMIT, or the answer to it."""

    def __init__(self) -> None:
        self.lost = 0
        self._lose = ""

    def lose(self, what: str) -> None:
        """ "request": what is said next does not arrive; "answer": that of the next COMMIT does not."""
        self._lose = what

    def breaks(self, data: bytes, answers: bool) -> bool:
        if self._lose != ("answer" if answers else "request") or (answers and not COMMITTED.search(data)):
            return False
        self._lose = ""
        self.lost += 1
        return True


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def store(line: Line) -> Iterator[Store]:
    server = shared_server()
    name = server.new_store()
    with relay(f"tcp://127.0.0.1:{server.port}", breaks=line.breaks) as there:
        port = there.endpoint.rpartition(":")[2]
        with PostgresStore.open(f"postgresql://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/{name}") as store:
            assert store.caretaker is not None
            store.caretaker.stop()  # its message might be the one that is lost
            yield store
            assert check(store) == []
    server.drop_database(name)


def request(key: bytes = b"", body: bytes = b"x") -> NewRequest:
    return NewRequest(b"a", [body], key=key, key_until=NOW + 1 if key else 0)


def accept(store: Store, *requests: NewRequest) -> list[bytes]:
    with store.write() as tx:
        return accept_all(tx, requests, NOW)


def again(change: Callable[[], object]) -> object:
    """Try until the database is there."""

    def changed() -> list[object]:
        try:
            return [change()]
        except StoreFailed:
            return []

    return until(changed)[0]


@pytest.mark.parametrize("what", ["request", "answer"])
def test_a_key_has_its_request_once_whatever_became_of_the_commit(store: Store, line: Line, what: str) -> None:
    accept(store, request())
    tried: list[AcceptResult] = []

    def submit() -> None:
        with store.write() as tx:
            tried.extend(tx.accept([request(b"k")], NOW))
            if not line.lost:
                line.lose(what)

    with pytest.raises(StoreFailed, match=r"during a commit; .*committed is unknown"):
        submit()
    assert line.lost == 1
    submit()
    first, found = tried
    assert (found.new, found.uuid == first.uuid) == ((True, False) if what == "request" else (False, True))
    with store.read() as tx:
        assert tx.counts().requests == 2
        assert holder_of(tx, b"k") == found.uuid


@pytest.mark.parametrize("what", ["request", "answer"])
def test_an_end_is_there_once_whatever_became_of_the_commit(store: Store, line: Line, what: str) -> None:
    uuids = accept(store, request(), request())
    end = {"attempts": 1, "dispatched_at": 1, "finished_at": 2}

    def finish() -> list[bool]:
        with store.write() as tx:
            tx.prefetch(uuids)
            ended = [tx.finish(uuid, Status.DONE, [b"R"], **end) for uuid in uuids]
            if not line.lost:
                line.lose(what)
        return ended

    with pytest.raises(StoreFailed, match="changes were committed is unknown"):
        finish()
    assert finish() == [what == "request"] * 2
    with store.read() as tx:
        assert [tx.reply(uuid).frames for uuid in uuids] == [[b"R"]] * 2
        assert tx.counts().replies == 2


def test_who_submits_is_not_told_that_it_is_stored(store: Store, line: Line) -> None:
    desk = Desk(store)
    desk.writer.start()
    desk.reader.start()
    submission = [b'{"key": "k"}', b"a", b"x"]
    try:
        assert desk.ask(tsp.SUBMIT, [b'{"key": "other"}', b"a", b"x"])[0][0] == b"200"
        line.lose("answer")
        (answer,) = desk.ask(tsp.SUBMIT, submission)
        assert line.lost == 1
        assert answer[0].startswith(b"500 perhaps not stored: ")
        assert b"changes were committed is unknown" in answer[0]
        ((code, uuid),) = [answer[:2] for answer in desk.ask(tsp.SUBMIT, submission)]
        assert code == b"200"
        assert desk.ask(tsp.REPLY, [uuid]) == [[b"300"]]
    finally:
        desk.reader.stop()
        desk.writer.stop()
    with store.read() as tx:
        assert tx.counts().requests == 2


class Ledger:
    """Somebody who accepts requests all the time, and writes down which were acknowledged."""

    def __init__(self, store: Store) -> None:
        self.acknowledged: list[bytes] = []
        self.failures: list[str] = []
        self._store = store
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.acknowledged += accept(self._store, request(), request())
            except StoreFailed as failure:
                self.failures.append(str(failure))
                self._over.wait(0.01)

    def goes_on(self) -> None:
        """Wait until more was acknowledged."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > before + 10)

    def __enter__(self) -> Ledger:
        self._thread.start()
        self.goes_on()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def is_right(self) -> None:
        """It ends. All that was acknowledged is there; of what was not, at most what was tried."""
        self.__exit__()
        with self._store.read() as tx:
            there = tx.request_ids(1)
        assert not set(self.acknowledged) - set(there)
        assert len(there) - len(self.acknowledged) <= 2 * len(self.failures)
        assert check(self._store) == []


def test_a_fail_over_loses_nothing_that_was_acknowledged() -> None:
    with new_pair() as pair, open_store(pair.url(pair.primary.new_database())) as store, Ledger(store) as ledger:
        pair.fail_over()
        ledger.goes_on()
        pair.follow()
        ledger.goes_on()
        pair.fail_over()
        ledger.goes_on()
        ledger.is_right()


def test_a_primary_that_is_killed_and_comes_back_loses_nothing() -> None:
    with spare_server() as server, open_store(server.url(server.new_database())) as store, Ledger(store) as ledger:
        for mode in ("kill", "immediate", "fast"):
            server.restart(mode)
            ledger.goes_on()
        ledger.is_right()


def test_without_its_standby_nothing_is_acknowledged_until_the_operator_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database_session, "CHECK_INTERVAL", 0.05)
    with new_pair() as pair, PostgresStore.open(pair.url(pair.primary.new_database())) as store:
        first = accept(store, request())
        assert store.caretaker is not None
        store.caretaker.stop()  # a caller that finds the connection taken opens one, and waits for the standby
        pair.standby.pause()
        with monkeypatch.context() as quick:
            quick.setattr(database_session, "PATIENCE", 1.0)
            with pytest.raises(StoreFailed, match="changes were committed is unknown"):
                accept(store, request())
        pair.primary.reload(synchronous_standby_names="")
        more = again(lambda: accept(store, request()))
        with store.read() as tx:
            assert set(first + more) <= set(tx.request_ids(1))


def test_a_full_disk_is_said_and_ends_by_itself() -> None:
    with PostgresServer() as server, small_disk(server.folder / "disk", "tmpfs", 64 << 20) as disk:
        server.data = disk.path / "data"
        server.wal_elsewhere = True  # else the server itself would end
        server.create()
        with open_store(server.url(server.new_database())) as store:
            first = accept(store, request())
            disk.fill()
            stored = list(first)

            def fill() -> None:
                while True:
                    stored.extend(accept(store, *[request(body=random.randbytes(25_000)) for _ in range(20)]))

            with pytest.raises(
                DiskFull, match=r"the disk of the database .* is full; .*the transaction was rolled back"
            ):
                fill()
            with store.read() as tx:
                assert tx.request_ids(1) == stored
            disk.make_room()
            stored += accept(store, request(body=bytes(25_000)))
            with store.read() as tx:
                assert tx.request_ids(1) == stored
            assert check(store) == []
        server.stop()
