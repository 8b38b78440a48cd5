"""Replies that the broker would not take: an error that says so, not a worker that seems to have died."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.waiting import until

from broker import BrokerConfig, Client, RemoteError, UsageError, Worker, WorkerConfig
from broker.core.mdp import Frames
from broker.io.sockets import MOST_BODY_FRAMES

MOST = 150_000
"""Bytes of a reply, here: with max_body 100,000 the broker drops messages above 200,000."""


pytestmark = pytest.mark.settings(max_body=100_000)


class Replies:
    """A handler that replies as it is told: sizes of frames, with a ; between parts. It counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frames: Frames) -> Frames | Iterator[Frames]:
        self.calls += 1
        *parts, last = ([bytes(int(size)) for size in part.split()] for part in frames[0].split(b";"))
        return self._yield([*parts, last]) if parts else last

    @staticmethod
    def _yield(parts: list[Frames]) -> Iterator[Frames]:
        yield from parts


def failure(client: Client, body: str) -> str:
    with pytest.raises(RemoteError) as caught:
        client.call("large", body)
    assert caught.value.status == 413
    return caught.value.text


def test_too_many_bytes(address: str, caplog: pytest.LogCaptureFixture) -> None:
    replies = Replies()
    with Worker("large", replies, address, config=WorkerConfig(max_reply=MOST)), Client(address, timeout=60) as client:
        assert len(client.call("large", b"150000")[0]) == MOST
        assert failure(client, "150000 1") == (
            "the reply has 150001 bytes; this worker sends at most 150000 at once; send it in (smaller) parts, "
            "or raise max_reply of the worker and max_body of its broker"
        )
        assert failure(client, "1000;150001;5").startswith("a part of the reply has 150001 bytes; this worker sends")
        assert len(client.call("large", b"150000;150000;150000")) == 3, "each part for itself"
        assert replies.calls == 4, "executed once each"
    assert "a reply of large was not sent: the reply has 150001 bytes" in caplog.text


def test_too_many_frames(address: str) -> None:
    def many(frames: Frames) -> Frames:
        return [b""] * int(frames[0])

    with Worker("large", many, address), Client(address, timeout=60) as client:
        assert len(client.call("large", b"%d" % MOST_BODY_FRAMES)) == MOST_BODY_FRAMES
        assert failure(client, "150000") == (
            "the reply has 150000 frames; at most 99900 can be sent at once; send it in (smaller) parts"
        )


def test_a_large_detail_of_an_error(address: str) -> None:
    def fail(frames: Frames) -> Frames:
        raise RemoteError(404, "not there", [bytes(MOST)])

    with Worker("large", fail, address, config=WorkerConfig(max_reply=MOST)), Client(address, timeout=60) as client:
        assert failure(client, "x").startswith("the reply has 150019 bytes; ")


def test_version_01_sends_all_parts_at_once(address: str) -> None:
    config = WorkerConfig(max_reply=MOST, versions=("0.1",))
    with Worker("large", Replies(), address, config=config) as worker, Client(address, timeout=60) as client:
        until(lambda: worker.registered)
        assert len(client.call("large", b"50000;50000;50000")) == 3
        assert failure(client, "100000;50001;1").startswith("all parts of the reply have 150001 bytes; ")
        assert failure(client, "100000;40000;10001").startswith("all parts of the reply have 150001 bytes; ")


def test_the_defaults_of_worker_and_broker_fit() -> None:
    assert WorkerConfig().max_reply + (1 << 16) < 2 * BrokerConfig().max_body
    with pytest.raises(UsageError, match="max_reply is 0; it must be 1 or more"):
        WorkerConfig(max_reply=0)
