"""What strangers send that is hardly HTTP, or too slowly, or too much of it: by raw sockets."""

from __future__ import annotations

import json
import re
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support.waiting import PATIENCE, until
from support.web_secured import TOKENS, secured

from titanic import Server
from titanic.web import app_state, protocol
from titanic.web.api import request_batch
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings

POST = b"POST /v1/services/raw/requests HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
INNER = b"POST /v1/services/smuggled/requests HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"


SILENCE = 1.0
"""Seconds: what is refused need not be answered."""


class Raw:
    """A connection."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self.socket = socket.create_connection((where.hostname or "", where.port or 0), timeout=30)

    def say(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self.socket.sendall(data)

    def hear(self, silence: float = PATIENCE) -> bytes:
        """All that comes until the other side closes, or says nothing for so long."""
        heard = b""
        self.socket.settimeout(silence)
        with suppress(ConnectionError, TimeoutError):
            while part := self.socket.recv(65536):
                heard += part
        return heard

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers have less time than they usually have."""
    monkeypatch.setattr(protocol, "PATIENCE", 0.3)


def said(web: str, data: bytes, silence: float = PATIENCE) -> bytes:
    """What is answered, until the connection is closed from there, or nothing more comes for so long."""
    with Raw(web) as raw:
        raw.say(data)
        return raw.hear(silence)


def statuses(heard: bytes) -> list[int]:
    return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d{3}) ", heard)]


def services(http: httpx.Client) -> set[str]:
    return {row["name"] for row in http.get("/v1/services").json()["services"]}


HEAD = GET.replace(b"GET /v1/stats", b"HEAD /v1/session")


def test_who_says_nothing_more_is_sent_what_was_answered(web: str) -> None:
    for _ in range(30):
        with Raw(web) as raw:
            raw.say(HEAD)
            raw.socket.shutdown(socket.SHUT_WR)
            assert statuses(raw.hear()) == [200]


def test_who_is_gone_before_he_is_answered_is_no_error(
    web: str, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        with Raw(web) as raw:
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.say(HEAD * 5)
    assert http.get("/v1/session").status_code == 200
    assert not caplog.text


ODD = [
    POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + INNER,
    POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello" + INNER,
    POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello" + INNER,
    POST + b"Content-Length: 5, 5\r\n\r\nhello" + INNER,
    POST + b"Content-Length: +5\r\n\r\nhello" + INNER,
    POST + b"Content-Length: 0x5\r\n\r\nhello" + INNER,
    POST + b"Content-Length: -1\r\n\r\n" + INNER,
    POST + b"Content-Length : 5\r\n\r\nhello" + INNER,
    POST + b"Content-Length: 99999999999999999999999\r\n\r\n" + INNER,
    POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
    POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + INNER,
    POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + INNER,
    POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + INNER,
    POST + b"Transfer-Encoding: chunked\r\n\r\n5 hello\r\n" + INNER,
    POST + b"X: a\r\n Content-Length: 5\r\n\r\nhello" + INNER,  # obs-fold
    POST + b"X: a\r\n\tTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    POST + b"Content-Length: 5\r\nX: a\nTransfer-Encoding: chunked\r\n\r\nhello" + INNER,
    POST + b"Content-Length: 0\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + INNER,
    POST + b"X: a\0b\r\n\r\n" + INNER,
    POST + b"X\r\n\r\n" + INNER,
    b"POST /v1/services/raw/requests HTTP/1.1\nHost: localhost\n\n" + INNER,
    b"POST /v1/services/raw/requests HTTP/9.9\r\nHost: localhost\r\n\r\n" + INNER,
    b"POST /v1/services/raw/requests\r\n\r\n" + INNER,
    b"POST http://evil.example/v1/services/raw/requests HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + INNER,
    POST + b"Host: evil.example\r\nContent-Length: 0\r\n\r\n",
    b"POST /v1/services/raw/requests HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


def test_what_is_not_quite_http_is_refused_and_nothing_behind_it_is_heard(web: str, http: httpx.Client) -> None:
    """Where two programs disagree on where a request ends, the next one is somebody else's."""
    for request_ in ODD:
        found = statuses(said(web, request_, SILENCE))
        assert not found or (found[0] >= 400 and found[0] != 500), found
        assert services(http) & {"raw", "smuggled"} == set(), request_


@pytest.mark.parametrize("size", [66_000, 100_000])
def test_a_head_that_is_too_large_is_refused_however_it_comes(web: str, size: int) -> None:
    head = GET.removesuffix(b"\r\n") + b"X: " + b"a" * size + b"\r\n\r\n"
    assert statuses(said(web, head)) == [431]
    assert statuses(
        said(web, GET.removesuffix(b"\r\n") + b"X: " + b"a" * 60_000 + b"\r\nConnection: close\r\n\r\n")
    ) == [200]


def test_trailers_are_dropped(web: str, http: httpx.Client) -> None:
    """What a proxy has checked in the headers must not be changed behind the body."""
    chunked = b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nx\r\n0\r\n"
    heard = said(web, POST + chunked + b"Titanic-Priority: nonsense\r\nOrigin: https://evil.example\r\n\r\n")
    assert statuses(heard) == [202]


def test_two_requests_in_one_piece_are_two(web: str, http: httpx.Client) -> None:
    heard = said(web, GET + b"GET /v1/session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert statuses(heard) == [200, 200]


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
        POST + b"Content-Length: 10\r\n\r\n",
        POST + b"Content-Length: 10000\r\n\r\nx",
        POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhe",
    ],
)
def test_who_is_too_slow_is_sent_away(web: str, begin: bytes) -> None:
    with Raw(web) as raw:
        raw.say(begin)
        heard = raw.hear()  # it ends, although nobody here ends it
        assert statuses(heard) in ([], [408])


@pytest.mark.usefixtures("patience")
def test_who_drips_is_sent_away(web: str) -> None:
    with Raw(web) as raw:
        raw.say(POST + b"Content-Length: 100000\r\n\r\n")
        raw.socket.settimeout(0.05)
        heard = b""
        for _ in range(600):
            raw.say(b"x")
            try:
                heard += (part := raw.socket.recv(65536))
                if not part:
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it went on listening")
        assert statuses(heard) in ([], [408])


def test_who_is_slow_but_goes_on_is_heard(server: Server) -> None:
    """His time is over again and again, and each time there was enough of the body in it."""
    settings = WebSettings(tuple(server.endpoints), bind=("127.0.0.1", 0), timeout=PATIENCE)
    with WebServer(settings) as web, httpx.Client(base_url=web.url, timeout=PATIENCE, verify=False) as http:

        def parts() -> Iterator[bytes]:
            (connection,) = until(lambda: [*web._server.server_state.connections])
            assert isinstance(connection, protocol.GatewayProtocol)
            until(lambda: connection._reading and not connection._in_head and connection._timer is not None)
            for _ in range(4):
                yield bytes(protocol.LEAST)
                until(lambda: connection._came >= protocol.LEAST)
                connection.loop.call_soon_threadsafe(connection._late)
                until(lambda: connection._came == 0)

        assert http.post("/v1/services/slow/requests", content=parts()).status_code == 202


def ends_of(web: str, count: int, more: bytes = b"") -> list[list[int]]:
    """What is answered to submissions of 900 kB that are sent at the same time but for their last bytes, which follow
    when one of them was refused."""
    size = 900_000
    head = POST + more + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (size + 1)
    with ExitStack() as stack:
        raws = [stack.enter_context(Raw(web)) for _ in range(count)]
        for raw in raws:
            raw.say(head + bytes(size))
        until(lambda: select.select([raw.socket for raw in raws], [], [], 0)[0])
        for raw in raws:
            raw.say(b"x")
        return sorted(statuses(raw.hear()) for raw in raws)


def test_bodies_together_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_state, "MAX_BODIES", 2 << 20)
    settings = WebSettings(tuple(server.endpoints), bind=("127.0.0.1", 0), timeout=PATIENCE, max_body=1 << 20)
    with WebServer(settings) as web:
        for _ in range(3):  # what ended has given its room back
            assert ends_of(web.url, 3) == [[202], [202], [503]]


