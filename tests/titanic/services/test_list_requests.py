"""titanic.list: options, pages, states."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.store_facts import accept_all

from titanic.services import list_requests
from titanic.store import MIN_CAPACITY, NewRequest, Status, Store
from titanic.store.lmdb.store import LmdbStore

NOW = 1_700_000_000_000_000


@pytest.fixture
def store(tmp_path: Path, engine: Callable[..., Store]) -> Iterator[Store]:
    with engine(tmp_path / "store", capacity=MIN_CAPACITY) as store:
        yield store


def fill(store: Store, *services: str) -> list[bytes]:
    with store.write() as transaction:
        return accept_all(transaction, [NewRequest(name.encode(), [b"body"]) for name in services], NOW)


class Workers:
    """They have these requests."""

    def __init__(self, uuids: tuple[bytes, ...]) -> None:
        self._uuids = set(uuids)

    def running(self) -> set[bytes]:
        return self._uuids

    def progress(self, uuids: Collection[bytes]) -> dict[bytes, Any]:
        return {}

    def running_since(self, uuids: Collection[bytes]) -> dict[bytes, int]:
        return {}

    def worker_of(self, uuid: bytes) -> str:
        return ""


def page(store: Store, running: tuple[bytes, ...] = (), **options: Any) -> tuple[list[dict[str, Any]], str | None]:
    with store.read() as transaction:
        answer = list_requests.answer(transaction, [json.dumps(options).encode()], Workers(running))
    assert answer[0] == b"200", answer
    document = json.loads(answer[1])
    return document["requests"], document["next"]


def test_an_empty_frame_lists_everything_oldest_first(store: Store) -> None:
    uuids = fill(store, "a", "b", "a")
    with store.read() as transaction:
        _, text = list_requests.answer(transaction, [b""], None)
    assert [row["uuid"] for row in json.loads(text)["requests"]] == [uuid.hex() for uuid in uuids]


def test_pages_cover_everything_once(store: Store) -> None:
    uuids = fill(store, *["a"] * 25)
    seen: list[str] = []
    after = None
    while True:
        rows, after = page(store, limit=10, after=after)
        seen += [row["uuid"] for row in rows]
        if after is None:
            break
    assert seen == [uuid.hex() for uuid in uuids]


def test_requests_of_an_owner_with_the_beginning_of_their_bodies(store: Store) -> None:
    large = b"x" * (list_requests.MOST_BEGUN + 1)
    bodies = [(b"ann", [b"f\xc3\xbcr", b"ann"]), (b"bob", [b"bob"]), (b"ann", [large]), (b"ann", [b"", b"\xff"])]
    with store.write() as transaction:
        uuids = accept_all(transaction, [NewRequest(b"a", body, owner=owner) for owner, body in bodies], NOW)
    given: list[bytes] = []
    with store.read() as transaction:
        asked = [json.dumps({"owner": "ann", "begin": 7}).encode()]
        document = json.loads(list_requests.answer(transaction, asked, None, given=given)[1])
    found = {row["uuid"]: row.get("begin") for row in document["requests"]}
    expected = ["für ann"[:6], None, " \ufffd"]
    assert found == {uuids[at].hex(): begin for at, begin in zip((0, 2, 3), expected, strict=True)}
    assert given == [uuids[0], uuids[3]], "what the audit records"
    at_work, _ = page(store, (uuids[0], uuids[1]), owner="bob", state="running")
    assert [row["uuid"] for row in at_work] == [uuids[1].hex()]


def test_states_and_services_are_told_apart(store: Store) -> None:
    waiting, running, delayed, done, failed, other = uuids = fill(store, "a", "a", "a", "a", "a", "b")
    with store.write() as transaction:
        transaction.postpone(delayed, due=NOW * 2, attempts=1, dispatched_at=NOW, reason="why")
        for uuid, status in ((done, Status.DONE), (failed, Status.FAILED)):
            transaction.finish(uuid, status, [b"R"], attempts=1, dispatched_at=NOW, finished_at=NOW)
    rows, _ = page(store, (running,))
    assert {row["uuid"]: row["state"] for row in rows} == {
        uuid.hex(): state
        for uuid, state in zip(uuids, ["waiting", "running", "delayed", "done", "failed", "waiting"], strict=True)
    }
    for state, expected in [("waiting", [waiting, other]), ("running", [running]), ("delayed", [delayed])]:
        rows, _ = page(store, (running,), state=state)
        assert [row["uuid"] for row in rows] == [uuid.hex() for uuid in expected]
    rows, _ = page(store, (running,), service="b")
    assert [row["service"] for row in rows] == ["b"]
    assert page(store, (running,), service="b", state="running") == ([], None)
    rows, _ = page(store, uuid=delayed.hex().upper())
    assert (rows[0]["state"], rows[0]["attempts"], rows[0]["reason"]) == ("delayed", 1, "why")


def test_an_unknown_one_is_not_listed(store: Store) -> None:
    assert page(store, uuid="0" * 32) == ([], None)
    assert page(store, (bytes(16),), state="running") == ([], None)


def test_running_ones_come_in_pages_too(store: Store) -> None:
    uuids = tuple(fill(store, *["a"] * 5))
    rows, after = page(store, uuids, state="running", limit=3)
    assert [row["uuid"] for row in rows] == [uuid.hex() for uuid in uuids[:3]]
    rows, after = page(store, uuids, state="running", limit=3, after=after)
    assert [row["uuid"] for row in rows] == [uuid.hex() for uuid in uuids[3:]]
    assert after is None


def test_newest_first(store: Store) -> None:
    uuids = [uuid.hex() for uuid in fill(store, *["a"] * 5)]
    rows, after = page(store, newest=True, limit=3)
    assert [row["uuid"] for row in rows] == uuids[:1:-1]
    rows, after = page(store, newest=True, limit=3, after=after)
    assert [row["uuid"] for row in rows] == uuids[1::-1]
    assert after is None
    running = tuple(map(bytes.fromhex, uuids))
    rows, after = page(store, running, state="running", newest=True, limit=3)
    assert [row["uuid"] for row in rows] == uuids[:1:-1]
    rows, after = page(store, running, state="running", newest=True, limit=3, after=after)
    assert [row["uuid"] for row in rows] == uuids[1::-1]
    assert page(store, running, state="running", text="broke") == ([], None)


def test_a_request_comes_with_the_beginning_of_body_and_reply(store: Store) -> None:
    with store.write() as transaction:
        one, many = accept_all(transaction, [NewRequest(b"a", [b"0123"]), NewRequest(b"a", [b"x"] * 1500)], NOW)
        transaction.finish(one, Status.DONE, [b"abc", b"", b"defg"], attempts=1, dispatched_at=NOW, finished_at=NOW)

    def look(uuid: bytes, most: int) -> tuple[dict[str, Any], list[bytes]]:
        with store.read() as transaction:
            asked = json.dumps({"uuid": uuid.hex(), "most": most}).encode()
            status, text, *frames = list_requests.answer(transaction, [asked], None)
        assert status == b"200"
        return json.loads(text), frames

    document, frames = look(one, 4)
    assert (document["body"], document["reply"], frames) == (1, 3, [b"0123", b"abc", b"", b"d"])
    assert (document["requests"][0]["body_bytes"], document["requests"][0]["reply_bytes"]) == (4, 7)
    document, frames = look(one, 1 << 20)
    assert (document["body"], document["reply"], frames) == (1, 3, [b"0123", b"abc", b"", b"defg"])
    assert look(one, 0)[1] == [b"", b""]
    document, frames = look(many, 1 << 20)
    assert (document["body"], document["reply"], len(frames)) == (1000, 0, 1000)
    document, frames = look(bytes(16), 5)
    assert (document["requests"], document["body"], document["reply"], frames) == ([], 0, 0, [])


def test_what_cannot_be_asked_for(store: Store) -> None:
    known = {"uuid": "0" * 32}
    for wrong in (
        {"newest": 1},
        {"text": 1},
        {"most": 5},
        {**known, "most": -1},
        {**known, "most": True},
        {**known, "most": (1 << 20) + 1},
    ):
        with store.read() as transaction:
            (status,) = list_requests.answer(transaction, [json.dumps(wrong).encode()], None)
        assert status.startswith(b"400 ")


def test_a_damaged_name_is_listed_all_the_same(tmp_path: Path) -> None:
    with LmdbStore.open(tmp_path / "store") as store:
        (uuid,) = fill(store, "abc")
        with store.write() as transaction:
            record = bytearray(transaction.raw.get(uuid, db=transaction.db.requests))
            at = record.index(b"abc")
            record[at] = 0xFF
            transaction.raw.put(uuid, bytes(record), db=transaction.db.requests)
        rows, _ = page(store)
    assert rows[0]["service"] == "\ufffdbc"


def test_expired_ones_keys_and_options(store: Store) -> None:
    options = b'{"limit": 5, "retry_first": 0.5}'
    with store.write() as transaction:
        request = NewRequest(b"a", [b"x"], 9, 0, NOW + 5, 3, options, "größe".encode(), NOW * 2)
        (uuid,) = accept_all(transaction, [request], NOW)
        accept_all(transaction, [NewRequest(b"a", [b"x"], options=b"[")], NOW)
        assert transaction.expire(NOW + 5) == [(uuid, b"a")]
    ((row,), _) = page(store, state="expired")
    assert (row["uuid"], row["state"], row["priority"]) == (uuid.hex(), "expired", 9)
    assert (row["key"], row["options"]) == ("größe", {"limit": 5, "retry_first": 0.5})
    assert [row["options"] for row in page(store)[0][1:]] == [{}]
