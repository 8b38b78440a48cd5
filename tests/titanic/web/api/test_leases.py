"""Workers over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from time import time
from urllib.parse import urlsplit

import httpx
import pytest
from support.access_files import AccessFiles
from support.processes import fork
from support.serving import QUICK, config
from support.waiting import PATIENCE, until

from broker import BrokerConfig, Worker
from titanic import Client, RequestFailed, Server
from titanic.web.api import resource
from titanic.web.api.leases import Leases
from titanic.web.problems import HTTPProblem
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings


def held(gateway: WebServer) -> Leases:
    found: Leases = gateway.app.leases
    return found


def take(http: httpx.Client, service: str = "upper", **query: object) -> httpx.Response:
    answer = http.post(f"/v1/services/{service}:take", params={"wait": 30, **query})  # type: ignore[dict-item]
    assert answer.status_code == 200, answer.text
    return answer


def end(http: httpx.Client, taken: httpx.Response, how: str = "done", **more: object) -> httpx.Response:
    return http.post(f"/v1/leases/{taken.headers['titanic-lease']}:{how}", **more)  # type: ignore[arg-type]


def test_a_worker_takes_a_request_and_gives_the_reply(http: httpx.Client, client: Client) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    uuid = client.submit("upper", b"hello", trace=trace, tracestate="a=1")
    taken = take(http)
    assert taken.content == b"hello"
    assert taken.headers["content-type"] == "text/plain; charset=utf-8"
    assert taken.headers["titanic-request"] == uuid
    assert taken.headers["titanic-attempt"] == "1"
    assert 30 < datetime.fromisoformat(taken.headers["titanic-deadline"]).timestamp() - time() <= 60
    assert (taken.headers["traceparent"], taken.headers["tracestate"]) == (trace, "a=1")
    assert client.show(uuid)["state"] == "running"
    assert end(http, taken, content=b"HELLO").status_code == 204
    assert client.wait(uuid, 30) == [b"HELLO"]
    assert end(http, taken, content=b"HELLO").status_code == 204  # the answer may have been lost
    answer = end(http, taken, "failed")
    assert answer.status_code == 410
    assert "it is :done" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("type", "body", "frames"),
    [
        ("image/png", b"\x89PNG", [b"Content-Type: image/png", b"\x89PNG"]),
        ("application/json", b"{}", [b"{}"]),
        ("text/plain;charset=UTF-8", b"x", [b"x"]),
        ("application/x-www-form-urlencoded", b"curl -d", [b"curl -d"]),
        (None, b"", [b""]),
    ],
)
def test_the_type_of_a_reply_is_kept(
    http: httpx.Client, client: Client, type: str | None, body: bytes, frames: list[bytes]
) -> None:
    uuid = client.submit("upper", b"")
    headers = {} if type is None else {"Content-Type": type}
    assert end(http, take(http), content=body, headers=headers).status_code == 204
    assert client.wait(uuid, 30) == frames
    answer = http.get(f"/v1/requests/{uuid}/reply")
    assert answer.content == body


@pytest.mark.parametrize(
    ("type", "body", "told"),
    [
        ("image/png", b"no picture", "image/png"),
        ("text/plain", b"{}", "text/plain"),
        ('application/x; a="b c"', b"x", 'application/x; a="b c"'),
        (None, b"{}", "application/json"),
    ],
)
def test_what_is_taken_has_the_type_that_it_was_submitted_with(
    http: httpx.Client, type: str | None, body: bytes, told: str
) -> None:
    headers = {} if type is None else {"Content-Type": type}
    assert http.post("/v1/services/upper/requests", content=body, headers=headers).status_code == 202
    taken = take(http)
    assert (taken.content, taken.headers["content-type"]) == (body, told)
    assert end(http, taken).status_code == 204


def test_there_is_nothing_to_take(http: httpx.Client, gateway: WebServer, client: Client) -> None:
    take = "/v1/services/upper:take?wait=0"
    answer = until(lambda: (one := http.post(take)).status_code != 503 and one)  # 503: no server so soon
    assert (answer.status_code, answer.content) == (204, b"")
    until(lambda: not held(gateway).quota)
    until(lambda: client.call("mmi.service", b"upper") == [b"404"])


def test_who_waits_gets_what_comes(http: httpx.Client, client: Client) -> None:
    with ThreadPoolExecutor() as pool:
        taking = pool.submit(take, http)
        until(lambda: client.call("mmi.service", b"upper") == [b"200"])
        uuid = client.submit("upper", b"now")
        assert taking.result().headers["titanic-request"] == uuid
        # One request for one who waits: there is no worker any more that could have the next one.
        client.submit("upper", b"next")
        assert json.loads(client.call("mmi.workers", b"")[0]) == {"upper": 1}
        assert end(http, taking.result()).status_code == 204
        until(lambda: client.call("mmi.service", b"upper") == [b"404"])


def test_a_failed_attempt_is_tried_again_and_tells_why(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("upper", b"x", max_attempts=3)
    assert end(http, take(http), "failed", content="oh no\ntraceback").status_code == 204
    until(lambda: client.show(uuid)["reason"])
    assert client.show(uuid)["reason"] == "oh no\ntraceback"
    taken = take(http)
    assert taken.headers["titanic-attempt"] == "2"
    assert end(http, taken, "failed", content=b"", params={"retry-after": 0.01}).status_code == 204
    assert end(http, take(http), "failed", content=b"for good", params={"fatal": "true"}).status_code == 204
    with pytest.raises(RequestFailed, match="for good"):
        client.wait(uuid, 30)


def test_a_lease_that_lapses_is_a_failed_attempt(
    http: httpx.Client, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.web.api.leases.MIN_LEASE", 0.05)
    uuid = client.submit("upper", b"x", max_attempts=1)
    taken = take(http, lease=0.05)
    with pytest.raises(RequestFailed, match=r"the lease lapsed: its worker was silent for 0\.05 s"):
        client.wait(uuid, 30)
    answer = end(http, taken)
    assert answer.status_code == 410
    assert "the lease lapsed" in answer.json()["detail"]


def test_a_lease_is_extended(http: httpx.Client, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.web.api.leases.MIN_LEASE", 0.05)
    uuid = client.submit("upper", b"x", max_attempts=1)
    taken = take(http, lease=20)
    answer = end(http, taken, "extend", params={"lease": 60})
    assert datetime.fromisoformat(answer.json()["deadline"]).timestamp() - time() > 30
    assert end(http, taken, "extend", params={"lease": 0.05}).status_code == 200
    with pytest.raises(RequestFailed, match="the lease lapsed"):
        client.wait(uuid, 30)


def test_a_request_that_is_closed_ends_its_lease(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("upper", b"x")
    taken = take(http)
    client.close(uuid)
    answer = until(lambda: (one := end(http, taken, "extend")).status_code == 410 and one)
    assert "the request was closed" in answer.json()["detail"]


def test_whoever_leaves_while_he_waits_gets_nothing(gateway: WebServer, client: Client) -> None:
    where = urlsplit(gateway.url)
    with socket.create_connection((where.hostname or "", where.port or 0)) as leaving:
        leaving.sendall(f"POST /v1/services/upper:take HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
        until(lambda: client.call("mmi.service", b"upper") == [b"200"])
    until(lambda: not held(gateway).quota)
    uuid = client.submit("upper", b"x")
    with Worker("upper", lambda frames: frames, gateway.app.titanic.settings.endpoint, config=QUICK):
        client.wait(uuid, 30)
    assert client.show(uuid)["attempts"] == 1


def test_what_is_asked_wrongly_is_refused(http: httpx.Client, client: Client) -> None:
    for path in ("upper:take?wait=x", "upper:take?lease=-1", "upper:take?what=1", "upper:take?wait=61", "%00:take"):
        assert http.post(f"/v1/services/{path}").status_code == 400, path
    answer = http.post("/v1/services/upper:take?lease=0")
    assert answer.status_code == 400
    assert "lease is '0'; it must be a number of seconds from 1 to 3600" in answer.json()["detail"]
    for service in ("titanic.request", "mmi.service"):
        assert http.post(f"/v1/services/{service}:take").status_code in (400, 403)
    client.submit("upper", b"x")
    taken = take(http)
    for how, query in (("failed", "fatal=1"), ("failed", "retry-after=-1"), ("failed", "fatal=true&retry-after=1")):
        assert end(http, taken, how, params=query).status_code == 400, query
    assert end(http, taken, headers={"Content-Type": "what\tever"}).status_code == 400
    assert end(http, taken, "failed", content=b"x" * 70_000).status_code == 413
    assert end(http, taken).status_code == 204  # none of that has ended it
    assert http.post("/v1/leases/nothing:done").status_code == 410
    assert http.get("/v1/leases/nothing:done").status_code == 405


@pytest.mark.settings(wire=BrokerConfig(liveness=60, max_body=1 << 20))
def test_a_reply_of_unknown_length_that_the_server_would_not_take_is_refused(
    http: httpx.Client, client: Client
) -> None:
    client.submit("upper", b"hello")
    taken = take(http)
    answer = end(http, taken, content=(bytes(1 << 20) for _ in range(3)))
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")
    assert end(http, taken, "extend").status_code == 200
    assert end(http, taken, content=b"HELLO").status_code == 204


def test_of_two_replies_at_the_same_time_both_are_taken(http: httpx.Client, client: Client) -> None:
    uuid = client.submit("upper", b"hello")
    taken = take(http)

    def slowly() -> Iterator[bytes]:
        yield b"HEL"
        assert end(http, taken, content=b"HELLO").status_code == 204
        yield b"LO"

    assert end(http, taken, content=slowly()).status_code == 204
    assert client.reply(uuid) == [b"HELLO"]


def test_a_visitor_has_so_many_leases(
    http: httpx.Client, client: Client, gateway: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held(gateway).quota, "_each", 1)
    client.submit("upper", b"x")
    taken = take(http)
    answer = http.post("/v1/services/upper:take")
    assert answer.status_code == 429
    assert "too many leases" in answer.json()["detail"]
    assert end(http, taken).status_code == 204
    until(lambda: http.post("/v1/services/upper:take?wait=0").status_code == 204)


def test_who_has_sent_everything_before_a_refusal_is_not_waited_for(
    http: httpx.Client, gateway: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "LINGER", PATIENCE * 10)
    monkeypatch.setattr(held(gateway).quota, "_each", 0)
    for _ in range(2):  # on one connection
        assert http.post("/v1/services/upper:take", content=b"x").status_code == 429
    assert len(gateway._server.server_state.connections) == 1


def test_when_the_gateway_ends_others_get_what_it_had(server: Server, client: Client) -> None:
    uuid = client.submit("upper", b"x", max_attempts=1)
    with (
        WebServer(WebSettings(tuple(server.endpoints), bind=("127.0.0.1", 0), timeout=30)) as gateway,
        httpx.Client(base_url=gateway.url, timeout=60, verify=False) as http,
        ThreadPoolExecutor() as pool,
    ):
        take(http)
        waiting = pool.submit(http.post, "/v1/services/other:take")
        until(lambda: client.call("mmi.service", b"other") == [b"200"])
        gateway.stop()
        assert waiting.result().status_code == 503
    with Worker("upper", lambda frames: frames, server.endpoints[0], config=QUICK):
        assert client.wait(uuid, 30) == [b"x"]


def test_a_server_that_is_away_is_told(tmp_path: Path) -> None:
    async def try_it() -> None:
        leases = Leases(WebSettings((f"ipc://{tmp_path}/nobody",)))
        with pytest.raises(HTTPProblem, match="no server answered") as refused:
            await leases.take("", "upper", 0.05, 60)
        assert refused.value.status == 503
        await leases.end()

    asyncio.run(try_it())


def test_a_lease_is_over_when_the_server_has_gone(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/here"

    async def try_it() -> None:
        held = Leases(WebSettings((endpoint,)))
        with Server(config(tmp_path, bind=(endpoint,))), Client(endpoint, timeout=30) as client:
            await asyncio.to_thread(client.submit, "upper", b"x")
            lease = await held.take("", "upper", 30, 60)
            assert lease is not None
        async with asyncio.timeout(PATIENCE):
            while lease.call.holds():
                await asyncio.sleep(0.005)
        with pytest.raises(HTTPProblem, match="the connection to the server broke"):
            held.find("", lease.id)
        await held.end()

    asyncio.run(try_it())


def test_who_may_not_work_is_told_so(tmp_path: Path) -> None:
    files = AccessFiles(tmp_path / "access")
    endpoint = f"ipc://{tmp_path}/here"

    async def take_as(user: str, wait: float) -> None:
        held = Leases(WebSettings((endpoint,), key=str(files.secret(user)), server_key=str(files.server_key)))
        try:
            assert await held.take("", "upper", wait, 60) is None
        finally:
            await held.end()

    def may(user: str) -> bool:
        try:
            asyncio.run(take_as(user, 0.5))
        except HTTPProblem as told:
            if told.status != 503:  # the server has not answered so soon
                raise
            return False
        return True

    with Server(config(tmp_path, bind=(endpoint,), access=files.path, key=files.key)):
        with pytest.raises(HTTPProblem, match='work = \\["upper"\\]') as told:
            asyncio.run(take_as("bob", PATIENCE))
        assert told.value.status == 403
        until(lambda: may("alice"))


@contextmanager
def a_gateway(*endpoints: str) -> Iterator[tuple[str, int]]:
    """A gateway in a process of its own, which is killed at the end."""
    program = (
        "import sys; from titanic.web.serving import WebServer; from titanic.web.settings import WebSettings\n"
        "with WebServer(WebSettings(tuple(sys.argv[1:]), bind=('127.0.0.1', 0))) as web:\n"
        "    print(web.url, flush=True); sys.stdin.read()"
    )
    process = fork("-c", program, *endpoints)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.kill()
        process.communicate()


def test_a_lease_of_a_gateway_that_was_killed_is_gone(server: Server, client: Client) -> None:
    uuids = client.submit_batch("upper", [b"1", b"2", b"3"], max_attempts=1)
    with a_gateway(*server.endpoints) as (url, pid), httpx.Client(base_url=url, timeout=60, verify=False) as http:
        old = [take(http, lease=3600) for _ in uuids]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            end(http, old[0])
    with a_gateway(*server.endpoints) as (url, _), httpx.Client(base_url=url, timeout=60, verify=False) as http:
        for how in ("done", "failed", "extend"):
            answer = end(http, old[0], how)
            assert answer.status_code == 410
            assert "this gateway does not know the lease" in answer.json()["detail"]
        new = [take(http) for _ in uuids]  # at once, not when the leases would have lapsed
        for taken in new:
            assert end(http, taken, content=b"+" + taken.content).status_code == 204
        assert {taken.headers["titanic-request"] for taken in new} == set(uuids)
        # Before this gateway is killed, too: what is still in its buffers then is lost, and executed again.
        assert dict(client.replies(uuids, timeout=PATIENCE)) == dict(
            zip(uuids, ([b"+1"], [b"+2"], [b"+3"]), strict=True)
        )


def test_every_third_gateway_that_dies_counts_as_an_attempt(server: Server, client: Client) -> None:
    uuid, attempts = client.submit("upper", b"x", retry_first=0.01), []
    for _ in range(4):
        with a_gateway(*server.endpoints) as (url, _pid), httpx.Client(base_url=url, timeout=60, verify=False) as http:
            taken = take(http, lease=3600)
            assert taken.headers["titanic-request"] == uuid
            attempts.append(taken.headers["titanic-attempt"])
    assert attempts == ["1", "1", "1", "2"]


def test_nothing_is_lost_when_the_gateway_is_killed(server: Server, client: Client) -> None:
    """Workers are at work, one has what he took, others wait: all is executed by those who come to the next one."""
    uuids = client.submit_batch("upper", [b"%d" % n for n in range(60)])
    urls: list[str] = []
    enough = threading.Event()
    over = threading.Event()
    done: list[str] = []

    def work() -> None:
        while not over.is_set():
            try:
                with httpx.Client(base_url=urls[-1], timeout=60, verify=False) as http:
                    while not over.is_set():
                        taken = http.post("/v1/services/upper:take?wait=0")
                        if taken.status_code == 200 and end(http, taken, content=b"+" + taken.content).is_success:
                            done.append(taken.headers["titanic-request"])
                            if len(done) > 15:
                                enough.set()
            except httpx.HTTPError:
                over.wait(0.02)  # until there is another gateway

    with ThreadPoolExecutor() as pool:
        try:
            with a_gateway(*server.endpoints) as (url, pid):
                urls.append(url)
                working = [pool.submit(work) for _ in range(4)]
                assert enough.wait(PATIENCE)
                with httpx.Client(base_url=url, timeout=60, verify=False) as http:
                    http.post("/v1/services/upper:take?wait=1")  # who has this does nothing
                os.kill(pid, signal.SIGKILL)
            with a_gateway(*server.endpoints) as (url, _):
                urls.append(url)
                replies = dict(client.replies(uuids, timeout=PATIENCE))
                over.set()
                for one in working:
                    one.result()
        finally:
            over.set()
    assert [replies[uuid] for uuid in uuids] == [[b"+%d" % n] for n in range(60)]