def test_one_user_has_half_of_the_room_for_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_state, "MAX_BODIES", 2 << 20)
    with secured(tmp_path / "access", max_body=1 << 20) as scene:
        assert ends_of(scene.url, 2, f"Authorization: Bearer {TOKENS['alice']}\r\n".encode()) == [[202], [429]]


def test_who_does_not_read_is_sent_away(web: str, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNREAD", 0.3)
    uuid = http.post("/v1/services/large/requests", content=b"x").json()["uuid"]
    lease = http.post("/v1/services/large:take?wait=10").headers["titanic-lease"]
    assert http.post(f"/v1/leases/{lease}:done", content=bytes(30 << 20)).status_code == 204
    assert http.get(f"/v1/requests/{uuid}?").status_code == 200
    with Raw(web) as raw:
        raw.say(b"GET /v1/requests/%s/reply?wait=10 HTTP/1.1\r\nHost: localhost\r\n\r\n" % uuid.encode())
        raw.socket.recv(1, socket.MSG_PEEK)
        until(lambda: state_of(raw.socket) != "01")
        assert len(raw.hear()) < 30 << 20


def state_of(connection: socket.socket) -> str:
    """The state of the other end, as the system has it; 01: established."""
    ports = [f":{address[1]:04X}" for address in (connection.getpeername(), connection.getsockname())]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if local.endswith(ports[0]) and remote.endswith(ports[1]):
            return state
    return ""


@pytest.mark.web(most_connections=20)
def test_connections_are_bounded_and_the_rest_is_served_again_when_they_end(web: str, http: httpx.Client) -> None:
    with ExitStack() as stack:
        many = [stack.enter_context(Raw(web)) for _ in range(60)]
        until(lambda: sum(is_closed(one.socket) for one in many) >= 40)
    until(lambda: answers(http))


def is_closed(connection: socket.socket) -> bool:
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/v1/session").status_code == 200
    except httpx.TransportError:
        return False


def test_json_that_is_deep_or_wide_is_refused(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_batch, "MAX_ITEMS", 1000)
    for body in ("[" * 200_000, "[" + "1," * 200_000, '{"a":' * 100_000, json.dumps("\ud800"), "1e999999"):
        headers = {"Content-Type": "application/json"}
        answer = http.post("/v1/services/s/requests:batch", content=body, headers=headers)
        assert answer.status_code in (400, 413, 422), (body[:20], answer.status_code)
