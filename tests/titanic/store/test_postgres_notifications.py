"""Notifications between the nodes of a store: the text of a NOTIFY, texts that are not understood, lost connections."""

from __future__ import annotations

import json
import random
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from support.postgres import needs_postgres, shared_server, spare_server
from support.waiting import PATIENCE, until

from titanic.store import Notification, Topic
from titanic.store.postgres import connection_pool, notify
from titanic.store.postgres.connection_pool import ConnectionPool
from titanic.store.postgres.notify import CHANNEL, PostgresNotifications
from titanic.util.ids import IdMaker

NOW = 1_795_258_520_106_479

EVERYTHING = Notification(poll=set(Topic))


def ids(count: int) -> list[bytes]:
    return IdMaker(None).make(count, NOW)


def test_what_is_written_is_read() -> None:
    a, b, c, d, e = ids(5)
    names = {b"echo", bytes(range(256)), "größe".encode()}
    said = [
        Notification(),
        Notification(names, {a, b}, {c: 1, d: 1 << 62, e: 1}, {d, e}, {Topic.ENDED}),
        EVERYTHING,
    ]
    for news in said:
        assert notify.read(notify.write(news).encode()) == news


@pytest.mark.parametrize("seed", range(20))
def test_what_does_not_fit_is_to_be_looked_for(seed: int) -> None:
    chance = random.Random(seed)
    counts = [chance.choice((0, 1, 10, 100, 300, 1000)) for _ in range(4)]
    names = {chance.randbytes(chance.randrange(1, 256)) for _ in range(counts[0])}
    ended, closed, certain = (ids(count) for count in counts[1:])
    news = Notification(names, set(ended), dict.fromkeys(closed, seed), set(certain))
    text = notify.write(news)
    assert len(text) < 8000
    found = notify.read(text.encode())
    for topic, said, read in (
        (Topic.ARRIVED, news.arrived, found.arrived),
        (Topic.ENDED, news.ended, found.ended),
        (Topic.CLOSED, news.closed, found.closed),
        (Topic.CERTAIN, news.certain, found.certain),
    ):
        assert (read == said) != (topic in found.poll)
        assert not read or read == said
    if sum(counts) < 50:
        assert not found.poll


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"hello",
        b"[]",
        b"7",
        b"{}",
        b'{"v":2}',
        b'{"v":"1"}',
        b'{"v":1,"ended":"AAAA"}',
        b'{"v":1,"ended":"?"}',
        b'{"v":1,"ended":7}',
        b'{"v":1,"arrived":7}',
        b'{"v":1,"arrived":["\\u0100"]}',
        b'{"v":1,"closed":{"x":""}, "certain": {}}',
        b'{"v":1,"closed":[]}',
        b'{"v":1,"look":["more"]}',
        b"\xff",
        b"[" * 7000,
    ],
)
def test_what_is_not_understood_is_to_be_looked_for(text: bytes) -> None:
    assert notify.read(text) == EVERYTHING


def test_a_version_that_says_more_is_understood_if_it_says_so() -> None:
    assert notify.read(b'{"v":1,"arrived":["x"],"weather":"fine"}') == Notification({b"x"})


