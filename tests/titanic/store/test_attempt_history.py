"""The rows of the history of attempts: they go with the close, with the closed request, and when there are too many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.postgres import needs_postgres, shared_server

from titanic.protocol.documents import FailedAttempt
from titanic.store import (
    HistoryWriter,
    NewRequest,
    Retention,
    Store,
    closed_histories,
    find_history,
    open_store,
    with_attempt,
)
from titanic.store.attempt_history import MOST_REPLACED, with_replaced
from titanic.store.lmdb.store import LmdbStore
from titanic.store.memory import MemoryStore

NOW = 1_795_258_520_106_479
ENGINES = ["lmdb", "memory", pytest.param("postgres", marks=needs_postgres)]


@pytest.fixture(params=[True, False], ids=["kept", "not kept"])
def keep_closed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path, keep_closed: bool) -> Iterator[Store]:
    if request.param == "postgres":
        name = shared_server().new_database()
        with open_store(shared_server().url(name), keep_closed=keep_closed) as opened:
            yield opened
        shared_server().drop_database(name)
    elif request.param == "memory":
        yield MemoryStore(keep_closed=keep_closed)
    else:
        with LmdbStore.open(tmp_path, capacity=16 << 20, keep_closed=keep_closed) as opened:
            yield opened


def attempt(number: int, outcome: str = "failed") -> FailedAttempt:
    one: FailedAttempt = {
        "delivery": number,
        "outcome": outcome,  # type: ignore[typeddict-item]
        "started_at": NOW,
        "ended_at": NOW,
        "worker": "bee:1",
        "host": "bee",
        "pid": 1,
        "version": "",
        "user": "",
        "error": f"broken {number}",
    }
    return one


def keys(store: Store) -> list[bytes]:
    with store.read() as tx:
        return [key for key, _ in tx.facts(b"t")]


def test_the_first_and_the_last_four_are_kept() -> None:
    history = None
    for number in range(1, 10):
        history = with_attempt(history, attempt(number), number)
        assert len(history["attempts"]) == min(number, 5)
    assert history is not None
    assert [one["delivery"] for one in history["attempts"]] == [1, 6, 7, 8, 9]
    assert history["counts"] == {"failed": 9}


def test_deaths_count_from_the_first_attempt_on() -> None:
    history = None
    for number, outcome in ((1, "died"), (2, "failed"), (3, "died"), (3, "lost")):
        history = with_attempt(history, attempt(number, outcome), number)
    assert history is not None
    assert history["deaths"] == 2
    assert with_attempt(history, attempt(5, "died"), 1)["deaths"] == 1, "after a retry"
    assert with_attempt(history, attempt(5, "died"), 4)["deaths"] == 3


def test_a_row_goes_with_its_request(store: Store, keep_closed: bool) -> None:
    writer = HistoryWriter(store.facts_room)
    histories = [with_attempt(None, attempt(n), n) for n in range(1, 4)]
    with store.write() as tx:
        tried, other, third = (one.uuid for one in tx.accept([NewRequest(b"echo", [b""])] * 3, NOW))
        for uuid, history in zip((tried, other, third), histories, strict=True):
            writer.put(tx, uuid, history)
    with store.write() as tx:
        tx.close(tried, NOW + 1)
    with store.write() as tx:
        writer.put(tx, other, histories[2])  # what a transaction puts is closed in it as well
        tx.close(other, NOW + 2)
    with store.read() as tx:
        assert find_history(tx, third) == histories[2]
        assert find_history(tx, tried) is find_history(tx, other) is None
        first, last = tx.archive()[2:4]
        closed = {n: text.count("broken 3") for n, text in closed_histories(tx, first, last).items()}
    assert closed == ({first: 0, first + 1: 1} if keep_closed else {})
    assert len(keys(store)) == 1 + 2 * keep_closed
    with store.write() as tx:
        assert tx.trim(NOW + 1 + 10, Retention(closed_retention=10)).closed == keep_closed
    with store.read() as tx:
        assert list(closed_histories(tx, first, last)) == ([first + 1] if keep_closed else [])
    assert len(keys(store)) == 1 + keep_closed


@pytest.mark.parametrize("keep_closed", [True], indirect=True)
def test_a_close_that_is_not_kept_leaves_the_rows_of_others(store: Store) -> None:
    writer = HistoryWriter(store.facts_room)
    with store.write() as tx:
        uuids = [one.uuid for one in tx.accept([NewRequest(b"echo", [b""])] * 2, NOW)]
        writer.put(tx, uuids[0], with_attempt(None, attempt(1), 1))
    with store.write() as tx:
        tx.close(uuids[1], NOW)
    with store.read() as tx:
        assert find_history(tx, uuids[0]) is not None
        assert closed_histories(tx, 1, 9) == {}


@pytest.mark.parametrize("keep_closed", [True], indirect=True)
def test_the_oldest_make_way(store: Store) -> None:
    room = 80_000
    writer = HistoryWriter(room)
    for _ in range(4):
        with store.write() as tx:
            uuids = [one.uuid for one in tx.accept([NewRequest(b"echo", [b""])] * 50, NOW)]
            for uuid in uuids:
                writer.put(tx, uuid, with_attempt(None, attempt(1), 1))
            tx.close(uuids[0], NOW)
    left = keys(store)
    with store.read() as tx:
        size = sum(len(value) + 64 for _, value in tx.facts(b"t"))
    assert room // 8 * 0.5 < size < room // 8 * 1.2
    assert left[-1] == b"t" + uuids[-1]


def test_of_a_replaced_body_in_utf_8_the_beginning_stays_text() -> None:
    text = "a" + "ü" * MOST_REPLACED  # its 16 KiB end in the middle of a character
    (old,) = with_replaced(None, [text.encode()], NOW)["replaced"]
    assert (old["frames"], old["base64"]) == ([text[: MOST_REPLACED // 2]], False)
    assert old["bytes"] == len(text.encode())
    assert with_replaced(None, ["ü".encode()[:1]], NOW)["replaced"][0]["base64"]
