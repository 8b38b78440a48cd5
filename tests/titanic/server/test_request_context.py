"""What a handler knows of a request, with the broker inside and elsewhere; foreign workers go on as ever."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.each import each
from support.processes import SUPPORT, Process
from support.raw_mdp import raw_worker
from support.serving import QUICK, brokering, serving, with_broker
from support.waiting import until

from broker import Worker
from titanic import Client, InvalidRequest, RequestContext, Server, current
from titanic.protocol.submit_options import SubmitOptions
from titanic.services.request_submit import parse_submit

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
KIND: SubmitOptions = {"type": 'text/plain; charset="utf-8"', "digest": "0aF" * 20}


@pytest.fixture(params=["integrated", "stand-alone"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with with_broker(tmp_path, request.param, max_attempts=3, presence_most=0.1) as server:
        yield server


class Notes:
    """A handler that notes what it knows, and fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.seen: list[RequestContext] = []
        self.failures = failures

    def __call__(self, frames: list[bytes]) -> Iterator[bytes]:
        self.seen.append(current())
        yield current().uuid.encode() if current() else b""
        if len(self.seen) <= self.failures:
            raise RuntimeError("not yet")


def test_a_handler_knows_its_request(server: Server, client: Client) -> None:
    notes, before = Notes(failures=1), time.time()
    with Worker("echo", notes, server.endpoints[0], config=QUICK):
        uuid = client.submit(
            "echo", "x", key='a "key"', trace=TRACE, tracestate='a="1"', limit=90, max_attempts=5, **KIND, priority=7
        )
        assert client.wait(uuid, 30) == [uuid.encode(), b""][:1]
    first, second = notes.seen
    assert (first.uuid, first.attempt, first.attempts, first.priority) == (uuid, 1, 5, 7)
    assert (first.key, first.trace, first.tracestate, first.type) == ('a "key"', TRACE, 'a="1"', KIND["type"])
    assert first.deadline is not None
    assert before + 89 < first.deadline < time.time() + 91
    assert first.submitted is not None
    assert abs(first.submitted - datetime.fromtimestamp(before, UTC)).total_seconds() < 60
    assert (second.uuid, second.attempt) == (uuid, 2)
    row = client.show(uuid)
    assert (row["trace"], row["type"], row["digest"]) == (TRACE, KIND["type"], KIND["digest"])
    assert client.show(uuid)["options"] == {"limit": 90}


def test_of_a_plain_request_only_what_there_is(server: Server, client: Client) -> None:
    notes = Notes()
    with Worker("echo", notes, server.endpoints[0], config=QUICK):
        uuid = client.submit("echo", "x")
        client.wait(uuid, 30)
        client.call("echo", "nothing stored")
    stored, direct = notes.seen
    assert (stored.key, stored.trace, stored.deadline, stored.attempts) == ("", "", None, 3)
    assert (bool(stored), bool(direct)) == (True, False)
    assert stored.type == ""
    assert not {"trace", "type", "digest"} & set(client.show(uuid))


