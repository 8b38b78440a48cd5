"""How long a reply is kept, with a real server: `keep` of requests and tasks."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.each import each
from support.ports import free_port
from support.processes import SUPPORT, Process
from support.serving import QUICK
from support.waiting import until

from broker import Worker
from titanic import Client, InvalidRequest, RequestFailed, Server, UnknownRequest
from titanic.protocol.submit_options import AT_ONCE
from titanic.settings import ServiceLimits
from titanic.store.lmdb.store import LmdbStore
from titanic.store.lmdb.tools import check
from titanic.tasks import Tasks

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def is_gone(client: Client, uuid: str) -> bool:
    try:
        client.reply(uuid)
    except UnknownRequest:
        return True
    except RequestFailed:
        pass
    return False


@each("size", [1, 5_000_000])
def test_who_waits_gets_a_reply_that_is_never_kept(server: Server, client: Client, size: int) -> None:
    def work(frames: list[bytes]) -> list[bytes]:
        until(lambda: len(server.dispatcher.waiters))
        return frames

    with Worker("echo", work, server.endpoints[0], config=QUICK):
        uuid = client.submit("echo", bytes(size), keep="never")
        assert client.wait(uuid, timeout=60) == [bytes(size)]
    until(lambda: is_gone(client, uuid))


@pytest.mark.usefixtures("echo")
def test_the_end_of_what_is_never_kept_is_notified_and_archived(server: Server, client: Client) -> None:
    client.set_service("echo", on_end="ends")
    uuid = client.submit("echo", "x", keep="never")
    ends: list[bytes] = []
    with Worker("ends", lambda frames: ends.append(frames[0]) or b"", server.endpoints[0], config=QUICK):
        until(lambda: len(ends) == 1)
    assert uuid.encode() in ends[0]
    assert b'"done"' in ends[0]
    until(lambda: is_gone(client, uuid))
    with server.store.read() as transaction:
        (closed,) = [one for one in transaction.closed_bulk(1, 9).requests() if one.uuid.hex() == uuid]
    assert (closed.reply, closed.unclaimed) == ([b"x"], True)


@pytest.mark.usefixtures("echo")
def test_a_failure_stays(client: Client) -> None:
    failed = client.submit("echo", "fail", max_attempts=1, keep="never")
    with pytest.raises(RequestFailed):
        client.wait(failed, timeout=30)
    done = client.submit("echo", "x", keep="never")
    until(lambda: is_gone(client, done))
    assert client.show(failed)["state"] == "failed"
    short = client.submit("echo", "fail", max_attempts=1, keep_failed=0.001)
    until(lambda: is_gone(client, short))


@pytest.mark.settings(limits={b"echo": ServiceLimits(keep_body="never")})
@pytest.mark.usefixtures("echo")
def test_a_body_goes_with_the_success(client: Client) -> None:
    """By the setting of a service, or an option; a failure keeps it."""
    done, failed = client.submit("echo", "x"), client.submit("echo", "fail", max_attempts=1)
    assert client.wait(done, timeout=30) == [b"x"]
    with pytest.raises(RequestFailed):
        client.wait(failed, timeout=30)
    assert [client.show(uuid)["body_frames"] for uuid in (done, failed)] == [0, 1]
    assert client.show(done)["keep_body"] == "never"
    own = client.submit("other", "x", keep_body="never", key="k")
    assert client.show(own)["keep_body"] == "never"
    with pytest.raises(InvalidRequest, match="keep_body"):
        client.submit("other", "x", keep_body="always")  # type: ignore[typeddict-item]


@pytest.mark.settings(limits={b"echo": ServiceLimits(keep_body=0.001)})
@pytest.mark.usefixtures("echo")
def test_a_body_goes_some_time_after_the_end(client: Client) -> None:
    """After a success, a failure and an expiry; the rest stays. The option of a request counts before the service's."""
    done, failed = client.submit("echo", "x"), client.submit("echo", "fail", max_attempts=1)
    expired = client.submit("absent", "x", ttl=0.01, keep_body=timedelta(seconds=0.01))
    own = client.submit("echo", "x", keep_body=3600)
    assert (client.wait(done, timeout=60), client.wait(own, timeout=60)) == ([b"x"], [b"x"])
    until(lambda: not any(client.show(uuid)["body_frames"] for uuid in (done, failed, expired)))
    assert [client.show(uuid)["state"] for uuid in (done, failed, expired)] == ["done", "failed", "expired"]
    assert client.reply(done) == [b"x"]
    assert (client.show(own)["body_frames"], client.show(own)["options"]) == (1, {"keep_body": 3600})
    assert client.retry(failed, expired) == 0
    assert client.retry(failed, body=["y"]) == 1
    assert client.wait(failed, timeout=60) == [b"y"]
    for wrong in (0, -1, math.nan, math.inf, 1e12, "1h"):
        with pytest.raises(InvalidRequest, match="keep_body"):
            client.submit("other", "x", keep_body=wrong)


