"""GET /v1/events."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.serving import serving
from support.waiting import PATIENCE, until
from support.web_secured import TOKENS, secured

from broker import Worker
from titanic import Client, Server
from titanic.web import stats
from titanic.web.api import event_stream
from titanic.web.api.event_stream import ChangeLog, Numbers, StatsWatcher
from titanic.web.auth.identity import Visitor
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "POLL_INTERVAL", 0.02)
    monkeypatch.setattr("titanic.web.api.event_stream.POLL_INTERVAL", 0.02)


class Reader:
    """Reads events of one stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()
        self.id = ""

    def next(self) -> tuple[str, Any]:
        """The next event and its data."""
        name, data = "", ""
        for line in self._lines:
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data = value
            elif field == "id":
                self.id = value
            elif not line and name:
                return name, json.loads(data)
        raise EOFError

    def until(self, name: str) -> Any:
        """The data of the next event of this name."""
        while True:
            event, data = self.next()
            if event == name:
                return data


@contextmanager
def reading(url: str, last: str = "", user: str = "", **query: Any) -> Iterator[Reader]:
    headers = {"Last-Event-ID": last} if last else {}
    if user:
        headers["Authorization"] = f"Bearer {TOKENS[user]}"
    with httpx.stream(
        "GET", f"{url}/v1/events", params=query, headers=headers, timeout=PATIENCE, verify=False
    ) as response:
        assert response.status_code == 200, response.read()
        yield Reader(response)


def test_tells_all_services_at_first_and_then_those_that_have_changed(gateway: WebServer, client: Client) -> None:
    client.submit("here", b"")
    client.submit("there", b"")
    with reading(gateway.url) as reader:
        assert reader.response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert set(reader.until("services")["services"]) == {"here", "there"}
        client.submit("there", b"")
        assert reader.until("services") == {"services": {"there": {"waiting": 2, "workers": 0}}}


def test_tells_that_a_service_has_gone(gateway: WebServer, client: Client) -> None:
    uuid = client.submit("here", b"")
    with reading(gateway.url) as reader:
        assert reader.until("services") == {"services": {"here": {"waiting": 1, "workers": 0}}}
        client.close(uuid)
        assert reader.until("services") == {"services": {"here": None}}


@pytest.mark.parametrize("query", [{"request": "{uuid}"}, {"service": "*"}])
def test_a_stream_ends_when_its_connection_to_the_server_was_closed(
    gateway: WebServer, client: Client, query: dict[str, str]
) -> None:
    """It was made with a key that is no longer his, perhaps."""
    uuid = client.submit("later", b"")
    here = gateway.app.feed
    with reading(gateway.url, **{name: value.format(uuid=uuid) for name, value in query.items()}) as reader:
        until(lambda: here.streams)
        closed = next(iter(here.streams)).visitor.client
        loop = until(
            lambda: closed.calls.wire._client._loop
        )  # it has one from its first call; a client is closed in its loop
        loop.call_soon_threadsafe(closed.disconnect)
        with pytest.raises(EOFError):
            reader.until("never")


def test_tells_of_the_services_that_one_names(gateway: WebServer, client: Client) -> None:
    client.submit("here", b"")
    with reading(gateway.url, service=["there", "nowhere"]) as reader:
        assert reader.until("services") == {"services": {}}
        client.submit("here", b"")
        client.submit("there", b"")
        assert set(reader.until("services")["services"]) == {"there"}


def test_tells_of_the_end_of_requests(gateway: WebServer, client: Client, echo: Worker) -> None:
    uuids = [
        client.submit("later", b""),
        client.submit("echo", b"hello"),
        client.submit("echo", b"fail", max_attempts=1),
        "0" * 32,
    ]
    with reading(gateway.url, request=uuids) as reader:
        ends = [reader.until("ended") for _ in uuids[1:]]
        assert {end["uuid"]: end["state"] for end in ends} == {
            uuids[1]: "done",
            uuids[2]: "failed",
            uuids[3]: "unknown",
        }
        assert next(end["reason"] for end in ends if end["state"] == "failed") == "failed: as you wish"
        client.close(uuids[0])
        assert reader.until("ended")["uuid"] == uuids[0]


def test_goes_on_after_the_last_event_that_was_read(gateway: WebServer, client: Client, echo: Worker) -> None:
    uuids = [client.submit("echo", b""), client.submit("later", b"")]
    client.wait(uuids[0], 30)  # or its service could change once more, when nobody reads
    with reading(gateway.url, request=uuids, service="*") as reader:
        reader.until("services")
        reader.until("ended")
    client.submit("new", b"")
    with reading(gateway.url, reader.id, request=uuids, service="*") as again:
        assert set(again.until("services")["services"]) == {"new"}
        client.close(uuids[1])
        assert again.until("ended")["uuid"] == uuids[1]


@pytest.mark.parametrize(
    "last", ["", "-", "{name}-", "{name}-999999999", "{name}-1x", "ffff-1", "{name}--1", "9" * 9000]
)
def test_says_so_when_it_cannot_go_on(gateway: WebServer, client: Client, last: str) -> None:
    client.submit("here", b"")
    with reading(gateway.url) as reader:
        reader.until("services")
    name = reader.id.partition("-")[0]
    with reading(gateway.url, last.format(name=name)) as again:
        if last:
            assert again.next()[0] == "reset"
        assert set(again.until("services")["services"]) == {"here"}


