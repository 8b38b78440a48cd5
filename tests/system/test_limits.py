"""Limits of single services, as an operator sets them: in a file, for a process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from support.cli_titanic import serving
from support.raw_mdp import RawClient, raw_client, raw_worker
from support.waiting import until

from broker import Worker

SETTINGS = """
[serve]
service-limit = ["few:waiting=5", "small:bytes=1KiB", "narrow:running=1", "slow:rate=20/s", "tcp:odd name:waiting=1"]
heartbeat = 10
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("limits")
    (folder / "titanic.toml").write_text(SETTINGS)
    with serving(folder, "--config", str(folder / "titanic.toml")) as (_, endpoint):
        yield endpoint


@pytest.fixture
def raw(endpoint: str) -> Iterator[RawClient]:
    with raw_client(endpoint) as raw:
        yield raw


def batch(raw: RawClient, service: bytes, keys: str, body: bytes = b"x") -> bytes | list[bytes]:
    """Submit one request for each key: the refusal, or the UUIDs."""
    options = json.dumps({"many": True, "keys": [*keys]}).encode()
    status, *lines = raw.ask(b"titanic.submit", options, service, *[body] * len(keys))
    return lines[0].split(b"\n") if status == b"200" else status


def test_a_batch_is_counted_without_what_is_known_already(raw: RawClient) -> None:
    first = batch(raw, b"few", "abc")
    assert batch(raw, b"few", "defg") == b"500 service full: 3 requests are waiting for few; its limit is 5"
    second = batch(raw, b"few", "abcde")
    assert second[:3] == first
    assert len(set(second)) == 5
    assert batch(raw, b"few", "edcba") == list(reversed(second))  # type: ignore[call-overload]
    assert batch(raw, b"few", "af") == b"500 service full: 5 requests are waiting for few; its limit is 5"
    assert raw.ask(b"titanic.close", second[4]) == [b"200"]  # type: ignore[list-item]
    assert batch(raw, b"few", "f") != b""
    assert batch(raw, b"few", "e") == [second[4]], "a closed one still has its key"


def test_bytes_are_counted_too(raw: RawClient) -> None:
    known = batch(raw, b"small", "ms", bytes(400))
    assert b"500 service full: " in bytes(batch(raw, b"small", "no", bytes(200))[:18])  # type: ignore[arg-type]
    assert batch(raw, b"small", "sm", bytes(400)) == [known[1], known[0]]
    assert raw.ask(b"titanic.request", b"tcp:odd name", b"x")[0] == b"200"
    assert raw.ask(b"titanic.request", b"tcp:odd name", b"x")[0].startswith(b"500 service full: 1 requests are waiting")


def test_one_at_a_time_however_many_workers_there_are(endpoint: str, raw: RawClient) -> None:
    uuids = [raw.submit(b"narrow", b"%d" % number) for number in range(3)]
    with raw_worker(endpoint, b"narrow") as one, raw_worker(endpoint, b"narrow") as other:
        until(lambda: json.loads(raw.ask(b"mmi.workers", b"")[0]).get("narrow") == 2)
        for number, uuid in enumerate(uuids):
            ready = until(lambda: [each for each in (one, other) if each.socket.poll(5) and each.look()])
            (at_work,) = ready
            assert not (other if at_work is one else one).look()
            at_work.final(at_work.token, b"%d done" % number)
            assert raw.ask(b"titanic.wait", b"30", uuid) == [b"200", b"%d done" % number]


def test_those_who_vanished_find_what_was_retried_for_them(endpoint: str, raw: RawClient) -> None:
    """A client submits and goes; its request fails; an operator has it tried again; the client comes back."""
    with raw_client(endpoint) as gone:
        uuid = gone.ask(b"titanic.submit", b'{"max_attempts": 1, "key": "mine"}', b"flaky", b"x")[1]
    with raw_worker(endpoint, b"flaky") as worker:
        token, _ = worker.take()
        worker.final(token, b"MDPE01", b"500 not today")
        assert raw.ask(b"titanic.wait", b"30", uuid) == [b"500 failed: not today", b"failed"]
        retry = json.dumps({"do": "retry", "service": "flaky"}).encode()
        assert json.loads(raw.ask(b"titanic.admin", retry)[1])["done"] == 1
        token, _ = worker.take()
        worker.final(token, b"today")
    with raw_client(endpoint) as back:
        assert back.ask(b"titanic.submit", b'{"max_attempts": 1, "key": "mine"}', b"flaky", b"x") == [b"200", uuid]
        assert back.ask(b"titanic.wait", b"30", uuid) == [b"200", b"today"]


def test_attempts_begin_no_faster_than_at_their_rate(raw: RawClient, endpoint: str) -> None:
    uuids = batch(raw, b"slow", "0123456789")
    began = [time.monotonic()]  # before any can

    def work(frames: list[bytes]) -> bytes:
        began.append(time.monotonic())
        return b""

    with Worker("slow", work, endpoint, jobs=8):
        until(lambda: all(raw.ask(b"titanic.reply", uuid)[0] == b"200" for uuid in uuids))  # type: ignore[list-item]
    assert len(began) == 1 + 10
    assert began[-1] - began[0] > 6 / 20  # three may begin at once