@pytest.mark.settings(keep_body=0.001, limits={b"absent": ServiceLimits(keep_body=7)})
@pytest.mark.usefixtures("echo")
def test_a_server_has_a_time_for_bodies(server: Server, client: Client) -> None:
    """Services and requests may have another one, and it may change."""
    short, own, service = client.submit("echo", "x"), client.submit("echo", "x", keep_body=60), client.submit("absent")
    until(lambda: not client.show(short)["body_frames"])
    assert client.wait(short, timeout=60) == [b"x"]
    assert [client.show(uuid)["options"]["keep_body"] for uuid in (short, own, service)] == [0.001, 60, 7]
    server.reload(replace(server.config, keep_body=0.0))
    assert client.show(client.submit("echo", "x"))["options"] == {}


@pytest.mark.settings(limits={b"echo": ServiceLimits(keep=AT_ONCE), b"other": ServiceLimits(keep=60, keep_failed=5)})
@pytest.mark.usefixtures("echo")
def test_a_service_has_times_of_its_own(client: Client) -> None:
    short, own = client.submit("echo", "x"), client.submit("echo", "y", keep=1000)
    until(lambda: is_gone(client, short))
    assert client.wait(own, timeout=30) == [b"y"]
    uuid, *_ = client.submit_many("other", ["x", "y"], keep_failed=7, trace=TRACE)
    assert client.show(uuid)["options"] == {"keep": 60, "keep_failed": 7}
    assert client.show(uuid)["trace"] == TRACE
    unique = client.submit("other", "x", unique="a")
    assert client.show(unique)["options"] == {"keep": 60, "keep_failed": 5}
    assert client.submit("other", "x", unique="a") == unique
    assert client.show(client.submit("third", "x"))["options"] == {}


def test_the_options_are_shown(client: Client) -> None:
    uuid = client.submit("nobody", "x", keep=timedelta(hours=1), keep_failed=60)
    assert client.show(uuid)["options"] == {"keep": 3600, "keep_failed": 60}


SECONDS = "a number of seconds, more than 0 and at most ten years"


@each(
    "options, fault",
    [
        ({"keep": -1}, f'keep must be {SECONDS}, or "never"'),
        ({"keep": 0}, f'keep must be {SECONDS}, or "never"'),
        ({"keep": 1e12}, f'keep must be {SECONDS}, or "never"'),
        ({"keep": "always"}, f'keep must be {SECONDS}, or "never"'),
        ({"keep": timedelta(days=-1)}, f'keep must be {SECONDS}, or "never"'),
        ({"keep": True}, f'keep must be {SECONDS}, or "never"'),
        ({"keep": math.nan}, "keep is nan; it must be a finite number"),
        ({"keep": math.inf}, "keep is inf; it must be a finite number"),
        ({"keep": object()}, "it must be a number or, if it is a time, a timedelta"),
        ({"keep_failed": "never"}, f"keep_failed must be {SECONDS}"),
        ({"keep_failed": -5}, f"keep_failed must be {SECONDS}"),
    ],
)
def test_other_values_are_refused(client: Client, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        client.submit("echo", "x", **options)
    assert fault in str(refused.value)


def test_a_task_without_a_result_keeps_it_an_hour(server: Server, client: Client) -> None:
    app = Tasks(server.endpoints[0], name="shop")

    @app.task
    def tidy(path: str) -> None: ...

    @app.task(keep="never")
    async def sweep() -> None: ...

    @app.task
    def count(path: str) -> int:
        return len(path)

    options = [client.show(ticket.uuid)["options"] for ticket in (tidy.submit("a"), sweep.submit(), count.submit("a"))]
    assert options == [{"keep": 3600}, {"keep": 2}, {}]
    with app.worker():
        assert tidy.submit("b").reply(timeout=30) is None


def test_a_body_is_gone_over_kills(tmp_path: Path) -> None:
    """The clock moves while the server is away; it is killed before the body goes, and before the request goes."""
    endpoint, clock, place = f"tcp://127.0.0.1:{free_port()}", tmp_path / "clock", tmp_path / "store"
    node = SUPPORT / "chaos_node.py", clock, "10", "serve", "--config", "/dev/null", "--bind", endpoint

    @contextmanager
    def served(after: int) -> Iterator[Client]:
        clock.write_bytes(struct.pack("q", after * 1_000_000))
        with (
            Process(*node, output=tmp_path / "server.out", TITANIC_STORE=str(place)),
            Client(endpoint, timeout=200) as client,
        ):
            yield client
        with LmdbStore.open(place) as store:  # it was killed
            assert check(store) == []

    with served(0) as client, Worker("echo", lambda frames: frames, endpoint, config=QUICK):
        uuid = client.submit("echo", bytes(100_000), keep_body=3600, keep=7200)
        assert client.wait(uuid, timeout=200) == [bytes(100_000)]
        assert client.show(uuid)["body_frames"] == 1
    for _ in range(2):
        with served(3700) as client:
            until(lambda: client.show(uuid)["body_frames"] == 0)
            assert client.reply(uuid) == [bytes(100_000)]
    with served(7300) as client:
        until(lambda: is_gone(client, uuid))