class Line:
    """One end, and what it has heard."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.heard: list[Notification] = []
        self.pool = ConnectionPool(url, "synced")
        self.line = PostgresNotifications(self.pool)
        stack.callback(self.pool.close)
        stack.callback(self.line.stop)

    def start(self) -> None:
        self.line.start(self.heard.append)
        until(lambda: self.heard == [EVERYTHING])
        self.heard.clear()


Lines = Callable[..., list[Line]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    name = shared_server().new_store()
    with ExitStack() as stack:

        def make(count: int, url: str = "") -> list[Line]:
            made = [Line(url or shared_server().url(name), stack) for _ in range(count)]
            for line in made:
                line.start()
            return made

        yield make
    shared_server().drop_database(name)


@needs_postgres
def test_others_hear_what_one_says_and_are_not_alone_then(lines: Lines) -> None:
    one, other, third = lines(3)
    one.line.publish(Notification({b"nobody"}))
    assert one.line.sent == 0, "it was alone"
    one.line.alone = False
    one.line.publish(Notification({b"x"}))
    until(lambda: [Notification({b"x"})] == other.heard == third.heard)
    assert one.heard == []
    assert not other.line.alone
    other.line.publish(Notification())
    until(lambda: Notification() in one.heard)


@needs_postgres
def test_what_comes_with_the_answer_to_a_notify_is_heard(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq has read it then, and the socket is silent."""
    one, other = lines(2)
    execute = PostgresNotifications._execute

    def execute_late(line: PostgresNotifications, connection: Any, text: str, *parameters: object) -> None:
        execute(line, connection, text, *parameters)
        if line is one.line:
            other.line.publish(Notification({b"b"}))
            assert select.select([connection.fileno()], [], [], PATIENCE)[0]
            connection.pgconn.consume_input()

    for line in (one, other):
        line.line.alone = False
    monkeypatch.setattr(PostgresNotifications, "_execute", execute_late)
    one.line.publish(Notification({b"a"}))
    until(lambda: one.heard == [Notification({b"b"})])


@needs_postgres
def test_what_comes_together_is_one_notify(lines: Lines) -> None:
    one, other = lines(2)
    one.line.alone = False
    uuids = ids(100)
    for uuid in uuids:
        one.line.publish(Notification(ended={uuid}))
    until(lambda: set().union(*(news.ended for news in other.heard)) == set(uuids))
    assert one.line.sent <= 20, "a hundred are said in a moment"


@needs_postgres
def test_more_than_a_text_has_room_for_is_not_kept(lines: Lines) -> None:
    one, other = lines(2)
    one.line.alone = False
    uuids = ids(notify.MOST_IDS + 1)
    one.line.publish(Notification({b"x"}, set(uuids)))
    until(lambda: other.heard == [Notification({b"x"}, poll={Topic.ENDED})])
    many = Notification({b"%d" % number for number in range(notify.MOST + 1)})
    notify._shorten(many)
    assert many == Notification(poll={Topic.ARRIVED})


@needs_postgres
def test_a_connection_that_is_lost_is_made_again_and_begins_with_a_look(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "AGAIN", 0.05)
    with spare_server() as server:
        one, other = lines(2, server.url(server.new_database()))
        server.stop()
        one.line.alone = False
        one.line.publish(Notification({b"kept"}))
        server.start()
        until(lambda: EVERYTHING in one.heard and EVERYTHING in other.heard)
        one.line.publish(Notification({b"x"}))
        until(lambda: b"x" in set().union(*(news.arrived for news in other.heard)))


@needs_postgres
def test_what_somebody_else_says_there_is_no_harm(lines: Lines) -> None:
    one, _ = lines(2)
    with psycopg.connect(shared_server().url(one.pool.place.rpartition("/")[2])) as stranger:
        stranger.execute(f"NOTIFY {CHANNEL}, 'hello'")
    until(lambda: one.heard == [EVERYTHING])


@needs_postgres
def test_it_ends_while_the_database_is_away() -> None:
    with spare_server() as server, ExitStack() as stack:
        line = Line(server.url(server.new_database()), stack)
        line.start()
        server.stop()
        line.line.stop()
        unheard = Line("postgresql://titanic@127.0.0.1:1/nowhere", stack)
        unheard.line.start(unheard.heard.append)
        unheard.line.stop()
    assert unheard.heard == []


def test_a_text_says_what_it_is() -> None:
    (uuid,) = ids(1)
    said = json.loads(notify.write(Notification({b"echo"}, closed={uuid: 7})))
    assert (said["v"], said["arrived"], list(said["closed"])) == (1, ["echo"], ["7"])
