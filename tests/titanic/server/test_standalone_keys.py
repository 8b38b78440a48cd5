"""Titanic without a broker of its own, at one that wants keys."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.keyed_router import CURVE_SERVER, keyed_router
from support.secured import SERVER, access, new_pair, secured_broker, user
from support.serving import QUICK, serving
from support.waiting import until

from broker import Broker, Curve, Worker, load_secret, new_keys
from titanic import Client, Forbidden, KeyRefused
from titanic.protocol.permissions import RULES

SHOP, OTHER, WORKS = new_pair(), new_pair(), new_pair()
SHOP_USER = user("shop", submit=["echo"], read="own", close=True)
OTHER_USER = user("other", submit=["mail"], read="own")
WORKER = user("worker", work=["echo"])
QUEUE = user("queue", work=["titanic.*"], call=["*"])
SERVER_KEY = SERVER.public.decode()


def curve(pair: object) -> Curve:
    """A client's keys."""
    return Curve(pair.public, pair.secret, SERVER.public)  # type: ignore[attr-defined]


@pytest.fixture
def queue_key(tmp_path: Path) -> Path:
    """The queue's secret key file."""
    return new_keys(tmp_path, "queue")[1]


@pytest.fixture
def secured(queue_key: Path) -> Iterator[Broker]:
    """A broker that knows four users."""
    users = {SHOP_USER: SHOP, OTHER_USER: OTHER, WORKER: WORKS, QUEUE: load_secret(queue_key)}
    with secured_broker(access(users), rules=RULES, heartbeat_interval=0.5) as broker:
        yield broker


def test_who_may_submits_works_and_reads_and_others_may_not(tmp_path: Path, secured: Broker, queue_key: Path) -> None:
    (endpoint,) = secured.core.about.endpoints
    with (
        serving(tmp_path, broker=endpoint, key=queue_key, server_key=SERVER_KEY),
        Worker("echo", lambda frames: frames, endpoint, config=QUICK, key=curve(WORKS)),
        Client(endpoint, timeout=30, key=curve(SHOP)) as shop,
        Client(endpoint, timeout=30, key=curve(OTHER)) as other,
    ):
        uuid = shop.submit("echo", "hello")
        assert shop.wait(uuid, 30) == [b"hello"]
        uuids = shop.submit_many("echo", ["1", "2", "3"])
        assert dict(shop.replies(uuids, 30)) == {one: [b"%d" % n] for n, one in enumerate(uuids, 1)}
        with pytest.raises(Forbidden, match=r"user 'other' may not submit to 'echo'; it needs submit = \[\"echo\"\]"):
            other.submit("echo", "hello")
        with pytest.raises(Forbidden, match="user 'shop' may not"):
            shop.stats()


def test_who_is_unknown_to_the_broker_is_told(secured: Broker) -> None:
    (endpoint,) = secured.core.about.endpoints
    with Client(endpoint, key=curve(new_pair())) as stranger, pytest.raises(KeyRefused, match="refused this key"):
        stranger.submit("echo", "hello")


def test_a_queue_whose_key_is_refused_logs_it_and_goes_on(
    tmp_path: Path, queue_key: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with keyed_router([]) as endpoint:
        began = time.monotonic()
        with serving(tmp_path, broker=endpoint, key=queue_key, server_key=CURVE_SERVER.public.decode()):
            (record, *_) = until(lambda: [one for one in caplog.records if one.levelno >= logging.ERROR])
            assert time.monotonic() - began < 5
        assert record.message.startswith(f"the server at {endpoint} refused this key")


def test_a_queue_that_may_not_ask_whether_there_is_another_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = {name: new_keys(tmp_path, name)[1] for name in ("one", "two")}
    less = user("two", work=["titanic.request"], call=["*"])
    users = {user("one", work=["titanic.*"]): load_secret(pairs["one"]), less: load_secret(pairs["two"])}
    with secured_broker(access(users), rules=RULES, heartbeat_interval=0.5) as broker:
        (endpoint,) = broker.core.about.endpoints
        for folder in pairs:
            (tmp_path / f"of-{folder}").mkdir()
        with serving(tmp_path / "of-one", broker=endpoint, key=pairs["one"], server_key=SERVER_KEY) as first:
            until(lambda: first.ready)
            with serving(tmp_path / "of-two", broker=endpoint, key=pairs["two"], server_key=SERVER_KEY):
                said = until(lambda: [line.message for line in caplog.records if "found out" in line.getMessage()])
    assert "user 'two' may not see figures" in said[0]
    assert 'work = ["titanic.*"]' in said[0]