def test_what_is_asked_wrongly_is_refused(gateway: WebServer) -> None:
    for query in (
        {"request": "x"},
        {"what": "1"},
        {"request": [f"{n:032}" for n in range(event_stream.MAX_FOLLOWED + 1)]},
    ):
        answer = httpx.get(f"{gateway.url}/v1/events", params=query, timeout=PATIENCE, verify=False)
        assert answer.status_code == 400, query
        assert answer.headers["content-type"] == "application/problem+json"
    assert httpx.head(f"{gateway.url}/v1/events", timeout=PATIENCE).status_code == 200


def test_nothing_is_left_when_the_readers_have_gone(gateway: WebServer, client: Client) -> None:
    uuid = client.submit("later", b"")
    with reading(gateway.url, request=uuid, service="*") as reader:
        reader.until("services")
        here = gateway.app.feed
        assert len(here.requests) == len(here.quota) == len(here.streams) == 1
    until(lambda: not here.streams and not here.requests and not here.quota)
    assert not here.requests.quota
    assert here.stats.idle


def test_a_comment_is_sent_when_there_is_nothing_else(
    gateway: WebServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "KEEPALIVE_INTERVAL", 0.01)
    with reading(gateway.url, request=client.submit("later", b"")) as reader:
        assert ":" in reader.response.iter_lines()


def test_says_that_the_server_is_away_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    settings = WebSettings((f"ipc://{tmp_path}/here",), bind=("127.0.0.1", 0), timeout=30)
    with WebServer(settings) as gateway, reading(gateway.url) as reader:
        assert reader.until("problem")["status"] in (503, 504)
        with serving(tmp_path, bind=(f"ipc://{tmp_path}/here",)):
            assert reader.until("problem") is None
            assert reader.until("services") == {"services": {}}
        assert reader.until("problem")["status"] in (503, 504)


def test_ends_at_once_when_the_gateway_ends(server: Server) -> None:
    with ExitStack() as stack:
        settings = WebSettings(tuple(server.endpoints), bind=("127.0.0.1", 0), timeout=30)
        with WebServer(settings) as gateway:
            readers = [stack.enter_context(reading(gateway.url)) for _ in range(3)]
            for reader in readers:
                reader.until("services")
            gateway._server.config.timeout_graceful_shutdown = int(2 * PATIENCE)  # then it would end them by force
            began = monotonic()
        assert monotonic() - began < PATIENCE
        for reader in readers:
            with pytest.raises(EOFError):
                reader.next()


def test_goes_on_when_the_last_stream_of_another_user_has_closed_while_the_server_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh, closing, asked = StatsWatcher.refresh, threading.Event(), threading.Event()

    async def slow(watcher: StatsWatcher, visitor: Visitor) -> None:
        while closing.is_set() and visitor.user == "alice" and "chief" in watcher._streams:
            asked.set()
            await asyncio.sleep(0.001)
        await refresh(watcher, visitor)

    monkeypatch.setattr(StatsWatcher, "refresh", slow)
    with secured(tmp_path / "access") as scene:
        scene.write(alice=scene.lines_of("alice", 'submit = ["*"]\nmetrics = true\n'))
        scene.server.reload(scene.server.config)
        alice = scene.program("alice")
        until(lambda: alice.get("/v1/stats").status_code == 200)
        with reading(scene.url, user="alice") as reader:
            reader.until("services")
            with reading(scene.url, user="chief") as other:
                other.until("services")
                closing.set()
                until(asked.is_set)
            assert alice.post("/v1/services/here/requests").status_code == 202
            assert "here" in reader.until("services")["services"]


def test_hundreds_of_streams_that_hang_harm_nobody(gateway: WebServer, client: Client) -> None:
    """Of one visitor only some are let in. None of them reads what it is sent."""
    where = urlsplit(gateway.url)
    here = gateway.app.feed
    with ExitStack() as stack:
        ask = f"GET /v1/events HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode()
        sockets = []
        for _ in range(200):
            sockets.append(stack.enter_context(socket.create_connection((where.hostname or "", where.port or 0))))
            sockets[-1].sendall(ask)
        first = [one.recv(20, socket.MSG_WAITALL).split()[1] for one in sockets]
        assert first.count(b"200") == event_stream.MAX_STREAMS_EACH == len(here.streams)
        assert first.count(b"429") == 200 - event_stream.MAX_STREAMS_EACH
        answer = httpx.get(f"{gateway.url}/v1/events", timeout=PATIENCE, verify=False)
        assert answer.status_code == 429
        assert "too many event streams" in answer.json()["detail"]
        for n in range(20):
            client.submit(f"service {n}", b"")
            assert httpx.get(f"{gateway.url}/v1/stats", timeout=PATIENCE, verify=False).status_code == 200
    until(lambda: not here.streams)
    with reading(gateway.url) as reader:
        seen = set[str]()
        while len(seen) < 20:  # the first of them may have been read before the last was submitted
            seen |= {*reader.until("services")["services"]}


def test_changes_are_those_after_a_number() -> None:
    numbers = Numbers()
    changes: ChangeLog[str, int] = ChangeLog(numbers, 2)
    changes.put("a", 1)
    first = numbers.last
    changes.put("b", 1)
    changes.put("a", 1)
    assert changes.after(first) == {"b": 1}
    changes.put("a", 2)
    assert changes.after(first) == {"a": 2, "b": 1}
    assert changes.after(numbers.last) == {}
    assert changes.reach == 0
    changes.put("c", 3)
    assert changes.reach == 3  # that of b
    assert changes.after(changes.reach) == {"a": 2, "c": 3}