def test_a_log_line_names_the_request(server: Server, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with Worker("echo", Notes(failures=9), server.endpoints[0], config=QUICK):
        uuid = client.submit("echo", "x", max_attempts=1)
        until(lambda: client.show(uuid)["state"] == "failed")
    assert [line for line in caplog.messages if f"handler of echo failed ({uuid}; request 1 " in line]


def test_a_foreign_worker_echoes_what_it_does_not_read(server: Server, client: Client) -> None:
    with raw_worker(server.endpoints[0], b"echo") as worker:
        uuid = client.submit("echo", "x")
        token, body = worker.take()
        number, context = token[:16], json.loads(token[16:])
        assert int(number, 16) > 0
        assert context == {"uuid": uuid, "attempt": 1, "of": 3, "priority": 4, "retry_in": server.config.retry_first}
        assert body == [b"x"]
        worker.final(token, b"done")
        assert client.wait(uuid, 30) == [b"done"]


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_whatever_a_worker_speaks(server: Server, client: Client, version: str) -> None:
    notes = Notes()
    config = QUICK.__class__(heartbeat_interval=0.5, versions=(version,))
    with Worker("echo", notes, server.endpoints[0], config=config):
        uuid = client.submit("echo", "x")
        assert client.wait(uuid, 30) == [uuid.encode()]


def test_over_a_broker_of_others_there_is_no_context(tmp_path: Path) -> None:
    endpoint, notes = f"ipc://{tmp_path}/broker.ipc", Notes()
    with (
        Process(SUPPORT / "rfc7_broker.py", endpoint, "2", "strict", output=tmp_path / "broker.out"),
        serving(tmp_path, broker=endpoint, presence_most=0.1),
        Client(endpoint, timeout=1, retries=60, version="0.1") as client,
        Worker("echo", notes, endpoint, config=replace(QUICK, versions=("0.1",))),
    ):
        uuid = client.submit("echo", "x", trace=TRACE)
        assert client.wait(uuid, 60) == [b""]
    assert [bool(seen) for seen in notes.seen] == [False]


@pytest.mark.parametrize(
    "options",
    [
        *({"type": wrong} for wrong in ("", "ä/b", "a\nb", "a" * 128, 5)),
        *({"digest": wrong} for wrong in ("", "0x", "0" * 129, 7)),
    ],
)
def test_types_and_digests_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be "):
        parse_submit([json.dumps(options).encode(), b"echo", b"x"], 1)


@pytest.mark.parametrize(
    "state",
    [
        "a=1",
        "congo=t61rcWkgMzE, 0rojo@tenant=00f067aa0ba902b7",
        "a=1,,b=2",
        "a=" + 256 * "x" + ",b=" + 251 * "x",
        ",".join(f"k{number}=v" for number in range(32)),
    ],
)
def test_a_tracestate_is_kept_with_its_trace(state: str) -> None:
    options = {"trace": TRACE, "tracestate": state}
    (stored,) = parse_submit([json.dumps(options).encode(), b"echo", b"x"], 1).requests
    assert json.loads(stored.options) == options
    (stored,) = parse_submit([json.dumps({"tracestate": state}).encode(), b"echo", b"x"], 1).requests
    assert stored.options == b""


@pytest.mark.parametrize(
    "state",
    [
        *("", ",", "a", "=1", "a=", "a=b=c", "A=1", "a=1 b=2", "a=\t", "a=1\n", "a=1\r\nX: y", "ä=1", "a=ä"),
        "a=" + 257 * "x",
        "a=" + 256 * "x" + ",b=" + 252 * "x",
        ",".join(f"k{number}=v" for number in range(33)),
        512 * ",",
        256 * "a=",
    ],
)
def test_a_tracestate_that_is_none_is_dropped(state: str) -> None:
    options = {"trace": TRACE, "tracestate": state}
    (stored,) = parse_submit([json.dumps(options).encode(), b"echo", b"x"], 1).requests
    assert json.loads(stored.options) == {"trace": TRACE}


def test_traces_are_one_for_each_request(server: Server, client: Client) -> None:
    traces = [f"00-{7:032x}-{number:016x}-01" for number in (1, 2)]
    options = {"many": True, "traces": traces, "trace": TRACE, "tracestate": "a=1", "digest": "ab"}
    uuids = client.call("titanic.submit", json.dumps(options), "echo", "x", "y")[1].decode().split()
    shown = [client.show(uuid) for uuid in uuids]
    assert [(one["trace"], one["tracestate"], one["digest"]) for one in shown] == [(one, "a=1", "ab") for one in traces]
    for wrong in ([], traces[:1], [*traces, TRACE], ["x", "y"]):
        answer = client.call("titanic.submit", json.dumps(options | {"traces": wrong}), "echo", "x", "y")
        assert answer[0].startswith(b"400 traces must be a list of "), answer


def test_servers_of_earlier_versions_get_no_tracestate(tmp_path: Path) -> None:
    """It is left out for them; what they know is stored."""
    seen = []

    def submits(frames: list[bytes]) -> list[bytes]:
        seen.append(options := json.loads(frames[0]))
        unknown = [name for name in ("traces", "tracestate") if name in options]
        if unknown:
            return [f"400 unknown option '{unknown[0]}'; known: trace".encode()]
        return [b"200", b"\n".join(b"%032x" % number for number in range(len(frames) - 2))]

    with (
        brokering() as endpoint,
        Worker("titanic.submit", submits, endpoint, config=QUICK) as worker,
        Client(endpoint, timeout=60) as client,
    ):
        until(lambda: worker.registered)
        assert client.submit("echo", "x", trace=TRACE, tracestate="a=1") == f"{0:032x}"
        assert len(client.submit_many("echo", ["x"] * 250, trace=TRACE, tracestate="a=1")) == 250
        assert len(client.submit_batch("echo", ["x", "y"], trace=TRACE, tracestate="a=1")) == 2
    assert [one["trace"] for one in seen] == [TRACE] * len(seen)
    assert len({one["key"] for one in seen}) == sum("tracestate" not in one for one in seen) == 5


@each("trace", ["", "00-x", TRACE.upper(), f"{TRACE}-more", TRACE + "\n"])
def test_a_trace_that_is_none_is_refused(client: Client, trace: str) -> None:
    with pytest.raises(InvalidRequest, match="traceparent"):
        client.submit("echo", "x", trace=trace)
